"""Draw the picture of `topdp bench --growth`: time and memory of a round against the growing quantity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from topdp.experiments.bench.growth import GrowthPoint
from topdp.runs.pictures.chart_style import BLUE, RED, house_style, save

SERIES_LABELS = {
    "agents": "agents", "parameters": "parameters", "degree": "rows in a mix", "rounds": "rounds"
}  # fmt: skip


def short_number(value: float) -> str:
    """Abbreviate a power of ten.

    >>> short_number(1000), short_number(1e7), short_number(0.1)
    ('1k', '10M', '0.1')
    """
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def draw(points: Sequence[GrowthPoint], path: Path, title: str) -> Path:
    """Draw one column per series: the time of a round above, peak memory below."""
    names = [name for name in SERIES_LABELS if any(point.series == name for point in points)]
    with house_style():
        figure = Figure(figsize=(2.2 * max(3, len(names)), 4.6))
        figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
        both = figure.subplots(2, len(names), squeeze=False, sharex="col", sharey="row")
        for column, name in enumerate(names):
            own = [point for point in points if point.series == name]
            values = [point.value for point in own]
            time, memory = both[0][column], both[1][column]
            time.loglog(values, [1e3 * point.seconds for point in own], color=BLUE, marker="o")
            peaks = [(point.value, max(1.0, point.megabytes)) for point in own if point.megabytes is not None]
            if peaks:
                memory.loglog(*zip(*peaks, strict=True), color=RED, marker="s")
            memory.set_xlabel(SERIES_LABELS[name])
            for axis in (time.xaxis, time.yaxis, memory.xaxis, memory.yaxis):
                axis.set_major_formatter(lambda value, _: short_number(value))
                axis.set_minor_formatter(NullFormatter())
        both[0][0].set_ylabel("ms a round")
        both[1][0].set_ylabel("peak MB")
        return save(figure, path)

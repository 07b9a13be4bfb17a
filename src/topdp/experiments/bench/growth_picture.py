"""The picture of `topdp bench --growth`: time and memory of a round against what grows. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from topdp.experiments.bench.growth import Point
from topdp.runs.pictures.chart_style import BLUE, RED, house_style, save

AXES = {"agents": "agents", "parameters": "parameters", "degree": "rows in a mix", "rounds": "rounds"}


def short(value: float) -> str:
    """A power of ten in few letters.

    >>> short(1000), short(1e7), short(0.1)
    ('1k', '10M', '0.1')
    """
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def draw(points: Sequence[Point], path: Path, title: str) -> Path:
    """One column for each series: above the time of a round, below the most memory."""
    names = [name for name in AXES if any(point.series == name for point in points)]
    with house_style():
        figure = Figure(figsize=(2.2 * max(3, len(names)), 4.6))
        figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
        both = figure.subplots(2, len(names), squeeze=False, sharex="col", sharey="row")
        for column, name in enumerate(names):
            own = [point for point in points if point.series == name]
            values = [point.value for point in own]
            time, memory = both[0][column], both[1][column]
            time.loglog(values, [1e3 * point.seconds for point in own], color=BLUE, marker="o")
            known = [(point.value, max(1.0, point.megabytes)) for point in own if point.megabytes is not None]
            memory.loglog(*zip(*known, strict=True), color=RED, marker="s") if known else None
            memory.set_xlabel(AXES[name])
            for axis in (time.xaxis, time.yaxis, memory.xaxis, memory.yaxis):
                axis.set_major_formatter(lambda value, _: short(value))
                axis.set_minor_formatter(NullFormatter())
        both[0][0].set_ylabel("ms a round")
        both[1][0].set_ylabel("MB at its peak")
        return save(figure, path)

"""The picture of `topdp bench --growth`: time and memory of a round against what grows. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from topdp.bench.growth import Point
from topdp.report.style import BLUE, RED, house_style, save

AXES = {"agents": "agents", "parameters": "parameters", "degree": "rows in a mix", "rounds": "rounds"}


def draw(points: Sequence[Point], path: Path, title: str) -> Path:
    """One column for each series: above the time of a round, below the memory that is held."""
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
            known = [point for point in own if point.megabytes is not None and point.megabytes > 0]
            memory.loglog(
                [point.value for point in known], [point.megabytes for point in known], color=RED, marker="s"
            )
            memory.set_xlabel(AXES[name])
            for axes in (time, memory):
                axes.yaxis.set_minor_formatter(NullFormatter())
                axes.xaxis.set_minor_formatter(NullFormatter())
        both[0][0].set_ylabel("ms a round")
        both[1][0].set_ylabel("MB held")
        return save(figure, path)

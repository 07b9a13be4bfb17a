"""Agents, messages, boxes and bars on a sheet without axes, for pictures that explain. Not for results."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle

from topdp.runs.pictures.chart_style import INK

HEADING, NORMAL, SMALL = 13.0, 11.5, 10.5  # points
LINE = 2.9  # from one line of a box to the next
RADIUS = 3.6


def drawing(width: float, height: float, below: float = 0.0) -> tuple[Figure, Axes]:
    """A sheet, 8 inches (1600 pixels, shown at half of that) to 100 units of width."""
    figure = Figure(figsize=(0.08 * width, 0.08 * height))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(-below, height - below), aspect="equal")
    axes.axis("off")
    return figure, axes


def heading(axes: Axes, y: float, text: str) -> None:
    axes.text(2, y, text, fontsize=HEADING, fontweight="bold", va="center")


def write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    colour: str,
    size: float,
    align: str = "center",
    over: bool = False,
) -> None:
    back = {"facecolor": "white", "edgecolor": "none", "pad": 2.0} if over else None
    axes.text(x, y, text, color=colour, fontsize=size, ha=align, va="center", bbox=back)


def agent(axes: Axes, place: tuple[float, float], name: str, colour: str, ink: str) -> None:
    axes.add_patch(Circle(place, RADIUS, facecolor=colour, edgecolor=INK, linewidth=1.6, zorder=3))
    axes.text(
        *place, name, color=ink, fontsize=15, fontweight="bold", ha="center", va="center_baseline", zorder=4
    )


def message(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], upper: str, lower: str, name: str
) -> None:
    """A level arrow from agent to agent whose two halves show whose noise it carries."""
    (x, y), (u, _) = start, end
    x, u = x + RADIUS + 0.9, u - RADIUS - 0.9
    for colour, side in ((upper, 1), (lower, -1)):
        half = [(x, 0.0), (x, 0.75), (u - 2.6, 0.75), (u - 2.6, 1.7), (u, 0.0)]
        corners = [(across, y + side * up) for across, up in half]
        axes.add_patch(Polygon(corners, facecolor=colour, edgecolor=colour, linewidth=0.4, zorder=2))
    write(axes, (x + u) / 2, y + 3.2, name, INK, NORMAL)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=15, color=INK, linewidth=1.8, shrinkA=0, shrinkB=0
        )
    )


def bar(axes: Axes, left: float, right: float, y: float, colour: str, ink: str, text: str) -> None:
    axes.add_patch(Rectangle((left, y), right - left, 3.8, facecolor=colour, edgecolor="white"))
    write(axes, (left + right) / 2, y + 1.8, text, ink, SMALL)


def box(
    axes: Axes, x: float, y: float, width: float, height: float, name: str, does: str, line: float = 1.6
) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=1.2",
            facecolor="white",
            edgecolor=INK,
            linewidth=line,
        )
    )
    # The middle of the letters of all lines, the name's included, is the middle of the box.
    lines = does.count("\n") + 1 if does else 0
    middle, top = x + width / 2, y + height / 2 + LINE * lines / 2
    axes.text(middle, top, name, fontsize=NORMAL, fontweight="bold", ha="center", va="center")
    for number, words in enumerate(does.splitlines(), start=1):
        axes.text(middle, top - LINE * number - 0.1, words, fontsize=SMALL, ha="center", va="center")

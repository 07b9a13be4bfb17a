"""Agents, messages, boxes and bars on a canvas without axes, for pictures that explain concepts."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle

from topdp.runs.pictures.chart_style import INK

HEADING, NORMAL, SMALL = 13.0, 11.5, 10.5  # font sizes in points
LINE_HEIGHT = 2.9  # units, in a box
AGENT_RADIUS = 3.6  # units


def drawing(width: float, height: float, below: float = 0.0) -> tuple[Figure, Axes]:
    """Return a canvas with 8 inches per 100 units: 1600 pixels, which pages show at half that width."""
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
    covers: bool = False,
) -> None:
    """Write text. If it `covers` what is below, it has a white background."""
    background = {"facecolor": "white", "edgecolor": "none", "pad": 2.0} if covers else None
    axes.text(x, y, text, color=colour, fontsize=size, ha=align, va="center", bbox=background)


def agent(axes: Axes, place: tuple[float, float], name: str, colour: str, ink: str) -> None:
    axes.add_patch(Circle(place, AGENT_RADIUS, facecolor=colour, edgecolor=INK, linewidth=1.6, zorder=3))
    axes.text(
        *place, name, color=ink, fontsize=15, fontweight="bold", ha="center", va="center_baseline", zorder=4
    )


def message(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], upper: str, lower: str, name: str
) -> None:
    """Draw a horizontal arrow from agent to agent; the colours of its halves show whose noise it contains."""
    (x, y), (u, _) = start, end
    x, u = x + AGENT_RADIUS + 0.9, u - AGENT_RADIUS - 0.9
    for colour, side in ((upper, 1), (lower, -1)):
        half = [(x, 0.0), (x, 0.75), (u - 2.6, 0.75), (u - 2.6, 1.7), (u, 0.0)]
        corners = [(corner, y + side * height) for corner, height in half]
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
    axes: Axes, x: float, y: float, width: float, height: float, name: str, text: str, line: float = 1.6
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
    # The name and the lines below it are centred in the box.
    lines = text.count("\n") + 1 if text else 0
    middle, top = x + width / 2, y + height / 2 + LINE_HEIGHT * lines / 2
    axes.text(middle, top, name, fontsize=NORMAL, fontweight="bold", ha="center", va="center")
    for number, words in enumerate(text.splitlines(), start=1):
        axes.text(middle, top - LINE_HEIGHT * number - 0.1, words, fontsize=SMALL, ha="center", va="center")

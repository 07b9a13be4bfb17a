"""Draws plan.png, the README's picture of the idea: whose noise hides a message, and who reads a plan.

    python docs/pictures/plan.py [FILE]

The shares in the bars are those of Eq. 5b at the default α, and all that is computed here. Results are drawn
by `topdp.report` and `benchmarks/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle

from topdp.report.style import BLUE, GREY, INK, ORANGE, PALE, house_style, save

PICTURE = Path(__file__).with_name("plan.png")

WIDTH, HEIGHT = 100.0, 75.0  # of the drawing; 8 inches are 1600 pixels, shown at half of that
ALPHA = 0.25
HEADING, NORMAL, SMALL = 13.0, 11.5, 10.5  # points
LINE = 2.9  # from one line of a box to the next

RADIUS = 3.6
AT_K, AT_I, AT_J = (9.0, 53.0), (29.0, 53.0), (49.0, 53.0)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with house_style():
        figure = Figure(figsize=(8, 8 * HEIGHT / WIDTH))
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(-1.6, HEIGHT - 1.6), aspect="equal")
        axes.axis("off")
        cover(axes)
        shares(axes)
        axes.plot([2, 98], [37, 37], color=PALE, linewidth=1)
        readers(axes)
        save(figure, path)
    print(path)


def cover(axes: Axes) -> None:
    """Agents k, i, j: what k sent to i is mixed into what i sends to j, and j has no link to k."""
    heading(axes, 70.5, "A neighbour's noise covers part of a message")
    others = ((3.7, 43.2), (19.0, 42.2), (39.0, 42.2), (54.3, 43.2))
    links = (
        (AT_K, others[0]),
        (AT_K, others[1]),
        (AT_I, others[1]),
        (AT_I, others[2]),
        (AT_J, others[2]),
        (AT_J, others[3]),
    )
    for (x, y), (u, v) in links:
        axes.plot([x, u], [y, v], color=PALE, linewidth=2, zorder=1)
    for place in others:
        axes.add_patch(Circle(place, 1.7, facecolor=PALE, edgecolor="white", linewidth=1.5, zorder=2))

    message(axes, AT_K, AT_I, ORANGE, ORANGE, "k→i")
    message(axes, AT_I, AT_J, ORANGE, BLUE, "i→j")
    above = RADIUS + 0.8
    axes.add_patch(
        FancyArrowPatch(
            (AT_K[0], AT_K[1] + above),
            (AT_J[0], AT_J[1] + above),
            arrowstyle="-",
            connectionstyle="arc3,rad=-0.25",
            color=GREY,
            linestyle=(0, (1, 2)),
            linewidth=1.6,
            shrinkA=0,
            shrinkB=0,
        )
    )
    write(axes, 29, AT_K[1] + above + 5.0, "no link", GREY, SMALL, over=True)
    agent(axes, AT_K, "k", ORANGE, INK)
    agent(axes, AT_I, "i", BLUE, "white")
    agent(axes, AT_J, "j", "white", INK)


def shares(axes: Axes) -> None:
    """The variance of the noise that hides i in the message i→j: by the plain rule, and with k as cover."""
    reused = (1 - ALPHA) ** 2  # Eq. (5b): σ_i² = (1-α)² σ_k² + (σ_i^j)², equal budgets
    left, right = 63.0, 98.0
    middle = left + reused * (right - left)
    write(axes, left, 64.0, "noise that i→j needs", INK, NORMAL, align="left")
    write(axes, left, 59.0, "plain rule", GREY, SMALL, align="left")
    bar(axes, left, right, 53.0, BLUE, "white", "all added by i")
    write(axes, left, 48.5, "Top-DP", GREY, SMALL, align="left")
    bar(axes, left, middle, 42.5, ORANGE, INK, "came from k")
    bar(axes, middle, right, 42.5, BLUE, "white", "added by i")


def readers(axes: Axes) -> None:
    """A protocol writes a plan; the engine, the accountant and the agents read the same one."""
    heading(axes, 33.2, "A protocol writes a plan, and all read the same one")
    box(axes, 2, 10.6, 16, 8, "protocol", "")
    fields = "which rows are made,\nof what, with whose\nnoise, and for whom"
    box(axes, 28, 6.1, 25, 17, "plan", fields, line=2.6)
    arrow(axes, (18.8, 14.6), (27.2, 14.6))
    for y, name, does in (
        (20.8, "engine", "executes it on data"),
        (10.6, "accountant", "says what each observer learns"),
        (0.4, "agents", "each its part, on its own machine"),
    ):
        box(axes, 63, y, 35, 8, name, does)
        arrow(axes, (53.8, 14.6 + (y - 10.6) / 3), (62.2, y + 4))


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


if __name__ == "__main__":
    main()

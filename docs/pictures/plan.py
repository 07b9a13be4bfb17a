"""Draws plan.png, the README's picture of the idea: whose noise hides a message, and who reads a plan.

    python docs/pictures/plan.py [FILE]

The shares in the bars are those of Eq. 5b at the default α, and all that is computed here. Results are drawn
by `topdp.views` and `benchmarks/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch
from shapes import NORMAL, RADIUS, SMALL, agent, arrow, bar, box, drawing, heading, message, write

from topdp.runs.pictures.chart_style import BLUE, GREY, INK, ORANGE, PALE, house_style, save

PICTURE = Path(__file__).with_name("plan.png")

WIDTH, HEIGHT = 100.0, 75.0
ALPHA = 0.25
AT_K, AT_I, AT_J = (9.0, 53.0), (29.0, 53.0), (49.0, 53.0)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with house_style():
        figure, axes = drawing(WIDTH, HEIGHT, below=1.6)
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


if __name__ == "__main__":
    main()

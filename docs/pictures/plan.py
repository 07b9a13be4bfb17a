"""Draw plan.png, which shows in the README whose noise hides a message, and what uses a plan.

    python docs/pictures/plan.py [FILE]

The shares in the bars are those of Eq. 5b at the default α.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch
from shapes import AGENT_RADIUS, NORMAL, SMALL, agent, arrow, bar, box, drawing, heading, message, write

from topdp.runs.pictures.chart_style import BLUE, GREY, INK, ORANGE, PALE, house_style, save

PICTURE = Path(__file__).with_name("plan.png")

WIDTH, HEIGHT = 100.0, 75.0
ALPHA = 0.25
K_PLACE, I_PLACE, J_PLACE = (9.0, 53.0), (29.0, 53.0), (49.0, 53.0)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with house_style():
        figure, axes = drawing(WIDTH, HEIGHT, below=1.6)
        cover(axes)
        shares(axes)
        axes.plot([2, 98], [37, 37], color=PALE, linewidth=1)
        users(axes)
        save(figure, path)
    print(path)


def cover(axes: Axes) -> None:
    """Draw agents k, i and j: i mixes the message of k into its message to j; j and k are not adjacent."""
    heading(axes, 70.5, "A neighbour's noise hides part of a message")
    others = ((3.7, 43.2), (19.0, 42.2), (39.0, 42.2), (54.3, 43.2))
    edges = (
        (K_PLACE, others[0]),
        (K_PLACE, others[1]),
        (I_PLACE, others[1]),
        (I_PLACE, others[2]),
        (J_PLACE, others[2]),
        (J_PLACE, others[3]),
    )
    for (x, y), (u, v) in edges:
        axes.plot([x, u], [y, v], color=PALE, linewidth=2, zorder=1)
    for place in others:
        axes.add_patch(Circle(place, 1.7, facecolor=PALE, edgecolor="white", linewidth=1.5, zorder=2))

    message(axes, K_PLACE, I_PLACE, ORANGE, ORANGE, "k→i")
    message(axes, I_PLACE, J_PLACE, ORANGE, BLUE, "i→j")
    above = AGENT_RADIUS + 0.8
    axes.add_patch(
        FancyArrowPatch(
            (K_PLACE[0], K_PLACE[1] + above),
            (J_PLACE[0], J_PLACE[1] + above),
            arrowstyle="-",
            connectionstyle="arc3,rad=-0.25",
            color=GREY,
            linestyle=(0, (1, 2)),
            linewidth=1.6,
            shrinkA=0,
            shrinkB=0,
        )
    )
    write(axes, 29, K_PLACE[1] + above + 5.0, "no edge", GREY, SMALL, covers=True)
    agent(axes, K_PLACE, "k", ORANGE, INK)
    agent(axes, I_PLACE, "i", BLUE, "white")
    agent(axes, J_PLACE, "j", "white", INK)


def shares(axes: Axes) -> None:
    """Draw the noise variance that hides i in the message i→j: under the plain rule, and with k as cover."""
    reused = (1 - ALPHA) ** 2  # Eq. (5b): σ_i² = (1-α)² σ_k² + (σ_i^j)², equal budgets
    left, right = 63.0, 98.0
    middle = left + reused * (right - left)
    write(axes, left, 64.0, "noise that i→j needs", INK, NORMAL, align="left")
    write(axes, left, 59.0, "plain rule", GREY, SMALL, align="left")
    bar(axes, left, right, 53.0, BLUE, "white", "from i")
    write(axes, left, 48.5, "Top-DP", GREY, SMALL, align="left")
    bar(axes, left, middle, 42.5, ORANGE, INK, "from k")
    bar(axes, middle, right, 42.5, BLUE, "white", "from i")


def users(axes: Axes) -> None:
    """Draw the plan that a protocol writes and that engine, accountant and agents use."""
    heading(axes, 33.2, "A protocol writes a plan; engine, accountant and agents use it")
    box(axes, 2, 10.6, 16, 8, "protocol", "")
    fields = "rows, with owners,\nsources, noise\nand readers"
    box(axes, 28, 6.1, 25, 17, "plan", fields, line=2.6)
    arrow(axes, (18.8, 14.6), (27.2, 14.6))
    for y, name, text in (
        (20.8, "engine", "executes it on records"),
        (10.6, "accountant", "computes each observer's ε"),
        (0.4, "agents", "each executes its own part"),
    ):
        box(axes, 63, y, 35, 8, name, text)
        arrow(axes, (53.8, 14.6 + (y - 10.6) / 3), (62.2, y + 4))


if __name__ == "__main__":
    main()

"""Draw the pictures of docs/concepts/: rows.png, reuse.png, secrets.png, answers.png.

    python docs/pictures/concepts.py [FOLDER]

The numbers in the pictures come from plans and their accounts; no records are used and nothing is trained.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch
from shapes import HEADING, NORMAL, SMALL, agent, bar, box, drawing, heading, message, write

from topdp import topology
from topdp.plan import Plan, Schedule
from topdp.privacy.residual_noise import residual_noise
from topdp.protocols import TopSynchronous
from topdp.runs import config
from topdp.runs.pictures.chart_style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    house_style,
    save,
)
from topdp.runs.planning import plan_and_account
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline

OWNER_COLOURS = (BLUE, ORANGE, GREEN)
OWNER_NAMES = "abc"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for draw in (rows, reuse, secrets, answers):
        with house_style():
            print(draw(folder / f"{draw.__name__}.png"))


def rows(path: Path) -> Path:
    """Draw the rows of three agents on a path in two rounds of Top-DP, and the sources of each row."""
    schedule = Schedule(rate=np.full(3, 0.5), noise=np.full(3, 0.5))
    plan = TopSynchronous(0.25).plan(topology.from_edges([(0, 1), (1, 2)]), schedule, np.ones(3), seed=0)
    figure, axes = drawing(100, 76, below=10)
    heading(axes, 62.5, "A plan states rows, their sources, their noise and their readers")
    columns = [14.0, 47.0, 80.0]  # x by release
    heights = {0: 50.0, 1: 38.0, 2: 26.0}
    messages = range(plan.agents, plan.rows)
    heights |= {row: 14.0 - 12.0 * number for number, row in enumerate(messages)}
    for release, x in enumerate(columns):
        write(axes, x, 57.5, f"round {release}", GREY, NORMAL)
        for row in np.flatnonzero(plan[release].exists):
            owner = int(plan.owner[row])
            _row(axes, plan, release, int(row), x, heights[int(row)], OWNER_COLOURS[owner])
    for release in (1, 2):
        _sources(axes, plan, release, columns, heights)
    words = (
        "−g: contains its owner's gradient    ~: fresh noise    arrows: sources; the width shows the weight"
    )
    write(axes, 50, -7.0, words, GREY, SMALL)
    return save(figure, path)


def _name(plan: Plan, row: int) -> str:
    if row < plan.agents:
        return OWNER_NAMES[row]
    (reader,) = {int(reader) for reader in plan[plan.releases - 1].readers[row] if reader >= 0}
    return f"{OWNER_NAMES[int(plan.owner[row])]}→{OWNER_NAMES[reader]}"


def _row(axes: Axes, plan: Plan, release: int, row: int, x: float, y: float, colour: str) -> None:
    arrays = plan[release]
    readers = ", ".join(OWNER_NAMES[int(reader)] for reader in arrays.readers[row] if reader >= 0)
    marks = ("−g " if arrays.step[row] else "") + ("~" if (arrays.draw[row] >= 0).any() else "")
    axes.add_patch(Circle((x, y), 3.4, facecolor=colour, edgecolor=INK, linewidth=1.4, zorder=3))
    ink = "white" if colour != ORANGE else INK
    size = 13 if row < plan.agents else 9.5
    axes.text(x, y, _name(plan, row), color=ink, fontsize=size, fontweight="bold", ha="center",
              va="center_baseline", zorder=4)  # fmt: skip
    write(axes, x + 4.2, y + 1.9, marks, INK, SMALL, align="left")
    write(axes, x + 4.2, y - 1.9, f"for {readers}" if readers else "not sent", GREY, 9.5, align="left")


def _sources(axes: Axes, plan: Plan, release: int, columns: list[float], heights: dict[int, float]) -> None:
    arrays, source_x, x = plan[release], columns[release - 1], columns[release]
    for row in np.flatnonzero(arrays.exists):
        for source, weight in zip(arrays.source[row], arrays.weight[row], strict=True):
            if source < 0 or not weight:
                continue
            start = (source_x + 11.5, heights[int(source)])
            axes.add_patch(
                FancyArrowPatch(
                    start, (x - 3.8, heights[int(row)]), arrowstyle="-|>", mutation_scale=11,
                    color=OWNER_COLOURS[int(plan.owner[source])], linewidth=0.8 + 2.2 * float(weight),
                    zorder=1, shrinkA=0, shrinkB=0,
                )
            )  # fmt: skip


def reuse(path: Path) -> Path:
    """Draw who knows the noise of k, and its share of the noise in i→j for four α."""
    figure, axes = drawing(100, 52)
    heading(axes, 48.5, "Noise that j does not know also hides i's message")
    k, i, j, m = (8.0, 27.0), (27.0, 27.0), (46.0, 27.0), (27.0, 9.0)
    axes.plot([i[0], m[0]], [i[1], m[1]], color=PALE, linewidth=2, zorder=1)
    axes.plot([k[0], m[0]], [k[1], m[1]], color=PALE, linewidth=2, zorder=1)
    message(axes, k, i, ORANGE, ORANGE, "k→i")
    message(axes, i, j, ORANGE, BLUE, "i→j")
    for place, name, colour, ink in ((k, "k", ORANGE, INK), (i, "i", BLUE, "white"), (j, "j", "white", INK)):
        agent(axes, place, name, colour, ink)
    agent(axes, m, "m", PALE, INK)
    write(axes, 27, 41, "j is not adjacent to k\nand does not receive k→i", GREY, SMALL)
    write(axes, 32, 9, "m is adjacent to k:\nk is no cover against m", GREY, SMALL, align="left")
    write(axes, 60, 41, "shares of the noise in i→j (Eq. 5b)", INK, NORMAL, align="left")
    left, right = 67.0, 98.0
    for number, alpha in enumerate((0.75, 0.5, 0.25, 0.125)):
        y, middle = 33.0 - 8.5 * number, left + (1 - alpha) ** 2 * (right - left)
        write(axes, 65.5, y + 1.9, f"α = {alpha:g}", INK, SMALL, align="right")
        share = f"{(1 - alpha) ** 2:.0%}"
        bar(axes, left, middle, y, ORANGE, INK, f"k {share}" if alpha < 0.75 else "")
        bar(axes, middle, right, y, BLUE, "white", f"i {alpha * (2 - alpha):.0%}" if alpha > 0.2 else "")
    return save(figure, path)


def secrets(path: Path) -> Path:
    """Draw three agents with pair noise, and the noise of 30 agents in a message and in the average."""
    figure, axes = drawing(100, 58)
    heading(axes, 54.5, "Pairs add the same noise with opposite signs")
    places = {"a": (23.0, 43.0), "b": (9.0, 17.0), "c": (37.0, 17.0)}
    pairs = (("a", "b", PURPLE, "p"), ("b", "c", GREEN, "q"), ("c", "a", ORANGE, "r"))
    for agent_name, partner, colour, name in pairs:
        (x, y), (u, v) = places[agent_name], places[partner]
        axes.plot([x, u], [y, v], color=colour, linewidth=2, linestyle=(0, (4, 2)), zorder=1)
        write(axes, (x + u) / 2, (y + v) / 2, name, colour, HEADING, covers=True)
    for name, place in places.items():
        agent(axes, place, name, BLUE, "white")
    for y, words in ((9.0, "a sends  g_a + p − r + own"), (5.7, "b sends  g_b − p + q + own"),
                     (2.4, "c sends  g_c − q + r + own")):  # fmt: skip
        write(axes, 4, y, words, INK, SMALL, align="left")
    write(axes, 44, 5.7, "sum:  gradients + own noise;\np, q and r cancel", INK, SMALL, align="left")
    deviations = {name: noise(name) for name in ("dsgd", "correlated")}  # in a message, in the average
    references = (deviations["dsgd"][0], deviations["correlated"][1])
    write(axes, 52, 48.0, "30 agents, adaptive ε = 1 without colluders", INK, SMALL, align="left")
    for top, title, index in (
        (43.0, "noise that hides one message", 0),
        (26.5, "noise that remains in the average", 1),
    ):
        write(axes, 52, top, title, INK, NORMAL, align="left")
        largest = max(pair[index] for pair in deviations.values())
        for number, name in enumerate(deviations):
            value, y = deviations[name][index], top - 6.0 - 5.4 * number
            width = 26 * value / largest
            write(axes, 65, y + 1.8, name, INK, SMALL, align="right")
            bar(axes, 66, 66 + width, y, RED if name == "correlated" else GREY, "white", "")
            ratio = value / references[index]
            write(axes, 67 + width, y + 1.8, f"{ratio:.2g}×", INK, SMALL, align="left")
    write(axes, 52, 12.2, "(standard deviations)", GREY, SMALL, align="left")
    return save(figure, path)


def noise(method: str) -> tuple[float, float]:
    """Return the deviations of the noise in a message of the first release, and in the average after it."""
    settings = config.read(changes=[f"method.name={method}", "rounds=1", "privacy.colluders=1"])
    agents = RunOutline.of(settings).graph.agents
    plan, _ = plan_and_account(resolve(settings, counts=(2000,) * agents))
    return float(np.sqrt((plan[0].std[0] ** 2).sum())), float(np.sqrt(residual_noise(plan).average[0]))


# An answer, its observer, and what the observer reads.
PANELS = (
    ("claimed", "the published analysis", "assumes fresh full-scale\nnoise in every release"),
    ("view", "one other agent", "the rows that it receives;\nfixed gradients: no guarantee"),
    ("adaptive", "one agent, or colluders", "rows received, all estimates;\nany gradients: proved"),
    ("worst_case", "all other agents together", "all rows of the owner;\nany gradients: proved"),
)


def answers(path: Path) -> Path:
    """Draw, for each answer, the observer of agent i on a ring under Top-DP, and what the observer reads."""
    epsilon = ring_answers()
    figure, axes = drawing(120, 57)
    words = "Six agents on a ring, Top-DP, 51 releases, noise for a claimed ε = 1 (tight, δ = 1e-5). "
    words += "Red: the observer, and what it reads"
    write(axes, 2, 49.5, words, GREY, SMALL, align="left")
    heading(axes, 53.5, "One run, four answers: what does an observer learn about a record of agent i?")
    for number, (name, observer, reads) in enumerate(PANELS):
        middle = 15.0 + 30.0 * number
        box(axes, middle - 14, 1.5, 28, 44.5, "", "")
        axes.text(
            middle, 43.0, name.replace("_", "-"), fontsize=NORMAL, fontweight="bold", ha="center", va="center"
        )
        write(axes, middle, 39.6, observer, GREY, SMALL)
        _ring(axes, (middle, 26.5), name)
        write(axes, middle, 11.2, reads, GREY, 9.2)
        write(axes, middle, 5.0, f"ε = {epsilon[name]:.2f}", INK, HEADING)
    return save(figure, path)


def ring_answers() -> dict[str, float]:
    """Return ε by answer."""
    settings = config.read(
        changes=["method.name=top", "method.alpha=0.25", "topology.kind=ring", "topology.agents=6",
                 "rounds=50", "privacy.guarantee=claimed", "privacy.answers=['view', 'adaptive']"]
    )  # fmt: skip
    _, account = plan_and_account(resolve(settings, counts=(2000,) * 6))
    return {name: float(account.epsilon[name] or np.inf) for name, *_ in PANELS}


def _ring(axes: Axes, centre: tuple[float, float], answer: str) -> None:
    """Draw the owner in blue, observers and what they read in red, and everything else in pale grey."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(6) / 6
    places = [(centre[0] + 9 * np.cos(angle), centre[1] + 9 * np.sin(angle)) for angle in angles]
    observers = {"claimed": [], "view": [2], "adaptive": [2], "worst_case": [1, 2, 3, 4, 5]}[answer]
    for i in range(6):
        j = (i + 1) % 6
        is_read = i in observers or j in observers
        axes.plot(
            *zip(places[i], places[j], strict=True),
            color=RED if is_read else PALE,
            linewidth=2.2,
            zorder=1,
        )
    for number, place in enumerate(places):
        if answer == "adaptive" and number not in observers:
            axes.add_patch(Circle(place, 3.3, facecolor="none", edgecolor=RED, linewidth=1.6, zorder=3))
        colour = BLUE if number == 0 else RED if number in observers else "white"
        axes.add_patch(Circle(place, 2.4, facecolor=colour, edgecolor=INK, linewidth=1.2, zorder=4))
        if number == 0:
            bold = {"fontweight": "bold", "ha": "center", "va": "center_baseline"}
            axes.text(*place, "i", color="white", fontsize=11, zorder=5, **bold)


if __name__ == "__main__":
    main()

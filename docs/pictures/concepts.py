"""Draws the pictures of docs/concepts/: rows.png, reuse.png, secrets.png, answers.png.

    python docs/pictures/concepts.py [FOLDER]

What a picture says in numbers is computed here, from plans that protocols write and accounts of them; no data
are used and nothing is trained. Shapes are those of `shapes.py`.
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

COLOURS = (BLUE, ORANGE, GREEN)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for draw in (rows, reuse, secrets, answers):
        with house_style():
            print(draw(folder / f"{draw.__name__}.png"))


def rows(path: Path) -> Path:
    """A path of three agents, two rounds of Top-DP: what each row is made of, as the plan says."""
    steps = Schedule(rate=np.full(3, 0.5), noise=np.full(3, 0.5))
    plan = TopSynchronous(0.25).plan(topology.from_edges([(0, 1), (1, 2)]), steps, np.ones(3), seed=0)
    figure, axes = drawing(100, 76, below=10)
    heading(axes, 62.5, "A plan says which rows are made, of what, and for whom")
    across = [14.0, 47.0, 80.0]
    places = {0: 50.0, 1: 38.0, 2: 26.0}
    messages = range(plan.agents, plan.rows)
    places |= {row: 14.0 - 12.0 * number for number, row in enumerate(messages)}
    for release, x in enumerate(across):
        write(axes, x, 57.5, f"round {release}", GREY, NORMAL)
        for row in np.flatnonzero(plan[release].exists):
            owner = int(plan.owner[row])
            _row(axes, plan, release, int(row), x, places[int(row)], COLOURS[owner])
    for release in (1, 2):
        _sources(axes, plan, release, across, places)
    words = (
        "−g: carries its maker's gradient    ~: fresh noise    arrows: rows of the round before, by weight"
    )
    write(axes, 50, -7.0, words, GREY, SMALL)
    return save(figure, path)


def _name(plan: Plan, row: int) -> str:
    if row < plan.agents:
        return "abc"[row]
    (reader,) = {int(one) for one in plan[plan.releases - 1].readers[row] if one >= 0}
    return f"{'abc'[int(plan.owner[row])]}→{'abc'[reader]}"


def _row(axes: Axes, plan: Plan, release: int, row: int, x: float, y: float, colour: str) -> None:
    this = plan[release]
    readers = ", ".join("abc"[int(one)] for one in this.readers[row] if one >= 0)
    marks = ("−g " if this.step[row] else "") + ("~" if (this.draw[row] >= 0).any() else "")
    axes.add_patch(Circle((x, y), 3.4, facecolor=colour, edgecolor=INK, linewidth=1.4, zorder=3))
    ink = "white" if colour != ORANGE else INK
    size = 13 if row < plan.agents else 9.5
    axes.text(x, y, _name(plan, row), color=ink, fontsize=size, fontweight="bold", ha="center",
              va="center_baseline", zorder=4)  # fmt: skip
    write(axes, x + 4.2, y + 1.9, marks, INK, SMALL, align="left")
    write(axes, x + 4.2, y - 1.9, f"for {readers}" if readers else "kept", GREY, 9.5, align="left")


def _sources(axes: Axes, plan: Plan, release: int, across: list[float], places: dict[int, float]) -> None:
    this, before, x = plan[release], across[release - 1], across[release]
    for row in np.flatnonzero(this.exists):
        for source, weight in zip(this.source[row], this.weight[row], strict=True):
            if source < 0 or not weight:
                continue
            start = (before + 11.5, places[int(source)])
            axes.add_patch(
                FancyArrowPatch(
                    start, (x - 3.8, places[int(row)]), arrowstyle="-|>", mutation_scale=11,
                    color=COLOURS[int(plan.owner[source])], linewidth=0.8 + 2.2 * float(weight), zorder=1,
                    shrinkA=0, shrinkB=0,
                )
            )  # fmt: skip


def reuse(path: Path) -> Path:
    """Who knows k's noise, and how much of the noise in i→j it is, for four α."""
    figure, axes = drawing(100, 52)
    heading(axes, 48.5, "Noise that j does not know hides i's message too")
    k, i, j, other = (8.0, 27.0), (27.0, 27.0), (46.0, 27.0), (27.0, 9.0)
    axes.plot([i[0], other[0]], [i[1], other[1]], color=PALE, linewidth=2, zorder=1)
    axes.plot([k[0], other[0]], [k[1], other[1]], color=PALE, linewidth=2, zorder=1)
    message(axes, k, i, ORANGE, ORANGE, "k→i")
    message(axes, i, j, ORANGE, BLUE, "i→j")
    for place, name, colour, ink in ((k, "k", ORANGE, INK), (i, "i", BLUE, "white"), (j, "j", "white", INK)):
        agent(axes, place, name, colour, ink)
    agent(axes, other, "m", PALE, INK)
    write(axes, 27, 41, "j has no link to k: it never saw k→i", GREY, SMALL)
    write(axes, 32, 9, "m is linked to k:\nagainst m it is no cover", GREY, SMALL, align="left")
    write(axes, 60, 41, "whose noise hides i in i→j (Eq. 5b)", INK, NORMAL, align="left")
    left, right = 67.0, 98.0
    for number, alpha in enumerate((0.75, 0.5, 0.25, 0.125)):
        y, middle = 33.0 - 8.5 * number, left + (1 - alpha) ** 2 * (right - left)
        write(axes, 65.5, y + 1.9, f"α = {alpha:g}", INK, SMALL, align="right")
        share = f"{(1 - alpha) ** 2:.0%}"
        bar(axes, left, middle, y, ORANGE, INK, f"k {share}" if alpha < 0.75 else "")
        bar(axes, middle, right, y, BLUE, "white", f"i {alpha * (2 - alpha):.0%}" if alpha > 0.2 else "")
    return save(figure, path)


def secrets(path: Path) -> Path:
    """Three agents and their pairs' draws; then the noise of 30 in a message and in the average."""
    figure, axes = drawing(100, 58)
    heading(axes, 54.5, "Pairs add the same secret noise with opposite signs")
    places = {"a": (23.0, 43.0), "b": (9.0, 17.0), "c": (37.0, 17.0)}
    pairs = (("a", "b", PURPLE, "p"), ("b", "c", GREEN, "q"), ("c", "a", ORANGE, "r"))
    for one, other, colour, name in pairs:
        (x, y), (u, v) = places[one], places[other]
        axes.plot([x, u], [y, v], color=colour, linewidth=2, linestyle=(0, (4, 2)), zorder=1)
        write(axes, (x + u) / 2, (y + v) / 2, name, colour, HEADING, over=True)
    for name, place in places.items():
        agent(axes, place, name, BLUE, "white")
    for y, words in ((9.0, "a sends  g_a + p − r + own"), (5.7, "b sends  g_b − p + q + own"),
                     (2.4, "c sends  g_c − q + r + own")):  # fmt: skip
        write(axes, 4, y, words, INK, SMALL, align="left")
    write(axes, 44, 5.7, "sum:  gradients + own noise;\np, q and r are gone", INK, SMALL, align="left")
    found = {name: noise(name) for name in ("dsgd", "correlated")}
    least = found["correlated"][1]
    write(axes, 52, 48.0, "30 agents, ε = 1 against any one other (adaptive)", INK, SMALL, align="left")
    largest = max(one for one, _ in found.values())
    for top, title, which in (
        (43.0, "noise that hides one message", 0),
        (26.5, "noise left in the average", 1),
    ):
        write(axes, 52, top, title, INK, NORMAL, align="left")
        scale = largest if which == 0 else max(two for _, two in found.values())
        for number, name in enumerate(found):
            value, y = found[name][which], top - 6.0 - 5.4 * number
            width = 26 * value / scale
            write(axes, 65, y + 1.8, name, INK, SMALL, align="right")
            bar(axes, 66, 66 + width, y, RED if name == "correlated" else GREY, "white", "")
            against = value / (found["dsgd"][0] if which == 0 else least)
            write(axes, 67 + width, y + 1.8, f"{against:.2g}×", INK, SMALL, align="left")
    write(axes, 52, 12.2, "(standard deviations)", GREY, SMALL, align="left")
    return save(figure, path)


def noise(method: str) -> tuple[float, float]:
    """Deviations of the noise in a broadcast of the first release, and in the average after it."""
    settings = config.read(changes=[f"method.name={method}", "rounds=1", "privacy.colluders=1"])
    agents = RunOutline.of(settings).graph.agents
    plan, _ = plan_and_account(resolve(settings, counts=(2000,) * agents))
    return float(np.sqrt((plan[0].std[0] ** 2).sum())), float(np.sqrt(residual_noise(plan).average[0]))


PANELS = (
    ("claimed", "the method's own formula", "each release as if it stood\nalone; reused noise is free"),
    ("view", "one other agent", "rows it receives; gradients\ncount as fixed: no guarantee"),
    ("adaptive", "one other, or colluders", "their rows and all estimates,\nwhatever gradients do: proved"),
    ("worst_case", "all others together", "everything but the\nowner's own noise: proved"),
)


def answers(path: Path) -> Path:
    """A ring under Top-DP with the σ of a tight claim of ε = 1: who looks, and what it learns."""
    found = ring_answers()
    figure, axes = drawing(120, 57)
    words = "Six agents on a ring, Top-DP, 51 releases, the noise of a tight claim of ε = 1 (δ = 1e-5). "
    words += "Red: who looks, and what it sees"
    write(axes, 2, 49.5, words, GREY, SMALL, align="left")
    heading(axes, 53.5, "One run, four answers: what can be learned of a record of agent i?")
    for number, (name, who, what) in enumerate(PANELS):
        middle = 15.0 + 30.0 * number
        box(axes, middle - 14, 1.5, 28, 44.5, "", "")
        axes.text(
            middle, 43.0, name.replace("_", "-"), fontsize=NORMAL, fontweight="bold", ha="center", va="center"
        )
        write(axes, middle, 39.6, who, GREY, SMALL)
        _ring(axes, (middle, 26.5), name)
        write(axes, middle, 11.2, what, GREY, 9.2)
        write(axes, middle, 5.0, f"ε = {found[name]:.2f}", INK, HEADING)
    return save(figure, path)


def ring_answers() -> dict[str, float]:
    """ε by answer."""
    settings = config.read(
        changes=["method.name=top", "method.alpha=0.25", "topology.kind=ring", "topology.agents=6",
                 "rounds=50", "privacy.guarantee=claimed", "privacy.answers=['view', 'adaptive']"]
    )  # fmt: skip
    _, account = plan_and_account(resolve(settings, counts=(2000,) * 6))
    return {name: float(account.epsilon[name] or np.inf) for name, *_ in PANELS}


def _ring(axes: Axes, centre: tuple[float, float], answer: str) -> None:
    """Owner blue, who looks red; what it sees is drawn red, what it does not see pale."""
    turn = np.pi / 2 - 2 * np.pi * np.arange(6) / 6
    places = [(centre[0] + 9 * np.cos(angle), centre[1] + 9 * np.sin(angle)) for angle in turn]
    looks = {"claimed": [], "view": [2], "adaptive": [2], "worst_case": [1, 2, 3, 4, 5]}[answer]
    for one in range(6):
        other = (one + 1) % 6
        seen = one in looks or other in looks
        axes.plot(
            *zip(places[one], places[other], strict=True),
            color=RED if seen else PALE,
            linewidth=2.2,
            zorder=1,
        )
    for number, place in enumerate(places):
        if answer == "adaptive" and number not in looks:
            axes.add_patch(Circle(place, 3.3, facecolor="none", edgecolor=RED, linewidth=1.6, zorder=3))
        colour = BLUE if number == 0 else RED if number in looks else "white"
        axes.add_patch(Circle(place, 2.4, facecolor=colour, edgecolor=INK, linewidth=1.2, zorder=4))
        if number == 0:
            bold = {"fontweight": "bold", "ha": "center", "va": "center_baseline"}
            axes.text(*place, "i", color="white", fontsize=11, zorder=5, **bold)


if __name__ == "__main__":
    main()

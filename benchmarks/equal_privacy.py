"""What Top-DP gains at equal true privacy: its noise in the agents' average, beside that of the plain rule.

    python benchmarks/equal_privacy.py [--quick] [--json] [--picture FILE]

For every mode, α and graph both plans are written with the same full-scale σ, full batches and constant
steps, and these exact numbers are taken from them, no training and no sampling. Two tables: at equal `view` ε
and at equal `adaptive` ε, each by its sound bound on the worst pair (any agent against any other).

`variance`  the noise variance that the agents' average gathers per round, top over plain at the same σ;
`plain μ²`, `top μ²`  the μ² of the worst pair over the claimed μ²;
`equal`     variance times the ratio of the two: what is left of the noise at the same ε, top over plain;
`own`       the same for an agent's own estimate instead of the average;
`plain`, `top`  the variance itself at the same ε, so that different α and modes can be compared: over the
            square of the share of agents that take a step (in pairs some sit out); the unit is what
            independent noises leave in their average, one fresh release of each a round;
`aligned`   μ² of top over the claimed μ², reached by a record whose gradients all point one way.

Random graphs of 30 agents, connection 0.2, T = 200; the mean over the graphs, and the least and the largest.
`--quick` takes one graph and T = 40, and draws no picture unless one is named. In the picture
bars are of the synchronous mode, lines of meeting in pairs, each at its best α.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from matplotlib.figure import Figure

from topdp import topology
from topdp.experiments.parallel_plans import map_in_processes
from topdp.plan import Plan, schedules
from topdp.privacy.answers import answer_kind
from topdp.privacy.basics.exposure import exposure
from topdp.privacy.query import Query
from topdp.protocols import PlainAsynchronous, PlainSynchronous, TopAsynchronous, TopSynchronous
from topdp.runs.pictures.chart_style import BLUE, GREY, INK, house_style, save

ALPHAS = (0.75, 0.5, 0.25, 0.125)
ANSWERS = ("view", "adaptive")
PROTOCOLS = {"sync": (PlainSynchronous, TopSynchronous), "pairs": (PlainAsynchronous, TopAsynchronous)}
LABELS = {"plain": "plain rule", "top": "Top-DP"}
LINES = {"plain": "--", "top": ":"}
AGENTS, CONNECTION = 30, 0.2
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "equal-privacy.png"


def noise_variance(plan: Plan) -> tuple[float, float]:
    """Variance that noise leaves after the last round, per round: of the agents' average, of an estimate.

    The covariance of all rows is carried through the plan: P ← W P Wᵀ + B Bᵀ.
    """
    P = np.zeros((plan.rows, plan.rows))
    for r, this in enumerate(plan):
        W, B = np.zeros((plan.rows, plan.rows)), np.zeros((plan.rows, plan.draws))
        if r > 0:
            row, slot = np.nonzero(this.source >= 0)
            np.add.at(W, (row, this.source[row, slot]), this.weight[row, slot])
        row, slot = np.nonzero((this.draw >= 0) & this.exists[:, None])
        np.add.at(B, (row, this.draw[row, slot]), this.std[row, slot])
        P = W @ P @ W.T + B @ B.T
    estimates = P[: plan.agents, : plan.agents]
    return float(estimates.mean() / plan.releases), float(estimates.diagonal().mean() / plan.releases)


def steps_taken(plan: Plan) -> float:
    """The share of agents that take a gradient step, over the rounds."""
    return float(np.mean([plan.carries[r][: plan.agents].mean() for r in range(plan.releases)]))


class Place(NamedTuple):
    """What one measurement is of."""

    mode: str
    alpha: float
    seed: int
    rounds: int


def measure(place: Place) -> dict[str, dict[str, float]]:
    """By answer, the numbers of both plans and their ratios for one α on one graph."""
    mode, alpha, seed, rounds = place
    graph = topology.random(AGENTS, CONNECTION, seed)
    rates = schedules.learning_rates(1.0, rounds, "none")
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    plans = [protocol(alpha).plan(graph, schedule, np.ones(AGENTS), seed) for protocol in PROTOCOLS[mode]]
    (plain, plain_own), (top, top_own) = map(noise_variance, plans)
    found = {}
    for answer in ANSWERS:
        each = [
            answer_kind(answer).observe(plan, exposure(AGENTS, 1.0), Query(allow_slow=True)) for plan in plans
        ]
        claimed = rounds + 1  # μ² of so many fresh releases at unit noise and unit sensitivity
        plain_mu2, top_mu2 = (np.nanmax(seen.worst()) ** 2 / claimed for seen in each)
        found[answer] = {
            "variance": top / plain,
            "plain μ²": plain_mu2,
            "top μ²": top_mu2,
            "equal": top / plain * top_mu2 / plain_mu2,
            "own": top_own / plain_own * top_mu2 / plain_mu2,
            "plain": AGENTS * plain * plain_mu2 / steps_taken(plans[0]) ** 2,
            "top": AGENTS * top * top_mu2 / steps_taken(plans[1]) ** 2,
            "aligned": np.nanmax(each[1].lower) ** 2 / claimed,
        }
    return found


Table = dict[tuple[str, str, float], dict[str, list[float]]]
"""(answer, mode, α) -> each number on each graph."""


def picture(table: Table, path: Path, said: str) -> Path:
    """Bars: the noise in the average by the plain rule and by Top-DP at the same ε; one panel an answer."""
    with house_style():
        figure = Figure(figsize=(10.4, 4.2))
        for axes, answer in zip(figure.subplots(1, 2, sharey=True), ANSWERS, strict=True):
            rows = {alpha: table[answer, "sync", alpha] for alpha in ALPHAS}
            place = np.arange(len(rows))
            for key, colour, shift in (("plain", GREY, -0.2), ("top", BLUE, 0.2)):
                values = np.array([row[key] for row in rows.values()])
                mean, most = values.mean(axis=1), values.max(axis=1)
                reach = np.abs(np.stack([values.min(axis=1), most]) - mean)
                look = {"color": colour, "label": f"{LABELS[key]}, synchronous", "ecolor": INK, "capsize": 3}
                axes.bar(place + shift, mean, 0.36, yerr=reach, **look)
                for x, height, above in zip(place + shift, mean, most, strict=True):
                    axes.text(x, above + 0.06, f"{height:.2f}", ha="center", va="bottom", fontsize=9)
            for key, colour in (("plain", GREY), ("top", BLUE)):
                pairs = best_of({alpha: table[answer, "pairs", alpha] for alpha in ALPHAS}, key)
                label = f"{LABELS[key]}, in pairs (best α): {pairs:.2f}"
                axes.axhline(pairs, color=colour, linestyle=LINES[key], linewidth=1.6, label=label)
            left = {alpha: float(np.mean(row["equal"])) for alpha, row in rows.items()}
            axes.set_xticks(place, [f"α = {alpha:g}\n{times(left[alpha])}" for alpha in rows])
            axes.tick_params(axis="x", length=0)
            axes.set_ylim(0, 5.0)
            axes.grid(axis="x", visible=False)
            axes.set_xlabel("α, the weight of an agent's own estimate")
            best = times(best_of(rows, "top") / best_of(rows, "plain"))
            axes.set_title(f"At the same {answer} ε (best α each: {best})")
            axes.legend(loc="upper left")
        figure.axes[0].set_ylabel("noise variance in the agents' average\nper round (independent noise: 1)")
        figure.supxlabel(said, fontsize=8, color=GREY)
    return save(figure, path)


def times(share: float) -> str:
    """What Top-DP leaves of the noise of the plain rule, in words."""
    return f"{1 / share:.1f} times less" if share < 1 else f"{share:.1f} times more"


def best_of(rows: dict[float, dict[str, list[float]]], method: str) -> float:
    """The least noise of a method over all α: the mean over graphs."""
    return min(float(np.mean(row[method])) for row in rows.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one graph, 40 rounds; no picture unless named")
    parser.add_argument("--graphs", type=int, default=4, help="how many random graphs")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    parser.add_argument(
        "--picture", type=Path, help=f"where the figure goes; {PICTURE.name} in docs/pictures"
    )
    arguments = parser.parse_args()
    graphs, rounds = (1, 40) if arguments.quick else (arguments.graphs, 200)

    out = sys.stderr if arguments.json else sys.stdout
    places = [Place(m, alpha, seed, rounds) for m in PROTOCOLS for alpha in ALPHAS for seed in range(graphs)]
    results = dict(map_in_processes(measure, places, parallel=not arguments.quick))
    table: Table = {}
    for answer in ANSWERS:
        for mode in PROTOCOLS:
            print(f"At equal {answer} ε, {mode}", file=out)
            for alpha in ALPHAS:
                rows = [results[Place(mode, alpha, seed, rounds)][answer] for seed in range(graphs)]
                numbers = {name: [float(row[name]) for row in rows] for name in rows[0]}
                table[answer, mode, alpha] = numbers
                if alpha == ALPHAS[0]:
                    print(f"{'α':>6}" + "".join(f"{name:>18}" for name in numbers), file=out)
                cells = (f"{np.mean(v):.2f} ({min(v):.2f}-{max(v):.2f})" for v in numbers.values())
                print(f"{alpha:>6}" + "".join(f"{cell:>18}" for cell in cells), file=out, flush=True)
    path = arguments.picture or (None if arguments.quick else PICTURE)
    if path is not None:
        said = (
            f"Random graphs of {AGENTS} agents, connection {CONNECTION}, T = {rounds}, full batches; "
            f"mean of {graphs} graphs (whiskers: least, largest)"
        )
        print(f"The figure is {picture(table, path, said)}", file=out)
    if arguments.json:
        settings = {"agents": AGENTS, "connection": CONNECTION, "rounds": rounds, "graphs": graphs}
        listed = [{"answer": a, "mode": m, "alpha": alpha, **row} for (a, m, alpha), row in table.items()]
        print(json.dumps({"settings": settings, "rows": listed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

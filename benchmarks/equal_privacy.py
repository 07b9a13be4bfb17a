"""The gain of Top-DP at equal ε: noise variance in the agents' average, compared with the plain rule.

    python benchmarks/equal_privacy.py [--quick]

For each mode, α and graph, the plans of Top-DP and of the plain rule use the same full-scale σ, full batches
and constant steps. The numbers are computed exactly from the plans: nothing is trained or sampled. There is
one table at equal `view` ε and one at equal `adaptive` ε. Each uses the upper bound for the pair of owner and
observer with the largest loss. The columns are:

`variance`  noise variance that the agents' average accumulates per round, Top-DP over plain, at the same σ;
`plain μ²`, `top μ²`  μ² of the pair with the largest loss, divided by the claimed μ²;
`equal`     `variance` times the ratio of these two: noise variance at the same ε, Top-DP over plain;
`own`       the same for an agent's own estimate instead of the average;
`plain`, `top`  the noise variance itself at the same ε, divided by the square of the share of agents that
            take a step, because in pairs some agents are idle. The unit is the variance that independent
            noise leaves in the average, with one fresh release per agent and round;
`aligned`   μ² of Top-DP for an aligned record, divided by the claimed μ².

The graphs are random, with 30 agents, connection rate 0.2 and T = 200. Each cell has the mean over four
graphs, and in parentheses the smallest and largest value. In the picture, bars show the synchronous mode, and
lines show exchanges in pairs, each at its best α. `--quick` uses one graph and T = 40, and draws no picture.
"""

from __future__ import annotations

import argparse
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
COLOURS = {"plain": GREY, "top": BLUE}
LINE_STYLES = {"plain": "--", "top": ":"}
AGENTS, CONNECTION_RATE = 30, 0.2
FULL_SIZE = (4, 200)  # graphs and rounds
QUICK_SIZE = (1, 40)
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "equal-privacy.png"

# The values of a column on each graph, by column.
Columns = dict[str, list[float]]

# Columns by answer, mode and α.
Table = dict[tuple[str, str, float], Columns]


class Case(NamedTuple):
    mode: str
    alpha: float
    seed: int
    rounds: int


def noise_variance(plan: Plan) -> tuple[float, float]:
    """Return the noise variance per round after the last round: of the agents' average, of an estimate.

    The covariance of all rows follows the plan: P ← W P Wᵀ + B Bᵀ.
    """
    P = np.zeros((plan.rows, plan.rows))
    for r, release in enumerate(plan):
        W, B = np.zeros((plan.rows, plan.rows)), np.zeros((plan.rows, plan.draws))
        if r > 0:
            row, slot = np.nonzero(release.source >= 0)
            np.add.at(W, (row, release.source[row, slot]), release.weight[row, slot])
        row, slot = np.nonzero((release.draw >= 0) & release.exists[:, None])
        np.add.at(B, (row, release.draw[row, slot]), release.std[row, slot])
        P = W @ P @ W.T + B @ B.T
    estimates = P[: plan.agents, : plan.agents]
    return float(estimates.mean() / plan.releases), float(estimates.diagonal().mean() / plan.releases)


def stepping_share(plan: Plan) -> float:
    """Return the share of agents that take a gradient step, as a mean over the rounds."""
    return float(np.mean([plan.carries[r][: plan.agents].mean() for r in range(plan.releases)]))


def measure(case: Case) -> dict[str, dict[str, float]]:
    """Return the columns of one α on one graph, by answer."""
    mode, alpha, seed, rounds = case
    graph = topology.random(AGENTS, CONNECTION_RATE, seed)
    rates = schedules.learning_rates(1.0, rounds, "none")
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    plans = [protocol(alpha).plan(graph, schedule, np.ones(AGENTS), seed) for protocol in PROTOCOLS[mode]]
    (plain, plain_own), (top, top_own) = map(noise_variance, plans)
    columns = {}
    for answer in ANSWERS:
        kind, query = answer_kind(answer), Query(allow_slow=True)
        views = [kind.observe(plan, exposure(AGENTS, 1.0), query) for plan in plans]
        claimed_mu2 = rounds + 1  # of fresh releases with unit noise and unit sensitivity
        plain_mu2, top_mu2 = (np.nanmax(view.worst()) ** 2 / claimed_mu2 for view in views)
        columns[answer] = {
            "variance": top / plain,
            "plain μ²": plain_mu2,
            "top μ²": top_mu2,
            "equal": top / plain * top_mu2 / plain_mu2,
            "own": top_own / plain_own * top_mu2 / plain_mu2,
            "plain": AGENTS * plain * plain_mu2 / stepping_share(plans[0]) ** 2,
            "top": AGENTS * top * top_mu2 / stepping_share(plans[1]) ** 2,
            "aligned": np.nanmax(views[1].lower) ** 2 / claimed_mu2,
        }
    return columns


def picture(table: Table, path: Path, caption: str) -> Path:
    """Draw the noise in the average at the same ε as bars, with one panel for each answer."""
    with house_style():
        figure = Figure(figsize=(10.4, 4.2))
        for axes, answer in zip(figure.subplots(1, 2, sharey=True), ANSWERS, strict=True):
            rows = {alpha: table[answer, "sync", alpha] for alpha in ALPHAS}
            positions = np.arange(len(rows))
            for key, shift in (("plain", -0.2), ("top", 0.2)):
                values = np.array([row[key] for row in rows.values()])
                mean, largest = values.mean(axis=1), values.max(axis=1)
                whiskers = np.abs(np.stack([values.min(axis=1), largest]) - mean)
                axes.bar(
                    positions + shift, mean, 0.36, yerr=whiskers, color=COLOURS[key], ecolor=INK, capsize=3,
                    label=f"{LABELS[key]}, synchronous",
                )  # fmt: skip
                for x, height, top in zip(positions + shift, mean, largest, strict=True):
                    axes.text(x, top + 0.06, f"{height:.2f}", ha="center", va="bottom", fontsize=9)
            for key, colour in COLOURS.items():
                pairs = best_mean({alpha: table[answer, "pairs", alpha] for alpha in ALPHAS}, key)
                label = f"{LABELS[key]}, in pairs (best α): {pairs:.2f}"
                axes.axhline(pairs, color=colour, linestyle=LINE_STYLES[key], linewidth=1.6, label=label)
            ratios = {alpha: comparison(float(np.mean(row["equal"]))) for alpha, row in rows.items()}
            axes.set_xticks(positions, [f"α = {alpha:g}\n{ratio}" for alpha, ratio in ratios.items()])
            axes.tick_params(axis="x", length=0)
            axes.set_ylim(0, 5.0)
            axes.grid(axis="x", visible=False)
            axes.set_xlabel("α, the weight of an agent's own estimate")
            best = comparison(best_mean(rows, "top") / best_mean(rows, "plain"))
            axes.set_title(f"At the same {answer} ε (best α: {best})")
            axes.legend(loc="upper left")
        figure.axes[0].set_ylabel("noise variance in the agents' average\nper round (independent noise: 1)")
        figure.supxlabel(caption, fontsize=8, color=GREY)
    return save(figure, path)


def comparison(ratio: float) -> str:
    """Return the noise of Top-DP over that of the plain rule, in words.

    >>> comparison(0.5), comparison(1.25)
    ('2.0 times less', '1.2 times more')
    """
    return f"{1 / ratio:.1f} times less" if ratio < 1 else f"{ratio:.1f} times more"


def best_mean(rows: dict[float, Columns], key: str) -> float:
    """Return the smallest noise over all α, where the noise is a mean over graphs."""
    return min(float(np.mean(row[key])) for row in rows.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one graph and 40 rounds, no picture")
    options = parser.parse_args()
    graphs, rounds = QUICK_SIZE if options.quick else FULL_SIZE
    cases = [
        Case(mode, alpha, seed, rounds) for mode in PROTOCOLS for alpha in ALPHAS for seed in range(graphs)
    ]
    results = dict(map_in_processes(measure, cases, parallel=not options.quick))
    table: Table = {}
    for answer in ANSWERS:
        for mode in PROTOCOLS:
            print(f"At equal {answer} ε, {mode}")
            for alpha in ALPHAS:
                rows = [results[Case(mode, alpha, seed, rounds)][answer] for seed in range(graphs)]
                columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
                table[answer, mode, alpha] = columns
                if alpha == ALPHAS[0]:
                    print(f"{'α':>6}" + "".join(f"{name:>18}" for name in columns))
                cells = (f"{np.mean(v):.2f} ({min(v):.2f}-{max(v):.2f})" for v in columns.values())
                print(f"{alpha:>6}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
    if not options.quick:
        caption = (
            f"Random graphs of {AGENTS} agents, connection rate {CONNECTION_RATE}, T = {rounds}, "
            f"full batches; mean of {graphs} graphs (whiskers: smallest, largest)"
        )
        print(f"The figure is {picture(table, PICTURE, caption)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

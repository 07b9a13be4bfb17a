"""What Top-DP gains at equal true privacy: its noise in the agents' average, beside that of the plain rule.

    python benchmarks/equal_privacy.py [--quick] [--json] [--picture FILE]

For every α and graph both plans are written with the same full-scale σ, full batches and constant steps, and
these exact numbers are taken from them, no training and no sampling:

`variance`  the noise variance that the agents' average gathers per round, top over plain;
`mu2`       the μ² of the worst pair (any agent against any other), top over plain, by `view`'s sound bound;
`equal`     variance · mu2: what is left of the noise when σ is chosen so that both have the same view ε;
`own`       the same as `equal`, for an agent's own estimate instead of the average;
`plain at ε`, `top at ε`  the variance itself at the same view ε, so that different α can be compared; the
            unit is what independent noises leave in their average, one fresh release of each a round;
`aligned`   μ² of top over the claimed μ², reached by a record whose gradients all point one way;
`plain μ²`  μ² of the plain rule over the claimed μ², by the sound bound.

Random graphs of 30 agents, connection 0.2, T = 200; the mean over the graphs, and the least and the largest.
`--quick` takes one graph and T = 40, and draws no picture unless one is named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from matplotlib.figure import Figure

from topdp import topology
from topdp.plan import Plan, schedules
from topdp.privacy.basics.exposure import exposure
from topdp.privacy.observers.view import view
from topdp.protocols import PlainSynchronous, TopSynchronous
from topdp.report.style import BLUE, GREY, INK, house_style, save

ALPHAS = (0.75, 0.5, 0.25, 0.125)
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


def measure(alpha: float, seed: int, rounds: int) -> dict[str, float]:
    """The ratios top over plain for one α on one graph."""
    graph = topology.random(AGENTS, CONNECTION, seed)
    rates = schedules.learning_rates(1.0, rounds, "none")
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    found = []
    for protocol in (PlainSynchronous, TopSynchronous):
        plan = protocol(alpha).plan(graph, schedule, np.ones(AGENTS), seed)
        seen = view(plan, exposure(AGENTS, 1.0), owners="all")
        assert seen.upper is not None
        claimed = plan.releases  # μ² of so many fresh releases at unit noise and unit sensitivity
        found.append(
            [
                *noise_variance(plan),
                np.nanmax(seen.upper) ** 2 / claimed,
                np.nanmax(seen.lower) ** 2 / claimed,
            ]
        )
    plain, top = np.array(found)
    average, own, sound, _ = top / plain
    return {
        "variance": average,
        "mu2": sound,
        "equal": average * sound,
        "own": own * sound,
        "plain at ε": AGENTS * plain[0] * plain[2],
        "top at ε": AGENTS * top[0] * top[2],
        "aligned": top[3],
        "plain μ²": plain[2],
    }


def picture(table: dict[float, dict[str, list[float]]], path: Path, said: str) -> Path:
    """Bars: the noise in the average by the plain rule and by Top-DP, both at the same view ε."""
    with house_style():
        figure = Figure(figsize=(6.4, 4.2))
        axes = figure.subplots()
        place = np.arange(len(table))
        for key, label, colour, shift in (
            ("plain at ε", "plain rule", GREY, -0.2),
            ("top at ε", "Top-DP", BLUE, 0.2),
        ):
            values = np.array([row[key] for row in table.values()])
            mean = values.mean(axis=1)
            reach = np.abs(np.stack([values.min(axis=1), values.max(axis=1)]) - mean)
            axes.bar(place + shift, mean, 0.36, color=colour, label=label, yerr=reach, ecolor=INK, capsize=3)
            for x, height, top in zip(place + shift, mean, values.max(axis=1), strict=True):
                axes.text(x, top + 0.06, f"{height:.2f}", ha="center", va="bottom", fontsize=9)
        gain = {alpha: 1 / np.mean(row["equal"]) for alpha, row in table.items()}
        axes.set_xticks(place, [f"α = {alpha:g}\n{gain[alpha]:.1f} times less" for alpha in table])
        axes.tick_params(axis="x", length=0)
        axes.set_ylim(0, 5.0)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("α, the weight of an agent's own estimate")
        axes.set_ylabel("noise variance in the agents' average\nper round (independent noise: 1)")
        best = min(np.mean(row["plain at ε"]) for row in table.values()) / min(
            np.mean(row["top at ε"]) for row in table.values()
        )
        axes.set_title(
            f"At the same view ε: {min(gain.values()):.1f} to {max(gain.values()):.1f} times less noise "
            f"(best α each: {best:.1f})"
        )
        axes.legend(loc="upper left")
        figure.supxlabel(said, fontsize=8, color=GREY)
    return save(figure, path)


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
    table: dict[float, dict[str, list[float]]] = {}
    for alpha in ALPHAS:
        rows = [measure(alpha, seed, rounds) for seed in range(graphs)]
        table[alpha] = {name: [float(row[name]) for row in rows] for name in rows[0]}
        if len(table) == 1:
            print(f"{'α':>6}" + "".join(f"{name:>18}" for name in table[alpha]), file=out)
        cells = (f"{np.mean(v):.2f} ({min(v):.2f}-{max(v):.2f})" for v in table[alpha].values())
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
        print(json.dumps({"settings": settings, "alpha": {str(alpha): row for alpha, row in table.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

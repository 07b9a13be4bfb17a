"""Accuracy of honest agents for several shares of hostile agents, robust rules and attacks, at the same ε.

    python benchmarks/byzantine.py --job scattering --out results     # on a GPU: minutes
    python benchmarks/byzantine.py --job pixels --out results         # on two cores: an hour
    python benchmarks/byzantine.py --job ring --out results           # one hostile agent of six
    python benchmarks/byzantine.py --job pixels --out results --minutes 0    # only draw results again

All runs use MNIST, with noise calibrated to the adaptive ε of their plans. The number of hostile rows that a
rule tolerates is set once, independently of the number of hostile agents. The results go to a CSV file; runs
that are in this file are not repeated. A table and a picture are made from it.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from topdp.plan.noise_key import NoiseKey
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.config import RunConfig, parse
from topdp.runs.pictures.chart_style import BLUE, GREEN, GREY, RED, house_style, percent_axis, save
from topdp.runs.pictures.learning_curves import coinciding, heading, joined_label
from topdp.runs.planning import plan_and_account
from topdp.runs.run_stacks import Dealer

RULES = ("mean", "clipped", "trimmed", "nearest")
ATTACKS = ("sign-flip", "large-norm", "drift", "label-flip", "a-little", "random")
RULE_STYLES = {"mean": (GREY, "s"), "clipped": (BLUE, "o"), "trimmed": (RED, "^"), "nearest": (GREEN, "D")}


@dataclass(frozen=True)
class Job:
    """The configuration of the runs, and the shares, budgets and seeds that are varied."""

    settings: dict[str, Any]
    tolerated: int  # the number of hostile rows for which the rules are set
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    budgets: tuple[float, ...] = (4.0,)
    seeds: tuple[int, ...] = (0, 1, 2)
    hostile_agents: list[int] | None = None  # None: the seed chooses them


METHOD = {"name": "muffliato", "gossip": 1, "chebyshev": False}
THIRTY_AGENTS = {"kind": "regular", "agents": 30, "degree": 14}
JOBS = {
    "scattering": Job(
        {
            "rounds": 30, "topology": THIRTY_AGENTS, "method": METHOD, "privacy": {"clip": 0.5},
            "data": {"features": "scattering"}, "model": {"name": "linear"},
            "train": {"learning_rate": 108.0, "evaluate_every": 1000},
        },
        tolerated=5, budgets=(1.0, 4.0),
    ),
    "pixels": Job(
        {
            "rounds": 30, "topology": THIRTY_AGENTS, "method": METHOD, "privacy": {"clip": 4.0},
            "model": {"name": "linear"},
            "train": {"learning_rate": 1.0, "evaluate_every": 1000},
        },
        tolerated=5,
    ),
    "ring": Job(
        {
            "rounds": 30, "topology": {"kind": "ring", "agents": 6}, "method": METHOD,
            "privacy": {"clip": 4.0}, "data": {"records": 2000}, "model": {"name": "linear"},
            "train": {"learning_rate": 1.0, "evaluate_every": 1000},
        },
        tolerated=1, shares=(0.0, 1 / 6), hostile_agents=[0],
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", choices=JOBS, default="pixels")
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder of the results")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="start no more runs after this time"
    )
    options = parser.parse_args()
    job, file = JOBS[options.job], options.out / f"byzantine-{options.job}.csv"
    rows = read_rows(file)
    deadline = time.monotonic() + 60 * options.minutes
    if options.minutes > 0:
        for row in missing_rows(job, rows):
            rows.append(row)
            write_rows(rows, file)
            print(*row.values(), flush=True)
            if time.monotonic() > deadline:
                break
    for budget in job.budgets:
        draw(rows, job, budget, options.out / f"byzantine-{options.job}-{budget:g}.png")
    file.with_suffix(".md").write_text(table(rows, job))


def missing_rows(job: Job, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Execute the runs that are not in `rows`; yield their results."""
    keys = ("attack", "share", "rule", "seed", "budget")
    finished = {tuple(str(row[key]) for key in keys) for row in rows}
    dealer = Dealer(choose_device("auto"))
    for seed in job.seeds:
        for budget in job.budgets:
            planned: dict[str, Any] = {}  # assembly, plan and account by rule; all attacks share them
            for share, attack, rule in cases(job):
                if (attack, f"{share:.3g}", rule, str(seed), f"{budget:g}") in finished:
                    continue
                if rule not in planned:
                    (assembly,) = dealer.assemblies([config_of(job, seed, budget, rule)])
                    planned[rule] = assembly, *plan_and_account(assembly.run)
                assembly, plan, account = planned[rule]
                accuracies, hostile_neighbours = execute(assembly, plan, attack, share, job)
                yield {
                    "attack": attack, "share": f"{share:.3g}", "rule": rule, "seed": seed,
                    "budget": f"{budget:g}", "epsilon": f"{account.adaptive.largest:.4f}",
                    "accuracy": f"{np.nanmean(accuracies):.4f}", "least": f"{np.nanmin(accuracies):.4f}",
                    "most_hostile_neighbours": hostile_neighbours,
                }  # fmt: skip


def cases(job: Job) -> Iterator[tuple[float, str, str]]:
    """Yield (share, attack, rule), the shares near 0.2 first."""
    yield from ((0.0, "none", rule) for rule in RULES)
    for share in sorted(filter(None, job.shares), key=lambda share: abs(share - 0.2)):
        yield from ((share, attack, rule) for attack in ATTACKS for rule in RULES)


def config_of(job: Job, seed: int, budget: float, rule: str) -> RunConfig:
    settings = job.settings | {"seed": seed, "robust": {"rule": rule, "hostile": job.tolerated}}
    settings["privacy"] = settings["privacy"] | {"epsilon": budget}
    return parse(settings)


def execute(assembly: Assembly, plan: Any, attack: str, share: float, job: Job) -> tuple[Any, int]:
    """Return the final accuracies, NaN for hostile agents, and the largest number of hostile neighbours.

    The number is the largest over honest agents.
    """
    changes = {"name": attack, "share": share, "agents": job.hostile_agents if share else None}
    config = assembly.run.config
    config = config.model_copy(update={"attack": config.attack.model_copy(update=changes)})
    attacked = replace(assembly, run=replace(assembly.run, config=config))
    engine = attacked.engine(plan, NoiseKey.of_seed(config.seed))
    state = engine.start(assembly.start)
    while state.releases < plan.releases:
        state = engine.advance(state)
    hostile = [] if attacked.attack is None else list(attacked.attack.hostile)
    hostile_neighbours = assembly.run.graph.adjacency[:, hostile].sum(axis=1)
    return engine.evaluate(state).accuracy, int(np.delete(hostile_neighbours, hostile).max(initial=0))


def read_rows(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8") as text:
        return list(csv.DictReader(text))


def write_rows(rows: list[dict[str, Any]], file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def mean_accuracy(
    rows: list[dict[str, Any]], budget: float, attack: str, share: float, rule: str
) -> float | None:
    """Return the mean accuracy over seeds in percent; None if there is no run."""
    attack_and_share = ("none", "0") if share == 0 else (attack, f"{share:.3g}")
    wanted = (*attack_and_share, rule, f"{budget:g}")
    accuracies = [
        100 * float(row["accuracy"])
        for row in rows
        if (row["attack"], row["share"], row["rule"], row["budget"]) == wanted
    ]
    return float(np.mean(accuracies)) if accuracies else None


def draw(rows: list[dict[str, Any]], job: Job, budget: float, file: Path) -> None:
    """Draw accuracy against the share of hostile agents, with one panel for each attack."""
    with house_style():
        figure = Figure(figsize=(9.0, 5.2))
        axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
        for panel, attack in zip(axes, ATTACKS, strict=True):
            lines: dict[str, list[Any]] = {}
            for rule in RULES:
                means = [
                    (100 * share, mean_accuracy(rows, budget, attack, share, rule)) for share in job.shares
                ]
                points = [(share, percent / 100) for share, percent in means if percent is not None]
                lines[rule] = list(zip(*points or [((), ())], strict=True))
                colour, marker = RULE_STYLES[rule]
                panel.plot(*lines[rule], color=colour, marker=marker, label=rule, clip_on=False, zorder=3)
            hidden = [joined_label(same) for same in coinciding(lines).values() if len(same) > 1]
            panel.set_title(f"{attack} ({', '.join(hidden)})" if hidden else attack, fontsize=9)
            panel.set_ylim(0, 1)
            percent_axis(panel)
        figure.supxlabel("hostile agents (%)", fontsize=10)
        figure.supylabel("mean accuracy of honest agents", fontsize=10)
        config = config_of(job, 0, budget, "mean")
        seeds = f"{len(job.seeds)} seeds" if len(job.seeds) > 1 else "1 seed"
        features = [] if config.data.features == "none" else [config.data.features]
        model = " on ".join([config.model.name, *features])
        title = heading([config], [config.topology.agents])
        figure.suptitle(f"{title}\n{config.method.name}, {model}, {seeds}", fontsize=10, x=0.01, ha="left")
        figure.axes[0].legend(loc="lower left")
        save(figure, file)


def table(rows: list[dict[str, Any]], job: Job) -> str:
    """Return a table with one line for each budget, attack and share; the line without attack is first."""
    lines = ["| ε | attack | hostile | " + " | ".join(RULES) + " |", "|---|---|---|" + "---|" * len(RULES)]
    for budget in job.budgets:
        attacked = [(attack, share) for attack in ATTACKS for share in job.shares if share]
        for attack, share in [("none", 0.0), *attacked]:
            means = [mean_accuracy(rows, budget, attack, share, rule) for rule in RULES]
            if any(mean is not None for mean in means):
                cells = " | ".join("" if mean is None else f"{mean:.1f}" for mean in means)
                lines.append(f"| {budget:g} | {attack} | {100 * share:.0f}% | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

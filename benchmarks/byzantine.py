"""Accuracy of honest agents against the share of hostile ones, by robust rule and attack, at the same ε.

    python benchmarks/byzantine.py --job scattering --out results     # a GPU: minutes
    python benchmarks/byzantine.py --job pixels --out results         # two cores: an hour
    python benchmarks/byzantine.py --job ring --out results           # one hostile of six, before and after
    python benchmarks/byzantine.py --job pixels --out results --redraw

Every run is of MNIST, with noise calibrated to the adaptive ε of its plan. The rule is set once, before
anybody knows how many are hostile. Lines of the CSV file that are there are not run again.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.config import RunConfig, parse
from topdp.runs.pictures.chart_style import BLUE, GREEN, GREY, RED, house_style, percent_axis, save
from topdp.runs.pictures.learning_curves import coinciding, heading, joined_label
from topdp.runs.planning import plan_and_account
from topdp.runs.run_stacks import Dealer

RULES = ("mean", "clipped", "trimmed", "nearest")
ATTACKS = ("sign-flip", "large-norm", "drift", "label-flip", "a-little", "random")
LOOKS = {"mean": (GREY, "s"), "clipped": (BLUE, "o"), "trimmed": (RED, "^"), "nearest": (GREEN, "D")}


@dataclass(frozen=True)
class Job:
    """What is run, for which shares, budgets and seeds; `hostile`: what the rules are set to."""

    settings: dict[str, Any]
    hostile: int
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    budgets: tuple[float, ...] = (4.0,)
    seeds: tuple[int, ...] = (0, 1, 2)
    agents: list[int] | None = field(default=None)  # who is hostile; None: the seed chooses


METHOD = {"name": "muffliato", "gossip": 1, "chebyshev": False}
MANY = {"kind": "regular", "agents": 30, "degree": 14}
JOBS = {
    "scattering": Job(
        {
            "rounds": 30, "topology": MANY, "method": METHOD, "privacy": {"clip": 0.5},
            "data": {"features": "scattering"}, "model": {"name": "linear"},
            "train": {"learning_rate": 108.0, "evaluate_every": 1000},
        },
        hostile=5, budgets=(1.0, 4.0),
    ),
    "pixels": Job(
        {
            "rounds": 30, "topology": MANY, "method": METHOD, "privacy": {"clip": 4.0},
            "model": {"name": "linear"},
            "train": {"learning_rate": 1.0, "evaluate_every": 1000},
        },
        hostile=5,
    ),
    "ring": Job(
        {
            "rounds": 30, "topology": {"kind": "ring", "agents": 6}, "method": METHOD,
            "privacy": {"clip": 4.0}, "data": {"records": 2000}, "model": {"name": "linear"},
            "train": {"learning_rate": 1.0, "evaluate_every": 1000},
        },
        hostile=1, shares=(0.0, 1 / 6), agents=[0],
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", choices=JOBS, default="pixels")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no more runs after so many"
    )
    parser.add_argument("--redraw", action="store_true", help="table and picture alone, from the CSV file")
    given = parser.parse_args()
    job, file = JOBS[given.job], given.out / f"byzantine-{given.job}.csv"
    rows = read(file)
    if not given.redraw:
        until = time.monotonic() + 60 * given.minutes
        for row in measured(given.job, job, given.device, rows):
            rows.append(row)
            write(rows, file)
            print(*row.values(), flush=True)
            if time.monotonic() > until:
                break
    for budget in job.budgets:
        draw(rows, job, budget, given.out / f"byzantine-{given.job}-{budget:g}.png")
    file.with_suffix(".md").write_text(table(rows, job))


def measured(name: str, job: Job, device: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is not in `rows` yet: plan by plan, each with all attacks."""
    done = {tuple(str(row[key]) for key in ("attack", "share", "rule", "seed", "budget")) for row in rows}
    dealer = Dealer(choose_device(device))
    for seed in job.seeds:
        for budget in job.budgets:
            planned: dict[str, Any] = {}
            for share, attack, rule in cases(job):
                if (attack, f"{share:.3g}", rule, str(seed), f"{budget:g}") in done:
                    continue
                if rule not in planned:
                    (parts,) = dealer.assemblies([config_of(job, seed, budget, rule)])
                    planned[rule] = parts, *plan_and_account(parts.run)
                parts, plan, account = planned[rule]
                accuracies, nearby = run(parts, plan, attack, share, job)
                yield {
                    "attack": attack, "share": f"{share:.3g}", "rule": rule, "seed": seed,
                    "budget": f"{budget:g}", "epsilon": f"{account.adaptive.largest:.4f}",
                    "accuracy": f"{np.nanmean(accuracies):.4f}", "least": f"{np.nanmin(accuracies):.4f}",
                    "most_hostile_neighbours": nearby,
                }  # fmt: skip


def cases(job: Job) -> Iterator[tuple[float, str, str]]:
    """(share, attack, rule): what matters most first."""
    yield from ((0.0, "none", rule) for rule in RULES)
    for share in sorted(filter(None, job.shares), key=lambda share: abs(share - 0.2)):
        yield from ((share, attack, rule) for attack in ATTACKS for rule in RULES)


def config_of(job: Job, seed: int, budget: float, rule: str) -> RunConfig:
    settings = job.settings | {"seed": seed, "robust": {"rule": rule, "hostile": job.hostile}}
    settings["privacy"] = settings["privacy"] | {"epsilon": budget}
    return parse(settings)


def run(parts: Assembly, plan: Any, attack: str, share: float, job: Job) -> tuple[Any, int]:
    """Final accuracies, NaN of hostile agents; and the most hostile neighbours that an honest agent has."""
    update = {"name": attack, "share": share, "agents": job.agents if share else None}
    config = parts.run.config.model_copy(update={"attack": parts.run.config.attack.model_copy(update=update)})
    attacked = replace(parts, run=replace(parts.run, config=config))
    engine = attacked.engine(plan)
    state = engine.start(parts.start)
    while state.releases < plan.releases:
        state = engine.advance(state)
    chosen = attacked.attack
    hostile = [] if chosen is None else list(chosen.hostile)
    near = parts.run.graph.adjacency[:, hostile].sum(axis=1)
    return engine.evaluate(state).accuracy, int(np.delete(near, hostile).max(initial=0))


def read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8") as text:
        return list(csv.DictReader(text))


def write(rows: list[dict[str, Any]], file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def mean_of(rows: list[dict[str, Any]], budget: float, attack: str, share: float, rule: str) -> float | None:
    key = ("none", "0") if share == 0 else (attack, f"{share:.3g}")
    found = [
        100 * float(row["accuracy"])
        for row in rows
        if (row["attack"], row["share"], row["rule"], row["budget"]) == (*key, rule, f"{budget:g}")
    ]
    return float(np.mean(found)) if found else None


def draw(rows: list[dict[str, Any]], job: Job, budget: float, file: Path) -> None:
    with house_style():
        figure = Figure(figsize=(9.0, 5.2))
        axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
        for panel, attack in zip(axes, ATTACKS, strict=True):
            lines: dict[str, list[Any]] = {}
            for rule in RULES:
                found = [(100 * s, mean_of(rows, budget, attack, s, rule)) for s in job.shares]
                points = [(share, percent / 100) for share, percent in found if percent is not None]
                lines[rule] = list(zip(*points or [((), ())], strict=True))
                colour, marker = LOOKS[rule]
                panel.plot(*lines[rule], color=colour, marker=marker, label=rule, clip_on=False, zorder=3)
            hidden = [joined_label(same) for same in coinciding(lines).values() if len(same) > 1]
            panel.set_title(f"{attack} ({', '.join(hidden)})" if hidden else attack, fontsize=9)
            panel.set_ylim(0, 1)
            percent_axis(panel)
        figure.supxlabel("hostile agents (%)", fontsize=10)
        figure.supylabel("mean accuracy of honest agents", fontsize=10)
        config = config_of(job, 0, budget, "mean")
        seeds = f"{len(job.seeds)} seeds" if len(job.seeds) > 1 else "1 seed"
        model = " on ".join([config.model.name, *[config.data.features][: config.data.features != "none"]])
        title = heading([config], [config.topology.agents])
        figure.suptitle(f"{title}\n{config.method.name}, {model}, {seeds}", fontsize=10, x=0.01, ha="left")
        figure.axes[0].legend(loc="lower left")
        save(figure, file)


def table(rows: list[dict[str, Any]], job: Job) -> str:
    """One line a budget, attack and share; the clean run with the mean first."""
    lines = ["| ε | attack | hostile | " + " | ".join(RULES) + " |", "|---|---|---|" + "---|" * len(RULES)]
    for budget in job.budgets:
        cases = [("none", 0.0), *((attack, share) for attack in ATTACKS for share in job.shares if share)]
        for attack, share in cases:
            found = [mean_of(rows, budget, attack, share, rule) for rule in RULES]
            if any(value is not None for value in found):
                words = " | ".join("" if value is None else f"{value:.1f}" for value in found)
                lines.append(f"| {budget:g} | {attack} | {100 * share:.0f}% | {words} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

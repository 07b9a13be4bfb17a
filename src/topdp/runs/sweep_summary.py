"""Results of a sweep over its seeds: numbers, CSV files, and the privacy cost of all its runs together.

Each run has one value of a metric, its mean over agents. A spread is the mean of these values over seeds,
their sample standard deviation (none for one seed), and the number of runs. Runs that diverged are not part
of a spread, and tables name them.

**Guarantees.** ε of all runs together is an upper bound under the same adjacency and observers as the ε of
each run. Gaussian differential privacy composes, μ² = Σ μ_i² (Dong, Roth and Su 2022, Corollary 3.3), even if
the results of a run decide the settings of the next, because the noise of different runs is independent: each
has its own key. If a run has a noise seed, nothing is promised: runs with equal draws reveal records by their
difference. `view` and `claimed` are no guarantees that compose; the worst case is used instead of them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from topdp.base.files import write_atomically
from topdp.base.number_text import rounded_up
from topdp.privacy.answers import answer_kind, proved_kind
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.runs.config import REDRAWABLE_NOISE
from topdp.runs.epsilon_text import epsilon_text
from topdp.runs.metric_labels import evaluated_names


@dataclass(frozen=True)
class Spread:
    """The runs with one combination of settings: the values of the keys, and the results for each seed."""

    chosen: dict[str, str]
    runs: list[Mapping[str, Any]] = field(repr=False)  # the results of `runs.sweep.results_of`, with `seed`

    @property
    def label(self) -> str:
        return label_of(self.chosen)

    @property
    def done(self) -> list[Mapping[str, Any]]:
        return [run for run in self.runs if run["state"] == "done"]

    def values(self, metric: str) -> list[float]:
        """Return the mean of `metric` over agents for each seed whose run is done and has a finite mean."""
        means = [run["metrics"][metric]["mean"] for run in self.done if run["metrics"]]
        return [float(value) for value in means if value is not None]

    def of(self, metric: str) -> dict[str, float | int | None]:
        """Return the mean and standard deviation of `metric` over seeds, and their number n."""
        return spread_of(self.values(metric))

    def epsilon(self, answer: str) -> str:
        """Return ε as text: one number if it is the same for all seeds, and otherwise the range."""
        texts = [epsilon_text(run["privacy"], answer) for run in self.runs]
        limits = (min(texts, key=_order), max(texts, key=_order))
        return " to ".join(dict.fromkeys(limits))


def short_key(key: str) -> str:
    """Return the last part of a key that tells what it sets.

    >>> short_key("privacy.epsilon"), short_key("method.name"), short_key("rounds")
    ('epsilon', 'method', 'rounds')
    """
    return key.removesuffix(".name").rpartition(".")[2]


def label_of(chosen: Mapping[str, str]) -> str:
    """Return the chosen values as text.

    >>> label_of({"method.name": "top", "privacy.epsilon": "2"})
    'top, epsilon = 2'
    """
    named = {
        key: value if key.endswith(".name") else f"{short_key(key)} = {value}"
        for key, value in chosen.items()
    }
    return ", ".join(named.values())


def spread_of(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return the mean of `values`, their sample standard deviation and their number; None if undefined.

    >>> spread_of([0.5, 0.7])
    {'mean': 0.6, 'deviation': 0.14142135623730948, 'n': 2}
    >>> spread_of([0.5])
    {'mean': 0.5, 'deviation': None, 'n': 1}
    """
    if not values:
        return {"mean": None, "deviation": None, "n": 0}
    return {
        "mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else None, "n": len(values)
    }  # fmt: skip


def metric_names(spreads: Sequence[Spread]) -> list[str]:
    """Return the names of the metrics with one number per agent, in the order of the first evaluated run."""
    for spread in spreads:
        for run in spread.done:
            if run["metrics"]:
                line = run["metrics"]
                return [name for name in evaluated_names(line) if not isinstance(line[name]["mean"], list)]
    return []


def summaries(spreads: Sequence[Spread]) -> list[dict[str, Any]]:
    """Return the points of `topdp sweep --json`."""
    metrics = metric_names(spreads)
    run_keys = ("run", "seed", "noise_seed", "state", "seconds")
    return [
        {
            "chosen": spread.chosen,
            "metrics": {name: spread.of(name) for name in metrics},
            "runs": [
                {
                    **{key: run[key] for key in run_keys},
                    "metrics": {name: run["metrics"][name] for name in metrics} if run["metrics"] else None,
                    "epsilon": run["privacy"]["epsilon"],
                }
                for run in spread.runs
            ],
        }
        for spread in spreads
    ]


def write_csv(spreads: Sequence[Spread], place: Path) -> None:
    """Write runs.csv, with a line per run, and sweep.csv, with a line per combination and its spread."""
    metrics, keys = metric_names(spreads), list(spreads[0].chosen)
    answers = list(spreads[0].runs[0]["privacy"]["epsilon"])
    of_answers = [f"epsilon_{name}" for name in answers]
    run_lines: list[list[Any]] = [
        ["run", *keys, "seed", "noise_seed", "state", *metrics, *of_answers, "seconds"]
    ]
    spread_lines: list[list[Any]] = [
        [*keys, "n", *(f"{name}_{part}" for name in metrics for part in ("mean", "deviation"))]
    ]
    spread_lines[0] += of_answers
    for spread in spreads:
        for run in spread.runs:
            values = [run["metrics"][name]["mean"] if run["metrics"] else None for name in metrics]
            epsilons = [run["privacy"]["epsilon"][name] for name in answers]
            seeds = [run["seed"], run["noise_seed"]]
            line = [Path(run["run"]).name, *spread.chosen.values(), *seeds, run["state"], *values]
            run_lines.append([*line, *epsilons, run["seconds"]])
        of_metrics = [spread.of(name) for name in metrics]
        numbers = [number for part in of_metrics for number in (part["mean"], part["deviation"])]
        largest = [_largest([run["privacy"]["epsilon"][name] for run in spread.runs]) for name in answers]
        spread_lines.append([*spread.chosen.values(), len(spread.done), *numbers, *largest])
    for name, lines in (("runs.csv", run_lines), ("sweep.csv", spread_lines)):
        write_csv_lines(place / name, lines)


def write_csv_lines(path: Path, lines: Iterable[Iterable[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_atomically(path, text.getvalue())


def cost_together(spreads: Sequence[Spread]) -> str:
    """Return text that states the privacy cost of a choice among these runs, if their records are private."""
    runs = [run["privacy"] for spread in spreads for run in spread.runs]
    guarantees = {run["guarantee"] for run in runs}
    named = guarantees.pop() if len(guarantees) == 1 else None
    kind = proved_kind(None if named is None else answer_kind(named))
    redrawable = any(run["noise_seed"] is not None for spread in spreads for run in spread.runs)
    if len(runs) == 1 and redrawable:
        return REDRAWABLE_NOISE
    if len(runs) == 1:
        return "ε is that of this run alone."
    delta = min(float(np.min(run["delta"])) for run in runs)  # every agent's δ is at least this
    mu = [run["mu"][kind.key] for run in runs]
    if redrawable:
        together = "ε without bound, because a noise seed is set, so that anyone can draw the noise again"
    elif len({run["adjacency"] for run in runs}) > 1:
        together = "they have no common ε, because their adjacency differs"
    elif len({run.get("unit", "record") for run in runs}) > 1:
        together = "they have no common ε, because some protect records and others persons"
    elif None not in mu:
        total = float(epsilon_of(math.sqrt(sum(value**2 for value in mu)), delta))
        together = f"ε = {rounded_up(total)} ({kind.label}, δ = {delta:g})"
    else:
        epsilons = [run["epsilon"][kind.key] for run in runs]
        deltas = sum(float(np.max(run["delta"])) for run in runs)
        bounded = None not in epsilons and deltas < 1
        together = (
            f"ε = {rounded_up(sum(epsilons))} ({kind.label}, δ = {deltas:g})"
            if bounded
            else "ε without bound"
        )
    return (
        f"Each ε is that of one run alone. If these records are private, a choice among the {len(runs)} runs "
        f"depends on all of them, even if only the best is published: together {together}. Choose on public "
        "records to pay for one run."
    )


def as_number(value: str) -> float | None:
    """Return the value of a key as a number; None if it is not a number."""
    try:
        return float(value)
    except ValueError:
        return None


def _largest(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return max(finite) if len(finite) == len(values) else None


def _order(text: str) -> float:
    number = as_number(text)
    return math.inf if number is None else number

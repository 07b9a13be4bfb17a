"""Results of a sweep over its seeds: numbers, CSV files, and the privacy cost of all its runs together.

A spread is the mean over seeds of a metric's mean over agents, ± their standard deviation (of a sample, so
none for one seed), and how many runs it is of. Runs that diverged are counted out, and named.

**Guarantees.** ε of all runs together is an upper bound under the same adjacency and observers as each run's
own: Gaussian differential privacy composes, μ² = Σ μ_i² (Dong, Roth and Su 2022, Corollary 3.3), whatever is
chosen from run to run. `view` and `claimed` are no guarantees that compose; the worst case stands for them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from topdp.base.files import write_atomically
from topdp.privacy.answers import WORST_CASE, answer_kind
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.runs.epsilon_text import epsilon_text


@dataclass(frozen=True)
class Spread:
    """The runs of one combination: what was chosen, and what each seed found."""

    chosen: dict[str, str]
    runs: list[Mapping[str, Any]] = field(repr=False)  # as `runs.sweep.results_of` gives them, with `seed`

    @property
    def label(self) -> str:
        return label_of(self.chosen)

    @property
    def done(self) -> list[Mapping[str, Any]]:
        return [run for run in self.runs if run["state"] == "done"]

    def values(self, metric: str) -> list[float]:
        """Return one value for each seed that has one."""
        means = [run["metrics"][metric]["mean"] for run in self.done if run["metrics"]]
        return [float(value) for value in means if value is not None]

    def of(self, metric: str) -> dict[str, float | int | None]:
        """mean, deviation and n over seeds."""
        return spread_of(self.values(metric))

    def epsilon(self, answer: str) -> str:
        """Return one number if it is the same for all seeds, otherwise the range."""
        texts = [epsilon_text(run["privacy"], answer) for run in self.runs]
        ends = (min(texts, key=_order), max(texts, key=_order))
        return " to ".join(dict.fromkeys(ends))


def short_key(key: str) -> str:
    """
    >>> short_key("privacy.epsilon"), short_key("method.name"), short_key("rounds")
    ('epsilon', 'method', 'rounds')
    """
    return key.removesuffix(".name").rpartition(".")[2]


def label_of(chosen: Mapping[str, str]) -> str:
    """
    >>> label_of({"method.name": "top", "privacy.epsilon": "2"})
    'top, epsilon = 2'
    """
    named = {
        key: value if key.endswith(".name") else f"{short_key(key)} = {value}"
        for key, value in chosen.items()
    }
    return ", ".join(named.values())


def spread_of(values: Sequence[float]) -> dict[str, float | int | None]:
    """
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
    """Return the metrics that are one number per agent, in the order of the first run that has any."""
    for spread in spreads:
        for run in spread.done:
            if run["metrics"]:
                metrics = run["metrics"].items()
                return [
                    name for name, value in metrics
                    if isinstance(value, dict) and not isinstance(value.get("mean"), list)
                ]  # fmt: skip
    return []


def summaries(spreads: Sequence[Spread]) -> list[dict[str, Any]]:
    """The points of `topdp sweep --json`."""
    metrics = metric_names(spreads)
    kept = ("run", "seed", "state", "seconds")
    return [
        {
            "chosen": one.chosen,
            "metrics": {name: one.of(name) for name in metrics},
            "runs": [
                {
                    **{key: run[key] for key in kept},
                    "metrics": {name: run["metrics"][name] for name in metrics} if run["metrics"] else None,
                    "epsilon": run["privacy"]["epsilon"],
                }
                for run in one.runs
            ],
        }
        for one in spreads
    ]


def write_csv(spreads: Sequence[Spread], place: Path) -> None:
    """Write runs.csv, with a line per run, and sweep.csv, with a line per combination and its spread."""
    metrics, keys = metric_names(spreads), list(spreads[0].chosen)
    answers = list(spreads[0].runs[0]["privacy"]["epsilon"])
    each: list[list[Any]] = [
        ["run", *keys, "seed", "state", *metrics, *(f"epsilon_{name}" for name in answers), "seconds"]
    ]
    over: list[list[Any]] = [
        [*keys, "n", *(f"{name}_{part}" for name in metrics for part in ("mean", "deviation"))]
    ]
    over[0] += [f"epsilon_{name}" for name in answers]
    for one in spreads:
        for run in one.runs:
            values = [run["metrics"][name]["mean"] if run["metrics"] else None for name in metrics]
            epsilons = [run["privacy"]["epsilon"][name] for name in answers]
            line = [Path(run["run"]).name, *one.chosen.values(), run["seed"], run["state"], *values]
            each.append([*line, *epsilons, run["seconds"]])
        metric_spreads = [one.of(name) for name in metrics]
        numbers = [number for spread in metric_spreads for number in (spread["mean"], spread["deviation"])]
        largest = [_largest([run["privacy"]["epsilon"][name] for run in one.runs]) for name in answers]
        over.append([*one.chosen.values(), len(one.done), *numbers, *largest])
    for name, lines in (("runs.csv", each), ("sweep.csv", over)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        write_atomically(place / name, text.getvalue())


def cost_together(spreads: Sequence[Spread]) -> str:
    """Return a line about the privacy cost of a choice among these runs, if their records are private."""
    runs = [run["privacy"] for spread in spreads for run in spread.runs]
    guarantees = {run["guarantee"] for run in runs}
    named = guarantees.pop() if len(guarantees) == 1 else None
    kind = WORST_CASE if named is None or not answer_kind(named).proved else answer_kind(named)
    if len(runs) == 1:
        return "ε is that of this run alone."
    delta = min(run["delta"] for run in runs)
    mu = [run["mu"][kind.key] for run in runs]
    if len({run["adjacency"] for run in runs}) > 1:
        together = "ε has no one meaning, since their adjacency differs"
    elif None not in mu:
        total = float(epsilon_of(math.sqrt(sum(value**2 for value in mu)), delta))
        together = f"ε = {total:.4g} ({kind.label}, δ = {delta:g})"
    else:
        epsilons = [run["epsilon"][kind.key] for run in runs]
        deltas = sum(run["delta"] for run in runs)
        bounded = None not in epsilons and deltas < 1
        together = f"ε = {sum(epsilons):.4g} ({kind.label}, δ = {deltas:g})" if bounded else "ε without bound"
    return (
        f"Each ε is of one run alone. If these records are private, whatever is chosen among the {len(runs)} "
        f"runs depends on all of them, also where only the best is published: together {together}. Choose on "
        "public records to pay for one run."
    )


def as_number(value: str) -> float | None:
    """A value of a key, where it is a number."""
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

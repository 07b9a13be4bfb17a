"""Sums of (ε, δ) over the runs that a record was in, under either adjacency.

This module computes with numbers only; `site_budget` records the runs of each record and their costs.

**Guarantees.** ε and δ of runs are added (basic composition, which also holds where each run and its budget
are chosen after seeing the earlier ones; Rogers et al. 2016, arXiv:1605.08294). Where a record was in runs
under add-remove and under replace-one, the former count as (2ε, (1+e^ε)δ): replacing is removing and adding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RunCost = tuple[str, float, float]  # adjacency, ε, δ


@dataclass(frozen=True)
class SpentBudget:
    """The sums of ε and δ over runs, and the number of runs."""

    epsilon: float = 0.0
    delta: float = 0.0
    runs: int = 0


def as_replace_one(adjacency: str, epsilon: float, delta: float) -> tuple[float, float]:
    """Return (ε, δ) of a run under replace-one, given its (ε, δ) under `adjacency`.

    >>> as_replace_one("replace-one", 1.0, 1e-5), as_replace_one("add-remove", 0.5, 0.0)
    ((1.0, 1e-05), (1.0, 0.0))
    """
    if adjacency == "replace-one":
        return epsilon, delta
    # Removing and adding: two steps; Dwork and Roth 2014, Theorem 2.2 and the remark on δ.
    factor = 1 + math.exp(epsilon) if epsilon < 700 else math.inf
    return 2 * epsilon, min(1.0, delta * factor) if delta else 0.0


def sum_by_adjacency(costs: list[RunCost]) -> dict[str, SpentBudget]:
    """Map adjacency to what a record in these runs has spent; `mixed` if the runs have both adjacencies."""
    kinds = {adjacency for adjacency, _, _ in costs}
    if len(kinds) > 1:
        costs = [("mixed", *as_replace_one(*cost)) for cost in costs]
    return {
        kind: SpentBudget(
            math.fsum(epsilon for _, epsilon, _ in costs)
            if math.isfinite(max(e for _, e, _ in costs))
            else math.inf,
            math.fsum(delta for *_, delta in costs),
            len(costs),
        )
        for kind in {adjacency for adjacency, _, _ in costs}
    }


def largest_sums(records: list[dict[str, SpentBudget]]) -> dict[str, SpentBudget]:
    """Return for each adjacency (or `mixed`) the largest ε, δ and number of runs over all records."""
    largest: dict[str, SpentBudget] = {}
    for sum_by_adjacency in records:
        for kind, spent in sum_by_adjacency.items():
            other = largest.get(kind, SpentBudget())
            largest[kind] = SpentBudget(
                max(spent.epsilon, other.epsilon), max(spent.delta, other.delta), max(spent.runs, other.runs)
            )
    return largest


def largest_sum_with(before: dict[str, SpentBudget], run: RunCost) -> SpentBudget:
    """Return the largest ε, δ and number of runs after `run` is added.

    `before` maps each adjacency to its largest sums (`largest_sums`).
    """
    adjacency, epsilon, delta = run
    after = [SpentBudget(epsilon, delta, 1)]
    for kind, spent in before.items():
        earlier, own = (spent.epsilon, spent.delta), (epsilon, delta)
        if kind != adjacency:
            # Converting the sums as if they were one run gives at least the sum of the converted runs.
            earlier = earlier if kind == "mixed" else as_replace_one(kind, *earlier)
            own = as_replace_one(adjacency, *own)
        after.append(SpentBudget(earlier[0] + own[0], earlier[1] + own[1], spent.runs + 1))
    return SpentBudget(max(s.epsilon for s in after), max(s.delta for s in after), max(s.runs for s in after))

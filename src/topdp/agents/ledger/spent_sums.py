"""What a record has spent that was in several runs: (ε, δ) added up, under either adjacency.

Numbers only. Which runs a record was in, and what each has cost, is in the `site_book`.

**Guarantees.** ε and δ of runs are added (basic composition, which also holds where each run and its budget
are chosen after seeing the earlier ones; Rogers et al. 2016, arXiv:1605.08294). Where runs under add-remove
and under replace-one meet on a record, the former count as (2ε, (1+e^ε)δ): replacing is removing and adding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Run = tuple[str, float, float]  # adjacency, ε, δ


@dataclass(frozen=True)
class Spent:
    """What the record that has spent most has spent: sums over runs."""

    epsilon: float = 0.0
    delta: float = 0.0
    runs: int = 0


def replacing(adjacency: str, epsilon: float, delta: float) -> tuple[float, float]:
    """(ε, δ) of a run for a record that is replaced by another.

    >>> replacing("replace-one", 1.0, 1e-5), replacing("add-remove", 0.5, 0.0)
    ((1.0, 1e-05), (1.0, 0.0))
    """
    if adjacency == "replace-one":
        return epsilon, delta
    # Removing and adding: two steps; Dwork and Roth 2014, Theorem 2.2 and the remark on δ.
    factor = 1 + math.exp(epsilon) if epsilon < 700 else math.inf
    return 2 * epsilon, min(1.0, delta * factor) if delta else 0.0


def sums(costs: list[Run]) -> dict[str, Spent]:
    """What a record has spent that was in these runs, by adjacency; `mixed` where there are both."""
    kinds = {adjacency for adjacency, _, _ in costs}
    if len(kinds) > 1:
        costs = [("mixed", *replacing(*cost)) for cost in costs]
    return {
        kind: Spent(
            math.fsum(epsilon for _, epsilon, _ in costs)
            if math.isfinite(max(e for _, e, _ in costs))
            else math.inf,
            math.fsum(delta for *_, delta in costs),
            len(costs),
        )
        for kind in {adjacency for adjacency, _, _ in costs}
    }


def most(each: list[dict[str, Spent]]) -> dict[str, Spent]:
    """The largest sums of each kind."""
    found: dict[str, Spent] = {}
    for one in each:
        for kind, spent in one.items():
            other = found.get(kind, Spent())
            found[kind] = Spent(
                max(spent.epsilon, other.epsilon), max(spent.delta, other.delta), max(spent.runs, other.runs)
            )
    return found


def with_one_more(before: dict[str, Spent], run: Run) -> Spent:
    """The largest sums once `run` is let in: each kind of record with this run beside it."""
    adjacency, epsilon, delta = run
    after = [Spent(epsilon, delta, 1)]
    for kind, spent in before.items():
        one, own = (spent.epsilon, spent.delta), (epsilon, delta)
        if kind != adjacency:
            one = one if kind == "mixed" else _replaced(kind, spent)
            own = replacing(adjacency, *own)
        after.append(Spent(one[0] + own[0], one[1] + own[1], spent.runs + 1))
    return Spent(max(s.epsilon for s in after), max(s.delta for s in after), max(s.runs for s in after))


def _replaced(kind: str, spent: Spent) -> tuple[float, float]:
    """Sums as one run: at least what its parts are one by one, since ε is."""
    return replacing(kind, spent.epsilon, spent.delta)

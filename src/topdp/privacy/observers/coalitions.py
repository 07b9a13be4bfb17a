"""The views of coalitions of up to c agents, with a limit on the number of coalitions.

A larger coalition never learns less. So coalitions of exactly c agents cover all smaller coalitions that do
not contain the owner. If there are more than `limit` coalitions, a sample is computed, and the result is
marked as a lower bound on the worst coalition.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from topdp.base.array_types import Floats
from topdp.base.number_checks import expect_count
from topdp.plan import Plan
from topdp.plan.random_streams import stream
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.refusals import PrivacyError, expect_supported
from topdp.privacy.observers.view import View, view, view_reason
from topdp.privacy.query import UNHURRIED_QUERY, Query


@dataclass(frozen=True, eq=False)
class Coalitions:
    """The views of coalitions of `size` agents.

    `possible`: the number of all coalitions of `size` agents. `complete`: whether all are computed.

    **Guarantees.** As `view`, for each coalition. If `complete`, no coalition of up to `size` agents learns
    more than the worst coalition in the view (by the view's upper bound). If not, `worst` is only a lower
    bound, because coalitions outside the sample may learn more.

    >>> from topdp.privacy import coalitions, exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> coalitions(plan, exposed, size=3, limit=10).statement
    '10 of 20 coalitions of 3 agents, sampled: a lower bound on the worst coalition.'
    """

    view: View
    size: int
    complete: bool
    possible: int

    @property
    def statement(self) -> str:
        """A sentence that states which coalitions the numbers cover."""
        number = len(self.view.observers)
        if self.complete:
            return f"All {number} coalitions of {self.size} agents, which cover all smaller ones."
        return (
            f"{number} of {self.possible} coalitions of {self.size} agents, sampled: "
            f"a lower bound on the worst coalition."
        )

    def worst(self) -> tuple[Floats, tuple[tuple[int, ...], ...]]:
        """Return the largest computed μ of each agent, and its coalition (empty if no loss was computed)."""
        return self._largest(self.view.lower if self.view.upper is None else self.view.upper)

    def worst_epsilon(self, delta: ArrayLike) -> tuple[Floats, tuple[tuple[int, ...], ...]]:
        """Return the largest computed sound ε of each agent, with amplification, and its coalition.

        `delta`: one number, or one for each agent.
        """
        return self._largest(self.view.epsilon(delta))

    def _largest(self, losses: Floats) -> tuple[Floats, tuple[tuple[int, ...], ...]]:
        """Return the largest of `losses` [agents, observers] of each agent, and its coalition."""
        ranked = np.where(np.isnan(losses), -1.0, losses)
        largest, best = ranked.max(axis=1), ranked.argmax(axis=1)
        pairs = zip(best, largest, strict=True)
        members = tuple(self.view.observers[b] if loss >= 0 else () for b, loss in pairs)
        return np.where(largest >= 0, largest, np.nan), members


def coalitions(
    plan: Plan,
    exposure: Exposure,
    size: int,
    *,
    limit: int = 1000,
    seed: int = 0,
    bound: Literal["upper", "aligned"] = "aligned",
    query: Query = UNHURRIED_QUERY,
) -> Coalitions:
    """Return the losses of agents to all coalitions of `size` other agents, or to `limit` sampled coalitions.

    A sampled coalition is drawn for one owner: first from the agents that read its rows, and then from all
    other agents. `seed`: of the sample. `bound`, `query`: as in `view`.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> mu, members = coalitions(plan, exposed, size=2).worst()
    >>> round(float(mu[0]), 2), members[0]
    (1.06, (1, 5))
    """
    expect_coalition(size, plan.agents)
    expect_count("limit", limit)
    expect_supported(view_reason(plan))
    possible = math.comb(plan.agents, size)
    complete = possible <= limit
    every = itertools.combinations(range(plan.agents), size)
    chosen = list(every) if complete else _sample(plan, size, limit, seed)
    views = view(plan, exposure, chosen, owners="all", bound=bound, query=query)
    return Coalitions(views, size, complete, possible)


def expect_coalition(size: int, agents: int) -> None:
    """Raise PrivacyError unless `size` is from 1 to `agents` - 1, so that some agent is outside."""
    if agents < 2:
        raise PrivacyError("Expected at least two agents, got one. No other agent observes it.")
    if not 1 <= expect_count("coalition size", size) < agents:
        raise PrivacyError(
            f"Expected coalitions of 1 to {agents - 1} of the {agents} agents, got {size}. At least one "
            "agent must stay outside."
        )


def _sample(plan: Plan, size: int, limit: int, seed: int) -> list[tuple[int, ...]]:
    """Return at most `limit` different coalitions, each drawn for one owner, as `coalitions` states."""
    generator = stream(seed, "coalitions")
    reads = np.zeros((plan.agents, plan.agents), bool)
    for readers in plan.readers.values:
        row, slot = np.nonzero(readers >= 0)
        reads[plan.owner[row], readers[row, slot]] = True
    chosen: set[tuple[int, ...]] = set()
    for _ in range(20 * limit):
        owner = int(generator.integers(plan.agents))
        key = generator.random(plan.agents) + ~reads[owner]
        key[owner] = np.inf
        chosen.add(tuple(sorted(np.argsort(key)[:size].tolist())))
        if len(chosen) == limit:
            break
    return sorted(chosen)

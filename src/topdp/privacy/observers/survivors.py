"""What coalitions learn from the rounds of those who are left, once some agents have gone for good.

For plans in which every row is an estimate, everybody sees all of them, and draws are shared.

**Guarantees.** From the round on in which an agent is gone it counts as one of the coalition: all that it
knows counts as known. That covers rows of others that still carry draws shared with it, rows that leave them
out, and rows that take back those of rounds before: whoever knows the draws can add or subtract them, and
what is left has fresh noise in every round. It also covers that the agent is not gone, and that somebody sees
its rows. Of each release the coalition that learns most counts: the sum is below that of no coalition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import NOBODY, PerRound, Plan, PlanError
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.adaptive import in_the_open, most_learned
from topdp.privacy.observers.worst_case import every_round, information
from topdp.privacy.query import DEFAULT_QUERY, Query

RECALLED_ROUNDS = 2
"""Of how many noisy rounds an agent takes back the draws that it shared with somebody who is gone."""

RESERVED_RELEASES = RECALLED_ROUNDS**2
"""Releases, each the most telling of the plan, that the books of an agent hold in case it is gone itself.

Somebody may have seen its last rows although nobody says so. That others take back what they shared with it
in them then tells more of it: at most so much, by the proof in docs/privacy.md.
"""


def recalls_draws(exposure: Exposure) -> bool:
    """Whether draws shared with somebody gone are taken back: not where samples are Poisson's.

    Their rounds compose as they are, and what is charged for a round that is over cannot grow any more.
    """
    return not exposure.sampled


def with_reserve(plan: Plan, exposure: Exposure, query: Query = DEFAULT_QUERY) -> float:
    """The factor on all noise with which budgets that just fit the plan hold every agent's reserve too."""
    if not in_the_open(plan) or not recalls_draws(exposure):
        return 1.0
    most = most_learned(plan, query)
    spent = [every_round(most[:, i], period) ** 2 for i, period in enumerate(exposure.periods().tolist())]
    return float(
        np.sqrt(1 + max(RESERVED_RELEASES * most[:, i].max() / one for i, one in enumerate(spent) if one))
    )


def survivors(plan: Plan, gone: Collection[int]) -> Plan:
    """The releases of the agents that are left, renumbered, without the draws that somebody gone knows.

    For accounts alone: what rows are mixed of is not kept.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.ones(2), noise=np.ones(2))
    >>> protocol = topdp.protocols.Correlated(secrets="all", pair_noise=3.0, gossip=1)
    >>> plan = protocol.plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> left = survivors(plan, [2])
    >>> left.agents, left.known_by.tolist()
    (3, [[0, -1], [1, -1], [2, -1], [0, 1], [0, 2], [1, 2]])
    """
    if plan.rows - plan.memories.sum() != plan.agents:
        raise PlanError("Expected a plan in which every row is an estimate, got one with messages.")
    left = np.array([agent for agent in range(plan.agents) if agent not in gone])
    number = np.full(plan.agents + 1, NOBODY)  # the last stands for NOBODY
    number[left] = np.arange(len(left))
    keeps = ~np.isin(plan.known_by, list(gone)).any(axis=1)
    renamed = np.full(plan.draws + 1, NOBODY)
    renamed[:-1][keeps] = np.arange(keeps.sum())
    own = np.where(plan.exists[:, left, None], np.arange(len(left))[:, None], NOBODY)
    return replace(
        plan,
        agents=len(left),
        owner=np.arange(len(left)),
        source=_each_once(own),
        weight=PerRound.same(np.ones((len(left), 1)), plan.releases),
        carries=_of(plan.carries, plan.carries.values[:, left]),
        draw=_of(plan.draw, renamed[plan.draw.values[:, left]]),
        std=_of(plan.std, plan.std.values[:, left]),
        known_by=number[plan.known_by[keeps]],
        readers=PerRound.same(np.full((len(left), 1), NOBODY), plan.releases),
        reported=None,
        adaptive=None,
        robust=None,
    )


def most_learned_since(
    plan: Plan, owner: int, gone: Mapping[int, int], query: Query = DEFAULT_QUERY
) -> Floats:
    """[releases]: 1/z² of each release of `owner` to the coalition that learns most of it, at sensitivity 1.

    `gone`: agent -> the round from which it counts as one of the coalition, beside `query.colluders` others.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.ones(3), noise=np.ones(3))
    >>> protocol = topdp.protocols.Correlated(secrets="all", pair_noise=3.0, gossip=0)
    >>> plan = protocol.plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> most_learned_since(plan, 0, {2: 1}).round(3).tolist()  # among three, then among two
    [0.357, 0.526, 0.526]
    """
    result = np.zeros(plan.releases)
    begins = np.array([max(0, first) for first in gone.values()], np.int64)
    cuts = sorted({0, *begins.tolist()})
    for start, stop in zip(cuts, [*cuts[1:], plan.releases], strict=True):
        out = {agent for agent, first in gone.items() if first <= start}
        result[start:stop] = _most(plan, owner, out, query)[start:stop]
    return result


def _most(plan: Plan, owner: int, out: set[int], query: Query) -> Floats:
    if query.colluders < plan.agents - len(out):
        left = survivors(plan, out) if out else plan
        try:
            number = owner - sum(agent < owner for agent in out)
            return np.asarray(most_learned(left, query)[:, number])
        except NotCovered:
            if not out:
                raise
    # Nobody is left to hide among, or too few to say: what all others together learn is never less.
    return np.asarray(information(plan)[:, owner])


def _of(part: PerRound, values: Floats) -> PerRound:
    return PerRound(values, part.which)


def _each_once(values: Floats) -> PerRound:
    distinct, which = np.unique(values, axis=0, return_inverse=True)
    return PerRound(distinct, which.reshape(-1).astype(np.int32))

"""The loss to coalitions from the releases of the remaining agents, after some agents have departed.

This module treats plans in which every row is an estimate, every observer sees all rows, and draws are
shared.

**Guarantees.** From the round of its departure onwards, an agent counts as a member of the coalition, so the
coalition knows all that the agent knows. This covers rows of other agents that still carry draws shared with
the agent, rows that omit these draws, and rows that take back draws of earlier rounds. For an observer that
knows the draws can add or subtract them, and the remaining row has fresh noise in every round. It also covers
the case that the agent has not departed and that an observer sees its rows. In each release the coalition
that learns most counts, so the sum over releases is at least the sum of any one coalition.
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
from topdp.privacy.observers.worst_case import every_round_mu, information
from topdp.privacy.query import DEFAULT_QUERY, Query

# The number of noisy rounds whose draws an agent takes back if it shared them with a departed agent.
RECALLED_ROUNDS = 2

# The number of releases, each as costly as the most revealing release of the plan, that a ledger reserves for
# the departure of its own agent. Other agents may have seen the agent's last rows without confirming that
# they have. If they then take back the draws that these rows shared with their own rows, they reveal more
# about the agent: at most as much as these releases, by the proof in docs/privacy.md.
RESERVED_RELEASES = RECALLED_ROUNDS**2


def recalls_draws(exposure: Exposure) -> bool:
    """Return whether agents take back draws that they shared with a departed agent.

    They do not if some agent has Poisson samples, because the charge for a completed round can then not grow
    afterwards.
    """
    return not exposure.sampled


def with_reserve(plan: Plan, exposure: Exposure, query: Query = DEFAULT_QUERY) -> float:
    """Return the factor on all noise with which budgets that just cover the plan also cover the reserve.

    The reserve is that of RESERVED_RELEASES. The factor is 1 if agents take back no draws.
    """
    if not in_the_open(plan) or not recalls_draws(exposure):
        return 1.0
    learned = most_learned(plan, query)
    spent = [mu**2 for mu in every_round_mu(learned, exposure.periods()).tolist()]
    shares = [RESERVED_RELEASES * learned[:, i].max() / total for i, total in enumerate(spent) if total]
    return float(np.sqrt(1 + max(shares)))


def survivors(plan: Plan, gone: Collection[int]) -> Plan:
    """Return a plan of the remaining agents' releases, without draws that an agent in `gone` knows.

    Agents and draws are renumbered. The plan is for accounts only, because it lacks the mixing weights. Raise
    PlanError if some row of `plan` is a message.

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
    remaining = np.array([agent for agent in range(plan.agents) if agent not in gone])
    n = len(remaining)
    number = np.full(plan.agents + 1, NOBODY)  # the last element is the new number of NOBODY
    number[remaining] = np.arange(n)
    is_kept = ~np.isin(plan.known_by, list(gone)).any(axis=1)
    renamed = np.full(plan.draws + 1, NOBODY)
    renamed[:-1][is_kept] = np.arange(is_kept.sum())
    own = np.where(plan.exists[:, remaining, None], np.arange(n)[:, None], NOBODY)
    sources, which = np.unique(own, axis=0, return_inverse=True)
    return replace(
        plan,
        agents=n,
        owner=np.arange(n),
        source=PerRound(sources, which.reshape(-1).astype(np.int32)),
        weight=PerRound.same(np.ones((n, 1)), plan.releases),
        carries=PerRound(plan.carries.values[:, remaining], plan.carries.which),
        draw=PerRound(renamed[plan.draw.values[:, remaining]], plan.draw.which),
        std=PerRound(plan.std.values[:, remaining], plan.std.which),
        known_by=number[plan.known_by[is_kept]],
        readers=PerRound.same(np.full((n, 1), NOBODY), plan.releases),
        reported=None,
        adaptive=None,
        robust=None,
    )


def most_learned_since(
    plan: Plan, owner: int, gone: Mapping[int, int], query: Query = DEFAULT_QUERY
) -> Floats:
    """Return 1/z² of each release of `owner`, at sensitivity 1, to the coalition that learns most [releases].

    `gone` maps each departed agent to the round from which it counts as a colluder, in addition to
    `query.colluders` other agents.

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
        departed = {agent for agent, first in gone.items() if first <= start}
        result[start:stop] = _most_without(plan, owner, departed, query)[start:stop]
    return result


def _most_without(plan: Plan, owner: int, departed: set[int], query: Query) -> Floats:
    """Return the values of `most_learned_since` if the agents in `departed` collude in all rounds."""
    if query.colluders < plan.agents - len(departed):
        remaining = survivors(plan, departed) if departed else plan
        try:
            number = owner - sum(agent < owner for agent in departed)
            return np.asarray(most_learned(remaining, query)[:, number])
        except NotCovered:
            if not departed:
                raise
    # Too few agents remain, or no bound is known. The loss to all other agents together is never smaller.
    return np.asarray(information(plan)[:, owner])

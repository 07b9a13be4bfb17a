"""The asynchronous protocols: in each round an agent exchanges rows with one neighbour, or steps alone.

`TopAsynchronous` is Algorithm 2 of the paper. `PlainAsynchronous` makes the same exchanges with full-scale
noise, as the paper runs its baselines. In each round, a random search pairs the agents. Each online agent, in
random order, examines its neighbours in random order. It pairs with the first neighbour that is online and
has no partner yet, but never with an agent whose row is in its current estimate: that agent knows the noise
which it reuses (`Rematch`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, NamedTuple, final, get_args

import numpy as np

from topdp.base.array_types import Bools, Floats, Ints
from topdp.errors import InputError
from topdp.plan import NOBODY, PerRound, Plan
from topdp.plan.random_streams import stream
from topdp.plan.schedules import Schedule
from topdp.protocols.protocol import (
    DEFAULT_OWN_SHARE,
    Rematch,
    UpdateRule,
    check_deviation,
    check_own_share,
    reduced,
)
from topdp.topology import Topology

MATCHING_CHUNK_ROUNDS = 1024


class Pairs(NamedTuple):
    """The partners of all agents in all rounds."""

    partner: Ints  # [rounds, n]; NOBODY for an agent without a partner
    online: Bools  # [rounds, n]: whether the agent takes part in the round


def draw_pairs(
    topology: Topology, rounds: int, offline: float, seed: int, rematch: Rematch = "after-new-row"
) -> Pairs:
    """Draw the partners of all agents in all rounds, and return them.

    In each round, exactly round(offline·n) agents are offline; they are drawn again for every round. Raise
    InputError unless 0 <= offline < 1, and `rematch` is a known rule.
    """
    if not 0 <= offline < 1:
        raise InputError(f"Expected 0 <= offline < 1 (the share of agents that are offline), got {offline}.")
    if rematch not in get_args(Rematch):
        raise InputError(f"Expected rematch to be {' or '.join(get_args(Rematch))}, got {rematch!r}.")
    n = topology.agents
    absent = round(offline * n)
    first, second = topology.edges[:, 0], topology.edges[:, 1]
    partner = np.full((rounds, n), NOBODY, np.int64)
    online = np.ones((rounds, n), bool)
    last = [NOBODY] * n  # the agent whose row is in the current estimate of each agent
    for start in range(0, rounds, MATCHING_CHUNK_ROUNDS):
        stop = min(start + MATCHING_CHUNK_ROUNDS, rounds)
        size = stop - start
        rank = stream(seed, "pairs.rank", start).random((size, n)).argsort(axis=1).argsort(axis=1)
        order = stream(seed, "pairs.offline", start).random((size, n)).argsort(axis=1)
        np.put_along_axis(online[start:stop], order[:, :absent], False, axis=1)
        # The search goes through the edges in the order of the smaller rank of their ends, then at random.
        tie = stream(seed, "pairs.tie", start).random((size, len(first)))
        keys = np.minimum(rank[:, first], rank[:, second]) + tie
        free = online[start:stop, first] & online[start:stop, second]
        for t in range(start, stop):
            usable = np.flatnonzero(free[t - start])
            ordered = usable[keys[t - start, usable].argsort()]
            chosen = _greedy_matching(first[ordered].tolist(), second[ordered].tolist(), last)
            partner[t] = chosen
            if rematch == "after-new-row":
                for i in order[t - start, :absent]:  # these agents make no row
                    chosen[i] = last[i]
            last = chosen
    return Pairs(partner, online)


def _greedy_matching(first: list[int], second: list[int], last: list[int]) -> list[int]:
    """Return the partner of each agent.

    `first`, `second`: the ends of edges. The edges are matched greedily in this order. `last`: the last
    partner of each agent; it is not matched with this agent again.
    """
    partner = [NOBODY] * len(last)
    for i, j in zip(first, second, strict=True):
        if partner[i] < 0 and partner[j] < 0 and last[i] != j and last[j] != i:
            partner[i], partner[j] = j, i
    return partner


@dataclass(frozen=True)
class _Asynchronous(UpdateRule):
    """Base class of both protocols; `offline` is the share of agents that do not take part in a round.

    `rematch`: when two agents may be partners again.
    """

    claimed: ClassVar[bool] = True
    pairwise: ClassVar[bool] = True

    offline: float = 0.1
    _: KW_ONLY
    rematch: Rematch = "after-new-row"

    @final
    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        R, n = schedule.releases, topology.agents
        full = check_deviation(deviation, n)
        pairs = draw_pairs(topology, R - 1, self.offline, seed, self.rematch)
        has_partner = pairs.partner >= 0
        own = np.arange(n)

        # The estimate of an offline agent does not change. An agent without a partner steps alone: the weight
        # of its own row is 1.
        source = np.full((R, n, 2), NOBODY, np.int32)
        source[:, :, 0] = own
        source[1:, :, 1] = pairs.partner
        weight = np.zeros((R, n, 2))
        weight[:, :, 0] = 1.0
        weight[1:][has_partner] = self.mixing()
        carries = np.ones((R, n), bool)
        carries[1:] = pairs.online
        std = np.broadcast_to(full, (R, n)).copy()
        std[1:] = np.where(has_partner, self._paired(full, pairs), std[1:]) * pairs.online

        # An agent sends its estimate of round r to its partner of the next round.
        readers = np.full((R, n, 1), NOBODY, np.int32)
        readers[:-1, :, 0] = pairs.partner
        return self._with_own_draws(
            schedule,
            own,
            source=PerRound.each(source),
            weight=PerRound.each(weight),
            carries=PerRound.each(carries),
            std=PerRound.each(std[:, :, None]),
            readers=PerRound.each(readers),
        )

    @abstractmethod
    def _paired(self, full: Floats, pairs: Pairs) -> Floats:
        """Return [rounds, n] the standard deviations of the own noise of agents with a partner.

        `full` [n]: the standard deviations of their full-scale noise.
        """


@final
@dataclass(frozen=True)
class PlainAsynchronous(_Asynchronous):
    """The protocol in which agents exchange estimates with full-scale noise.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = PlainAsynchronous(0.25).plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> plan.protocol, plan.rows, plan.releases
    ('plain-async', 5, 21)
    """

    name: ClassVar[str] = "plain-async"

    def _paired(self, full: Floats, pairs: Pairs) -> Floats:
        return np.broadcast_to(full, pairs.partner.shape)


@final
@dataclass(frozen=True)
class TopAsynchronous(_Asynchronous):
    """The protocol of Algorithm 2: an agent adds less noise, because its partner's estimate already contains
    noise.

    `own_share`: see `reduced`.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = TopAsynchronous(0.25, offline=0.0).plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> bool((plan.std[0] > plan.std[20]).any())  # round 0 has no partners, and therefore full-scale noise
    True
    """

    name: ClassVar[str] = "top-async"

    own_share: float = DEFAULT_OWN_SHARE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_own_share(self.own_share)

    def _paired(self, full: Floats, pairs: Pairs) -> Floats:
        return reduced(full, full[pairs.partner], self.alpha, self.own_share)

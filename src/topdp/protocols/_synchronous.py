"""The synchronous protocols: every agent receives a row from each neighbour in every round.

`TopSynchronous` is Algorithm 1 of the paper. `PlainSynchronous` is Eq. 3 of the paper, the rule of the
baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from topdp.base.array_types import Bools, Floats, Ints
from topdp.plan import NOBODY, PerRound, Plan
from topdp.plan.random_streams import stream
from topdp.plan.schedules import Schedule
from topdp.protocols.protocol import DEFAULT_OWN_SHARE, UpdateRule, check_deviation, check_own_share, reduced
from topdp.topology import Topology

DRAW_CHUNK_ROUNDS = 512  # bounds the memory of the arrays below


@dataclass(frozen=True)
class PlainSynchronous(UpdateRule):
    """The protocol in which each agent sends its estimate, with full-scale noise, to all neighbours (Eq. 3).

    An agent mixes its own estimate with that of one random neighbour.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = PlainSynchronous(0.25).plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> plan.protocol, plan.rows, plan.releases
    ('plain-sync', 5, 21)
    """

    name: ClassVar[str] = "plain-sync"
    claimed: ClassVar[bool] = True

    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        n, R = topology.agents, schedule.releases
        deviation = check_deviation(deviation, n)
        own = np.arange(n)
        source = np.full((R, n, 2), NOBODY, _index_type(n))
        source[:, :, 0] = own
        for rounds in _chunks(R):
            slot = _partner_slots(topology, rounds, seed)
            source[rounds.start : rounds.stop, :, 1] = topology.neighbours[own, slot]
        source[0, :, 1] = NOBODY
        return self._with_own_draws(
            schedule,
            own,
            source=PerRound.each(source),
            weight=_weights(self.mixing(), np.ones(n, bool), R),
            carries=PerRound.same(np.ones(n, bool), R),
            std=PerRound.same(deviation[:, None], R),
            readers=PerRound.same(np.array(topology.neighbours), R),
        )


@dataclass(frozen=True)
class TopSynchronous(UpdateRule):
    """The protocol of Algorithm 1: a separate message for each neighbour, with noise that partly comes from
    another neighbour.

    The message i→j contains the row that some k ∈ N_i^j sent to i and that j never saw, so i adds only a part
    of its full-scale noise. Neighbours j with an empty N_i^j read the estimate itself. `own_share`: see
    `reduced`.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = TopSynchronous(0.25).plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> plan.protocol, plan.rows, plan.releases
    ('top-sync', 15, 21)
    """

    name: ClassVar[str] = "top-sync"
    claimed: ClassVar[bool] = True

    own_share: float = DEFAULT_OWN_SHARE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_own_share(self.own_share)

    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        n, R = topology.agents, schedule.releases
        deviation = check_deviation(deviation, n)
        covered = topology.directed[topology.covered]
        sender, receiver = covered[:, 0], covered[:, 1]
        eligible = topology.eligible[topology.covered]
        messages = len(covered)
        m = n + messages

        owner = np.concatenate([np.arange(n), sender])
        inbox = _inbox(topology)
        source = np.full((R, m, 2), NOBODY, _index_type(m))
        source[:, :, 0] = owner
        source[0, n:] = NOBODY  # in round 0 all neighbours read the estimates, and there are no messages
        served_by = np.zeros((R, messages), np.int32)
        for rounds in _chunks(R):
            # In Algorithm 1, j* is any neighbour. Its cover loop takes the neighbours in random order. So the
            # k that serves j has the smallest key in N_i^j, because j ∈ N_i^k exactly when k ∈ N_i^j.
            slots = np.empty((len(rounds), m), np.int64)
            slots[:, :n] = _partner_slots(topology, rounds, seed)
            keys = stream(seed, "cover", rounds.start).random((len(rounds), n, topology.neighbours.shape[1]))
            slots[:, n:] = np.where(eligible, keys[:, sender], np.inf).argmin(axis=-1)
            source[rounds.start : rounds.stop, :, 1] = inbox[owner, slots]
            served_by[rounds.start : rounds.stop] = topology.neighbours[sender, slots[:, n:]]
        source[0, :, 1] = NOBODY
        # In round 0 agents sent their estimates, so the sources of round 1 are estimates, not messages.
        source[1:2, :, 1] = owner[source[1:2, :, 1]]

        return self._with_own_draws(
            schedule,
            owner,
            source=PerRound.each(source),
            weight=_weights(self.mixing(), np.arange(m) < n, R),
            carries=PerRound.first_then(np.arange(m) < n, np.ones(m, bool), R),
            std=_deviations(deviation, sender, served_by, self.alpha, self.own_share),
            readers=_readers(topology, receiver, R),
        )


def _partner_slots(topology: Topology, rounds: range, seed: int) -> Ints:
    """Return [rounds, agents] the neighbour with which an agent mixes, as an index into its neighbours."""
    uniform = stream(seed, "partner", rounds.start).random((len(rounds), topology.agents))
    slots: Ints = (uniform * topology.degrees).astype(np.int64)
    return slots


def _inbox(topology: Topology) -> Ints:
    """Return an array [i, slot]: the row that neighbour number `slot` of i sends to i from round 1 on."""
    n, edges, covered = topology.agents, topology.directed, topology.covered
    sending_row = np.where(covered, n + np.cumsum(covered) - 1, edges[:, 0])
    code = edges[:, 0] * n + edges[:, 1]  # sorted, because directed edges are in lexicographic order
    inbox = np.full(topology.neighbours.shape, NOBODY, np.int64)
    inbox[topology.neighbours >= 0] = sending_row[np.searchsorted(code, edges[:, 1] * n + edges[:, 0])]
    return inbox


def _readers(topology: Topology, receiver: Ints, releases: int) -> PerRound:
    """Return for each round the readers [n + messages, q] of all rows.

    In round 0, all neighbours of an agent read its estimate. Later, only the neighbours to which the directed
    edge is not covered read the estimate, and the receiver of a message reads the message.
    """
    n, width = topology.neighbours.shape
    first = np.full((n + len(receiver), width), NOBODY, np.int64)
    then = first.copy()
    first[:n] = topology.neighbours
    then[n:, 0] = receiver
    covered = np.zeros((n, width), bool)
    covered[topology.neighbours >= 0] = topology.covered
    then[:n] = np.where(covered, NOBODY, topology.neighbours)
    return PerRound.first_then(first, then, releases)


def _weights(mixing: Floats, starts: Bools, releases: int) -> PerRound:
    """Return the weights for each round: in round 0 the `starts` begin with x_0 alone, later all rows mix."""
    first = np.stack([starts.astype(float), np.zeros(len(starts))], axis=1)
    return PerRound.first_then(first, np.broadcast_to(mixing, first.shape), releases)


def _deviations(
    deviation: Floats, sender: Ints, served_by: NDArray[np.int32], alpha: float, own_share: float
) -> PerRound:
    """Return the standard deviations of the own noise of all rows: estimates first, then messages."""
    releases = len(served_by)
    if (deviation == deviation[0]).all():
        message = reduced(deviation[sender], deviation[sender], alpha, own_share)
        return PerRound.same(np.concatenate([deviation, message])[:, None], releases)
    message = reduced(deviation[sender], deviation[served_by], alpha, own_share)
    estimates = np.broadcast_to(deviation, (releases, len(deviation)))
    return PerRound.each(np.concatenate([estimates, message], axis=1)[:, :, None])


def _chunks(releases: int) -> list[range]:
    return [
        range(start, min(start + DRAW_CHUNK_ROUNDS, releases))
        for start in range(0, releases, DRAW_CHUNK_ROUNDS)
    ]


def _index_type(rows: int) -> type[np.signedinteger]:
    return np.int16 if rows < 2**15 else np.int32

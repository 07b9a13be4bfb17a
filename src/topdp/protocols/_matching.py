"""Pairs agents in the asynchronous protocols: one matching per round, by random search.

Each online agent, in random order, examines its neighbours in random order and pairs with the first neighbour
that has no partner yet, but not with its own partner of the previous round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Bools, Ints
from topdp.errors import InputError
from topdp.plan import NOBODY
from topdp.plan.random_streams import stream
from topdp.topology import Topology

MATCHING_CHUNK_ROUNDS = 1024


class Pairs(NamedTuple):
    partner: Ints  # [rounds, n]; NOBODY for an agent without a partner
    online: Bools  # [rounds, n]


def draw_pairs(topology: Topology, rounds: int, offline: float, seed: int) -> Pairs:
    """Draw the partners of all agents in all rounds.

    Exactly round(offline·n) agents, drawn anew, are offline in each round.
    """
    if not 0 <= offline < 1:
        raise InputError(f"Expected 0 <= offline < 1 (the share of agents that are offline), got {offline}.")
    n = topology.agents
    absent = round(offline * n)
    first, second = topology.edges[:, 0], topology.edges[:, 1]
    partner = np.full((rounds, n), NOBODY, np.int64)
    online = np.ones((rounds, n), bool)
    before = [NOBODY] * n
    for start in range(0, rounds, MATCHING_CHUNK_ROUNDS):
        stop = min(start + MATCHING_CHUNK_ROUNDS, rounds)
        size = stop - start
        rank = stream(seed, "pairs.rank", start).random((size, n)).argsort(axis=1).argsort(axis=1)
        order = stream(seed, "pairs.offline", start).random((size, n)).argsort(axis=1)
        np.put_along_axis(online[start:stop], order[:, :absent], False, axis=1)
        # The search takes the edges in this order: by the smaller rank of their ends, then at random.
        tie = stream(seed, "pairs.tie", start).random((size, len(first)))
        keys = np.minimum(rank[:, first], rank[:, second]) + tie
        free = online[start:stop, first] & online[start:stop, second]
        for t in range(start, stop):
            usable = np.flatnonzero(free[t - start])
            walk = usable[keys[t - start, usable].argsort()]
            before = _greedy_matching(first[walk].tolist(), second[walk].tolist(), before)
            partner[t] = before
    return Pairs(partner, online)


def _greedy_matching(first: list[int], second: list[int], before: list[int]) -> list[int]:
    """Return the partner of each agent: edges are matched greedily in the given order.

    `before`: the partners of the previous round, which are not matched again.
    """
    partner = [NOBODY] * len(before)
    for i, j in zip(first, second, strict=True):
        if partner[i] < 0 and partner[j] < 0 and before[i] != j:
            partner[i], partner[j] = j, i
    return partner

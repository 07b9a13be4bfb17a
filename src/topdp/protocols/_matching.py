"""Pairs agents in the asynchronous protocols: one matching per round, by random search.

Each online agent, in random order, examines its neighbours in random order and pairs with the first neighbour
that has no partner yet, but not with its own partner of the previous round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topdp.base.array_types import Bools, Floats, Ints
from topdp.errors import InputError
from topdp.plan import NOBODY
from topdp.plan.random_streams import stream
from topdp.topology import Topology

MATCHING_CHUNK_ROUNDS = 1024
MAX_WALK_AGENTS = 100  # up to this many agents, a walk over single edges is faster than arrays


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
    before: Any = [NOBODY] * n if n <= MAX_WALK_AGENTS else np.full(n, NOBODY, np.int64)
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
        if n <= MAX_WALK_AGENTS:
            walk = np.where(free, keys, np.inf).argsort(axis=1)
            usable_edges = np.count_nonzero(free, axis=1).tolist()
            for t in range(start, stop):
                edges = walk[t - start, : usable_edges[t - start]]
                before = _greedy_matching(first[edges].tolist(), second[edges].tolist(), before)
                partner[t] = before
            continue
        for t in range(start, stop):
            usable = free[t - start] & (before[first] != second)
            _match(first, second, np.where(usable, keys[t - start], np.inf), partner[t])
            before = partner[t]
    return Pairs(partner, online)


def _greedy_matching(first: list[int], second: list[int], before: Sequence[int]) -> list[int]:
    """Return the partner of each agent: edges are matched greedily in the given order.

    `before`: the partners of the previous round, which are not matched again.
    """
    partner = [NOBODY] * len(before)
    for i, j in zip(first, second, strict=True):
        if partner[i] < 0 and partner[j] < 0 and before[i] != j:
            partner[i], partner[j] = j, i
    return partner


def _match(first: Ints, second: Ints, key: Floats, partner: Ints) -> None:
    """Match edges greedily in the order of `key` (inf: not usable), many at a time; write to `partner`.

    The result is that of a walk over single edges, which also takes every edge with the least key at both of
    its ends.
    """
    least = np.empty(len(partner))
    while True:
        alive = np.isfinite(key)
        if not alive.any():
            return
        first, second, key = first[alive], second[alive], key[alive]
        least.fill(np.inf)
        np.minimum.at(least, first, key)
        np.minimum.at(least, second, key)
        taken = (least[first] == key) & (least[second] == key)
        partner[first[taken]] = second[taken]
        partner[second[taken]] = first[taken]
        key = np.where((partner[first] >= 0) | (partner[second] >= 0), np.inf, key)

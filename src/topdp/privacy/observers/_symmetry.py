"""Symmetries of a plan: observers that see the same up to a relabelling of the agents are computed once.

A relabelling is a symmetry only if the *plan* is the same afterwards: the sources, weights, gradients, noise,
readers and known draws of every round, and what a record can change. A symmetric graph is not enough, because
partners and covers that are drawn at random break its symmetry. So symmetries help with plans that contain no
random choice (`dsgd`, `muffliato`, pair secrets between all agents), and with user-defined plans.

**Guarantees.** Nothing is assumed: each relabelling is checked entry by entry, and numbers to the last bit.
If no relabelling passes, every observer is computed. Not all symmetries are found: rotations, reflections,
flipped bits and cycles among equal agents are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from topdp.base.array_types import Ints
from topdp.plan import Capability, Plan, unsupported
from topdp.privacy.basics.exposure import Exposure

# Plans with more different rounds than this are most likely random, and are not compared.
MAX_COMPARED_ROUNDS = 64

Coalition = tuple[int, ...]


def symmetric_coalitions(
    plan: Plan, exposure: Exposure, coalitions: Sequence[Coalition]
) -> dict[int, tuple[int, Ints]]:
    """Return for each coalition that sees the same as an earlier coalition how the two are related.

    The result maps the position of the coalition to the pair (position of the earlier coalition,
    relabelling), where the relabelling [agents] gives the new number of each agent. Other coalitions are not
    in the result.

    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy import exposure
    >>> from topdp.protocols import Dsgd, PlainSynchronous
    >>> steps = Schedule(rate=np.full(9, 0.1), noise=np.full(9, 0.1))
    >>> alone, ring = [(j,) for j in range(6)], topology.ring(6)
    >>> same = Dsgd().plan(ring, steps, np.ones(6), seed=0)
    >>> {at: first for at, (first, _) in symmetric_coalitions(same, exposure(6, 1.0), alone).items()}
    {1: 0, 2: 0, 5: 0, 3: 0, 4: 0}
    >>> drawn = PlainSynchronous(0.5).plan(ring, steps, np.ones(6), seed=0)
    >>> symmetric_coalitions(drawn, exposure(6, 1.0), alone)
    {}
    """
    if plan.rows != plan.agents or len(coalitions) < 2 or unsupported(plan, {Capability.SHARED_DRAWS}):
        return {}
    generators = [turn for turn in _candidates(plan) if _is_symmetry(plan, exposure, turn)]
    if not generators:
        return {}
    position = {J: index for index, J in enumerate(coalitions)}
    symmetric: dict[int, tuple[int, Ints]] = {}
    for first, J in enumerate(coalitions):
        if first in symmetric:
            continue
        waiting = [(J, np.arange(plan.agents))]
        while waiting:
            K, so_far = waiting.pop(0)
            for turn in generators:
                moved = tuple(sorted(turn[list(K)].tolist()))
                index = position.get(moved)
                if index is None or index == first or index in symmetric:
                    continue
                symmetric[index] = first, turn[so_far]
                waiting.append((moved, turn[so_far]))
    return symmetric


def _candidates(plan: Plan) -> Iterator[Ints]:
    """Yield relabellings that may be symmetries of the plan."""
    n = plan.agents
    own = np.arange(n)
    yield (own + 1) % n
    yield (-own) % n
    bit = 1
    while n & (n - 1) == 0 and bit < n:
        yield own ^ bit
        bit *= 2
    # Cycles of agents with equal numbers of readers and sources and the same noise, such as leaves of a star.
    alike: dict[Any, list[int]] = {}
    for agent in range(n):
        key = (
            (plan.readers.values[:, agent] >= 0).sum(),
            (plan.source.values[:, agent] >= 0).sum(),
            np.sort(plan.std.values[:, agent], axis=None).tobytes(),
        )
        alike.setdefault(key, []).append(agent)
    for agents in alike.values():
        if 1 < len(agents) < n:
            turn = own.copy()
            turn[agents] = np.roll(agents, -1)
            yield turn


def _is_symmetry(plan: Plan, exposure: Exposure, turn: Ints) -> bool:
    """Return whether the plan and the exposure are the same after each agent i is renamed to turn[i]."""
    if not np.array_equal(exposure.sensitivity[turn], exposure.sensitivity):
        return False
    if any(
        exposure.batches[i].participation != exposure.batches[j].participation
        for i, j in enumerate(turn.tolist())
    ):
        return False
    parts = (plan.source, plan.weight, plan.carries, plan.draw, plan.std, plan.readers)
    kinds = np.unique(np.stack([part.which for part in parts]), axis=1, return_index=True)[1]
    if len(kinds) > MAX_COMPARED_ROUNDS:
        return False
    rounds = [plan[r] for r in kinds.tolist()]
    names = _draws(plan, kinds.tolist(), np.arange(plan.agents))
    moved = _draws(plan, kinds.tolist(), turn)
    if len(set(names)) != len(names) or sorted(names) != sorted(moved):
        return False  # draws are identified by the rows that they enter and by the agents that know them
    for this, r in zip(rounds, kinds.tolist(), strict=True):
        carries = plan.carries[r]
        for a, b in enumerate(turn.tolist()):
            if carries[a] != carries[b] or _mixed(this, a, turn) != _mixed(this, b, None):
                return False
            if _named(this.readers[a], turn) != _named(this.readers[b], None):
                return False
    return True


def _mixed(this: Any, row: int, turn: Ints | None) -> list[tuple[int, float]]:
    """Return the sources of `row`, renamed by `turn`, and their weights, in ascending order."""
    pairs = zip(this.source[row].tolist(), this.weight[row].tolist(), strict=True)
    return sorted((s if turn is None else int(turn[s]), w) for s, w in pairs if s >= 0)


def _named(agents: Ints, turn: Ints | None) -> list[int]:
    """Return `agents` without padding, renamed by `turn`, in ascending order."""
    listed = agents[agents >= 0]
    return sorted((listed if turn is None else turn[listed]).tolist())


def _draws(plan: Plan, rounds: list[int], turn: Ints) -> list[tuple[Any, ...]]:
    """Return for every draw the agents that know it, and the round, row and deviation of each use.

    Agents and rows are renamed by `turn`.
    """
    enters: list[list[tuple[int, int, float]]] = [[] for _ in range(plan.draws)]
    for r in rounds:
        for row, (draws, stds) in enumerate(zip(plan.draw[r].tolist(), plan.std[r].tolist(), strict=True)):
            for d, std in zip(draws, stds, strict=True):
                if d >= 0:
                    enters[d].append((r, int(turn[row]), std))
    return [
        (tuple(_named(known, turn)), tuple(sorted(of_draw)))
        for known, of_draw in zip(plan.known_by, enters, strict=True)
    ]

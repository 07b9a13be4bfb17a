"""Observers who see the same but for names: one of them is looked at, and its answers are given for all.

A relabelling of the agents counts only where the *plan* is the same afterwards: who mixes what with which
weights, whose gradient, under which noise, who reads and who knows, in every round; and what a record can
change. A symmetric graph is not enough: partners and covers that are drawn at random break its symmetry. So
this helps where nothing is drawn (`dsgd`, `muffliato`, secrets between all), and in plans of one's own.

**Guarantees.** Nothing is assumed: each relabelling is checked entry by entry, numbers to the last bit, and
where one does not pass every observer is looked at. Not all symmetries are found: rotations, reflections,
flipped bits and turns among agents that are alike are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from topdp.base.array_types import Ints
from topdp.plan import Capability, Plan, unsupported
from topdp.privacy.basics.exposure import Exposure

MAX_COMPARED_ROUNDS = 64
"""Rounds of more kinds than these are drawn by chance, most likely, and not compared."""

Coalition = tuple[int, ...]


def symmetric_coalitions(
    plan: Plan, exposure: Exposure, coalitions: Sequence[Coalition]
) -> dict[int, tuple[int, Ints]]:
    """For coalitions that see what an earlier one sees: its position, and a relabelling from that one.

    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy import exposure
    >>> from topdp.protocols import Dsgd, PlainSynchronous
    >>> steps = Schedule(rate=np.full(9, 0.1), noise=np.full(9, 0.1))
    >>> alone, ring = [(j,) for j in range(6)], topology.ring(6)
    >>> same = Dsgd().plan(ring, steps, np.ones(6), seed=0)
    >>> {at: first for at, (first, _) in alike(same, exposure(6, 1.0), alone).items()}
    {1: 0, 5: 0, 2: 0, 4: 0, 3: 0}
    >>> drawn = PlainSynchronous(0.5).plan(ring, steps, np.ones(6), seed=0)
    >>> alike(drawn, exposure(6, 1.0), alone)
    {}
    """
    if plan.rows != plan.agents or len(coalitions) < 2:
        return {}
    if unsupported(plan, {Capability.SHARED_DRAWS}):
        return {}
    generators = [one for one in _candidates(plan) if _kept(plan, exposure, one)]
    if not generators:
        return {}
    place = {J: at for at, J in enumerate(coalitions)}
    found: dict[int, tuple[int, Ints]] = {}
    for first, J in enumerate(coalitions):
        if first in found:
            continue
        waiting = [(J, np.arange(plan.agents))]
        while waiting:
            K, so_far = waiting.pop(0)
            for turn in generators:
                moved = tuple(sorted(turn[list(K)].tolist()))
                at = place.get(moved)
                if at is None or at == first or at in found:
                    continue
                found[at] = first, turn[so_far]
                waiting.append((moved, turn[so_far]))
    return found


def _candidates(plan: Plan) -> Iterator[Ints]:
    n = plan.agents
    own = np.arange(n)
    yield (own + 1) % n
    yield (-own) % n
    bit = 1
    while n & (n - 1) == 0 and bit < n:
        yield own ^ bit
        bit *= 2
    # Agents with as many readers and sources, and the same noise, in turn: the leaves of a star, say.
    looks: dict[Any, list[int]] = {}
    for agent in range(n):
        key = (
            (plan.readers.values[:, agent] >= 0).sum(),
            (plan.source.values[:, agent] >= 0).sum(),
            np.sort(plan.std.values[:, agent], axis=None).tobytes(),
        )
        looks.setdefault(key, []).append(agent)
    for agents in looks.values():
        if 1 < len(agents) < n:
            turn = own.copy()
            turn[agents] = np.roll(agents, -1)
            yield turn


def _kept(plan: Plan, exposure: Exposure, turn: Ints) -> bool:
    """Whether the plan and the exposure are the same after agent i is called turn[i]."""
    if not np.array_equal(exposure.sensitivity[turn], exposure.sensitivity):
        return False
    if any(exposure.batches[i] != exposure.batches[j] for i, j in enumerate(turn.tolist())):
        return False
    parts = (plan.source, plan.weight, plan.carries, plan.draw, plan.std, plan.readers)
    kinds = np.unique(np.stack([part.which for part in parts]), axis=1, return_index=True)[1]
    if len(kinds) > MAX_COMPARED_ROUNDS:
        return False
    rounds = [plan[r] for r in kinds.tolist()]
    names = _draws(plan, kinds.tolist(), np.arange(plan.agents))
    moved = _draws(plan, kinds.tolist(), turn)
    if len(set(names)) != len(names) or sorted(names) != sorted(moved):
        return False  # draws are told apart by where they enter and who knows them
    for this, r in zip(rounds, kinds.tolist(), strict=True):
        carries = plan.carries[r]
        for a, b in enumerate(turn.tolist()):
            if carries[a] != carries[b] or _mixed(this, a, turn) != _mixed(this, b, None):
                return False
            if _named(this.readers[a], turn) != _named(this.readers[b], None):
                return False
    return True


def _mixed(this: Any, row: int, turn: Ints | None) -> list[tuple[int, float]]:
    pairs = zip(this.source[row].tolist(), this.weight[row].tolist(), strict=True)
    return sorted((s if turn is None else int(turn[s]), w) for s, w in pairs if s >= 0)


def _named(agents: Ints, turn: Ints | None) -> list[int]:
    kept = agents[agents >= 0]
    return sorted((kept if turn is None else turn[kept]).tolist())


def _draws(plan: Plan, rounds: list[int], turn: Ints) -> list[tuple[Any, ...]]:
    """Of every draw: who knows it, and into which rows it enters how strongly, by the new names."""
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

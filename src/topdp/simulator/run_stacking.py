"""Stacked runs: the plans of many runs joined into one plan, and their agents in one computation.

A stack takes little longer than one run if single runs do not use the whole device. Its runs share the model,
the clip, the number of rounds and the kind of batches. Graphs, methods, step sizes, noise, seeds and data may
differ. Each run has the same noise and batches as if it were executed alone. Figures and sweeps use stacks.
A stacked plan must not be accounted for; each run is accounted for by its own plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.data.batch_selection import Device, Selection, select
from topdp.data.shards import Shards
from topdp.errors import InputError
from topdp.plan import NOBODY, Capability, PerRound, Plan, Planned, prune, unsupported
from topdp.plan.batches import Batches, Full
from topdp.plan.noise_key import NoiseKey
from topdp.simulator.simulated_noise import Draws, SimulatedDraws

MAX_CACHED_SELECTIONS = 2000


def supports(plan: Planned) -> str | None:
    """Return None if a run can be stacked, and otherwise what prevents it."""
    return unsupported(plan, {Capability.SHARED_DRAWS, Capability.PRUNED_ROWS})


def stack_plans(plans: Sequence[Plan]) -> Plan:
    """Return one pruned plan with the agents, rows and draws of all `plans`, run after run.

    Raise InputError if the plans cannot be stacked.
    """
    if len(releases := {plan.releases for plan in plans}) != 1:
        raise InputError(f"Expected plans with one number of releases, got {sorted(releases)}.")
    if reason := next(filter(None, map(supports, plans)), None):
        raise InputError(f"Expected runs without {reason} in a stack of runs. Run those one by one.")
    pruned = [plan if plan.pruned else prune(plan) for plan in plans]
    R = plans[0].releases
    agents = _offsets([plan.agents for plan in pruned])
    draws = _offsets([plan.draws for plan in pruned])
    messages = agents[-1] + _offsets([plan.rows - plan.agents for plan in pruned])
    total = int(messages[-1])
    places = [
        (slice(a, a + plan.agents), slice(m, m + plan.rows - plan.agents))
        for plan, a, m in zip(pruned, agents, messages, strict=False)
    ]

    def joined(parts: Iterable[NDArray[Any]], shape: tuple[int, ...], fill: int | float, dtype: type) -> Any:
        """Join parts [*, rows of a run, width of a run] to one array [*, rows, width], padded with `fill`."""
        out: NDArray[Any] = np.full((*shape[:1], total, *shape[1:]), fill, dtype)
        for part, plan, (estimates, others) in zip(parts, pruned, places, strict=True):
            width = (slice(part.shape[2]),) if part.ndim == 3 else ()
            out[(slice(None), estimates, *width)] = part[:, : plan.agents]
            out[(slice(None), others, *width)] = part[:, plan.agents :]
        return out

    def every(part: PerRound, dtype: type) -> NDArray[Any]:
        return part.values.astype(dtype)[part.which]

    def sources() -> Iterator[NDArray[Any]]:
        for plan, (estimates, others) in zip(pruned, places, strict=True):
            place = np.r_[estimates, others, NOBODY].astype(np.int32)  # index NOBODY, -1, is the last element
            yield place[every(plan.source, np.int32)]

    def drawn() -> Iterator[NDArray[Any]]:
        for plan, offset in zip(pruned, draws, strict=False):
            yield np.r_[offset : offset + plan.draws, NOBODY].astype(np.int32)[every(plan.draw, np.int32)]

    mixed = (R, max(plan.source.values.shape[2] for plan in pruned))
    noisy = (R, max(plan.draw.values.shape[2] for plan in pruned))
    std = (every(p.std, np.float32) * p.scale[:, None, None].astype(np.float32) for p in pruned)
    steps = (every(p.carries, np.float32) * p.rate[:, None].astype(np.float32) for p in pruned)
    weights = (every(p.weight, np.float32) for p in pruned)
    known = np.concatenate([p.known_by[:, :1] + a for p, a in zip(pruned, agents, strict=False)])
    owner = joined(((p.owner + a)[None] for p, a in zip(pruned, agents, strict=False)), (1,), 0, np.int64)[0]
    return Plan(
        agents=int(agents[-1]),
        owner=owner,
        source=PerRound.each(joined(sources(), mixed, NOBODY, np.int32)),
        weight=PerRound.each(joined(weights, mixed, 0.0, np.float32)),
        carries=PerRound.each(joined(steps, (R,), 0.0, np.float32)),
        rate=np.ones(R),
        draw=PerRound.each(joined(drawn(), noisy, NOBODY, np.int32)),
        std=PerRound.each(joined(std, noisy, 0.0, np.float32)),
        scale=np.ones(R),
        known_by=known,
        readers=PerRound.same(np.full((len(owner), 1), NOBODY), R),
        protocol="stack",
        reported=_reported(pruned, agents, messages),
        pruned=True,
    )


def _reported(plans: Sequence[Plan], agents: Ints, messages: Ints) -> Ints | None:
    """Return the indices, in the stacked plan, of the rows that users get; None if all get estimates."""
    if all(plan.reported is None for plan in plans):
        return None
    parts = []
    for plan, first, others in zip(plans, agents, messages, strict=False):
        rows = np.arange(plan.agents) if plan.reported is None else plan.reported
        parts.append(np.where(rows < plan.agents, first + rows, others + rows - plan.agents))
    return np.concatenate(parts)


def stack_shards(shards: Sequence[Shards]) -> Shards:
    """Return shards with the agents of all runs; all runs are tested on the test records of the first run."""
    first = shards[0]
    longest = max(max(s.counts) for s in shards)
    padded = [s.padded(longest) for s in shards]
    return replace(
        first,
        inputs=torch.cat([s.inputs for s in padded]),
        targets=torch.cat([s.targets for s in padded]),
        counts=tuple(count for s in shards for count in s.counts),
        origin=None,
        persons=None if all(s.persons is None for s in shards) else torch.cat(list(map(_persons, padded))),
    )


def _persons(shards: Shards) -> Tensor:
    """Return the numbers of persons; without persons, each record is one of its own."""
    if shards.persons is not None:
        return shards.persons
    return torch.arange(shards.targets.shape[1], device=shards.device).repeat(shards.agents, 1)


@dataclass(frozen=True, eq=False)
class StackedBatches:
    """The records that each run of a stack uses: the same as if the run were executed alone."""

    # For each run: the batches of each agent, the seed, and the key.
    runs: tuple[tuple[tuple[Batches, ...], int, NoiseKey], ...]
    _cache: dict[tuple[int, str], Selection] = field(default_factory=dict, repr=False)

    @property
    def batches(self) -> tuple[Batches, ...]:
        """The batches of each agent of the stack."""
        return tuple(strategy for batches, *_ in self.runs for strategy in batches)

    @property
    def full(self) -> bool:
        """Whether all agents use all of their records in every round."""
        return all(isinstance(strategy, Full) for strategy in self.batches)

    def select(self, round: int, device: Device = None) -> Selection:
        """Return the records that all agents of the stack use in `round`."""
        period = self._common_period
        if period is None:
            return self._joined(round, device)
        key = (round % period, str(device or "cpu"))
        if key not in self._cache:
            self._cache[key] = self._joined(key[0], device)
        return self._cache[key]

    @cached_property
    def _common_period(self) -> int | None:
        """The number of rounds after which all selections repeat; None if they do not, or not soon enough."""
        if any(strategy.sampled for strategy in self.batches):
            return None
        period = math.lcm(*{strategy.period for strategy in self.batches})
        return period if period <= MAX_CACHED_SELECTIONS else None

    def _joined(self, round: int, device: Device) -> Selection:
        if self.full:
            return select(self.batches, 0, round, device)
        drawn = {
            (batches, seed, key): select(batches, seed, round, device, key)
            for batches, seed, key in set(self.runs)
        }
        longest = max(chosen.indices.shape[1] for chosen in drawn.values() if chosen.indices is not None)
        each = [drawn[run].padded(longest) for run in self.runs]
        indices = torch.cat([chosen.indices for chosen in each if chosen.indices is not None])
        weights = torch.cat([chosen.weights for chosen in each if chosen.weights is not None])
        return Selection(indices, weights, torch.cat([chosen.divisor for chosen in each]))


class StackedNoise(Draws):
    """The draws of each run of a stack: the same as if the run were executed alone."""

    def __init__(self, plans: Sequence[Plan], keys: Sequence[NoiseKey]) -> None:
        runs = [SimulatedDraws(key, p.draws, p.releases) for p, key in zip(plans, keys, strict=True)]
        self._first = _offsets([plan.draws for plan in plans])
        self.keys = np.concatenate([noise.keys for noise in runs])

    def names(self, round: int | Ints, draws: Ints) -> Ints:
        run = np.searchsorted(self._first[1:-1], draws, side="right")
        return np.stack(np.broadcast_arrays(run, round, draws - self._first[run]), axis=-1)


def _offsets(counts: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

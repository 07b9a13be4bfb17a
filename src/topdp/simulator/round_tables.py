"""What many rounds need of plan and batches, written down at once: rows to make, and records to use.

Made on the processor, also by threads while a device is at work, and then sent in one go. A `Chunk` says what
`Fused` and `selection` say of each of its rounds; nothing here draws or decides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from topdp.data import batch_selection
from topdp.data.batch_selection import Selection
from topdp.plan.batches import Full
from topdp.simulator.engine import Engine
from topdp.simulator.row_mixing_cuda import Fused, Packed

ROUNDS = 256  # in one chunk, at most
NUMBERS = 1 << 22  # indices of rows, or of records, in one chunk, at most
PIECE = 16  # rounds whose records are drawn by one thread in one go
THREADS = 4


class Chunk(NamedTuple):
    """Consecutive rounds, on the processor."""

    rounds: range
    packed: Packed
    records: Tensor | None  # [rounds, n·b]: places among the records of all agents; None: all in their order
    weights: Tensor | None  # [rounds, n, b]
    fits: list[bool]  # whether a round has no more records than there is room for

    def together(self, round: int, at_most: int) -> int:
        """How many rounds from `round` on, which is in here, this chunk can serve."""
        count = 0
        for fits in self.fits[round - self.rounds.start :][:at_most]:
            if not fits:
                break
            count += 1
        return count


class _Begun(NamedTuple):
    """A chunk that is being made. It names no engine: one that nobody needs any more goes at once."""

    rounds: range
    packed: Callable[[], Packed]
    drawn: Sequence[Callable[[], Sequence[Selection]]]


@final
class Tables:
    """The chunks of a run of `engine`, by their numbers. With `ahead`, threads make one before it is needed.

    Every round has room for `width` records of each agent: a number that follows from the batches alone, so
    that where a run was resumed, or looked at, does not change its numbers.
    """

    def __init__(self, engine: Engine, mixer: Fused, ahead: bool) -> None:
        self._engine, self._mixer = engine, mixer
        plan, agents = engine.plan, len(engine.batches)
        self.whole = all(isinstance(one, Full) for one in engine.batches)
        self.width = 0 if self.whole else batch_selection.typical_batch_width(engine.batches)
        made = plan.exists.sum(axis=1)
        numbers = max(agents * self.width, int(made.max()) * plan.source.values.shape[2])
        self.length = min(ROUNDS, plan.releases, max(1, NUMBERS // numbers))
        self.most_rows = int(np.add.reduceat(made, np.arange(0, plan.releases, self.length)).max())
        """Made in the rounds of any chunk."""
        self._pool = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) if ahead else None
        self._next: tuple[int, _Begun] | None = None

    def rounds(self, number: int) -> range:
        return range(self._engine.plan.releases)[number * self.length : (number + 1) * self.length]

    def chunk(self, number: int) -> Chunk:
        begun, self._next = self._next, None
        return self._joined(begun[1] if begun is not None and begun[0] == number else self._begun(number))

    def prepare(self, number: int) -> None:
        """Begins with a chunk that will be asked for later."""
        known = self._next is not None and self._next[0] == number
        if self._pool is not None and not known and self.rounds(number):
            self._next = (number, self._begun(number))

    def _begun(self, number: int) -> _Begun:
        rounds = self.rounds(number)
        packed = self._started(partial(self._mixer.packed, rounds))
        pieces = [] if self.whole else [rounds[i : i + PIECE] for i in range(0, len(rounds), PIECE)]
        drawn = [self._started(partial(self._drawn, piece)) for piece in pieces]
        return _Begun(rounds, packed, drawn)

    def as_in_here(self, chosen: Selection) -> Selection:
        """The records of a round with as much room as rounds have here. Products of other shapes are rounded
        otherwise, and a unit of a model that is on or off by a hair then turns a record's gradient."""
        if chosen.indices is None or chosen.weights is None:
            return chosen
        more = (0, max(0, self.width - chosen.indices.shape[1]))
        indices, weights = (torch.nn.functional.pad(part, more) for part in (chosen.indices, chosen.weights))
        return Selection(indices, weights, chosen.divisor)

    def _started(self, work: Callable[[], Any]) -> Callable[[], Any]:
        return work if self._pool is None else self._pool.submit(work).result

    def _drawn(self, rounds: range) -> list[Selection]:
        """No calls of the device in here: threads come here while it records."""
        select = self._engine._select
        if isinstance(select, partial) and select.func is batch_selection.select:
            batches, seed = select.args
            return batch_selection.select_many(batches, seed, rounds)
        return [select(round, torch.device("cpu")) for round in rounds]

    def _joined(self, begun: _Begun) -> Chunk:
        rounds, packed = begun.rounds, begun.packed()
        drawn = [one for piece in begun.drawn for one in piece()]
        if self.whole:
            return Chunk(rounds, packed, None, None, [True] * len(rounds))
        agents, held = self._engine.shards.inputs.shape[:2]
        records = torch.arange(agents)[:, None].mul(held).repeat(len(rounds), 1, self.width)
        weights = torch.zeros(len(rounds), agents, self.width)
        fits = []
        for places, weight, chosen in zip(records, weights, drawn, strict=True):
            assert chosen.indices is not None and chosen.weights is not None
            count = chosen.indices.shape[1]
            fits.append(count <= self.width)
            if fits[-1]:
                places[:, :count] += chosen.indices
                weight[:, :count] = chosen.weights
        return Chunk(rounds, packed, records.flatten(1), weights, fits)

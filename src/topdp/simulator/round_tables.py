"""Tables of many rounds for CUDA replay: the rows to make and the records to use in each round.

The CPU makes the tables, partly in threads while the GPU works, and copies the tables of many rounds at once.
A chunk holds for each of its rounds what `CudaMixer` and `batch_selection` return. This module itself draws
and decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from topdp.data import batch_selection
from topdp.data.batch_selection import Selection
from topdp.plan.batches import Full
from topdp.simulator.engine import Engine
from topdp.simulator.row_mixing_cuda import CudaMixer, PackedRows

MAX_CHUNK_ROUNDS = 256
MAX_CHUNK_NUMBERS = 1 << 22  # indices of rows, or of records, in one chunk
ROUNDS_PER_TASK = 16  # rounds whose records one thread draws in one task
MAX_TABLE_THREADS = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundChunk:
    """Tables of consecutive rounds, in the memory of the CPU."""

    rounds: range
    packed: PackedRows
    records: Tensor | None  # [rounds, n·b]: indices into the records of all agents; None: all in their order
    weights: Tensor | None  # [rounds, n, b]
    fits: list[bool]  # for each round, whether the tables have space for all of its records

    def servable(self, round: int, at_most: int) -> int:
        """Return how many rounds, from `round` on and at most `at_most`, the tables hold completely."""
        fits = self.fits[round - self.rounds.start :][:at_most]
        return [*fits, False].index(False)


_PendingChunk = tuple[range, Callable[[], PackedRows], list[Callable[[], list[Selection]]]]
"""A chunk that threads are making: its rounds, the rows to make, and the records of each task.

It does not refer to an engine, so that engines can be freed.
"""


@final
class RoundTables:
    """The chunks of a run of `engine`, by number. With `ahead`, threads make a chunk before it is needed.

    Every round has space for `width` records of each agent. This number depends only on the batches, so that
    results do not depend on the round in which a run was resumed or evaluated.
    """

    def __init__(self, engine: Engine, mixer: CudaMixer, ahead: bool) -> None:
        self._engine, self._mixer = engine, mixer
        plan, agents = engine.plan, len(engine.batches)
        self.whole = all(isinstance(strategy, Full) for strategy in engine.batches)
        self.width = 0 if self.whole else batch_selection.typical_batch_width(engine.batches)
        made = plan.exists.sum(axis=1)
        numbers = max(agents * self.width, int(made.max()) * plan.source.values.shape[2])
        self.length = min(MAX_CHUNK_ROUNDS, plan.releases, max(1, MAX_CHUNK_NUMBERS // numbers))
        # The largest number of rows that the rounds of one chunk make.
        self.max_rows = int(np.add.reduceat(made, np.arange(0, plan.releases, self.length)).max())
        self._pool = ThreadPoolExecutor(min(MAX_TABLE_THREADS, os.cpu_count() or 1)) if ahead else None
        self._next: tuple[int, _PendingChunk] | None = None

    def rounds(self, number: int) -> range:
        """Return the rounds of chunk `number`."""
        return range(self._engine.plan.releases)[number * self.length : (number + 1) * self.length]

    def chunk(self, number: int) -> RoundChunk:
        """Return chunk `number`, which `prepare` may have begun."""
        pending, self._next = self._next, None
        return self._finish(pending[1] if pending and pending[0] == number else self._begin(number))

    def prepare(self, number: int) -> None:
        """Begin to make chunk `number`, which will be needed later, if this works in threads."""
        begun = self._next is not None and self._next[0] == number
        if self._pool is not None and not begun and self.rounds(number):
            self._next = (number, self._begin(number))

    def _begin(self, number: int) -> _PendingChunk:
        rounds, step = self.rounds(number), ROUNDS_PER_TASK
        packed = self._submit(partial(self._mixer.packed, rounds))
        tasks = [] if self.whole else [rounds[first : first + step] for first in range(0, len(rounds), step)]
        drawn = [self._submit(partial(self._drawn, task)) for task in tasks]
        return rounds, packed, drawn

    def _submit(self, task: Callable[[], Any]) -> Callable[[], Any]:
        return task if self._pool is None else self._pool.submit(task).result

    def _drawn(self, rounds: range) -> list[Selection]:
        """Return the records of these rounds.

        This function must not call the device, because threads run it while the device records.
        """
        select = self._engine.select
        if isinstance(select, partial) and select.func is batch_selection.select:
            batches, seed = select.args
            return batch_selection.select_many(batches, seed, rounds, key=select.keywords["key"])
        return [select(round, torch.device("cpu")) for round in rounds]

    def _finish(self, pending: _PendingChunk) -> RoundChunk:
        rounds, packed = pending[0], pending[1]()
        drawn = [selection for task in pending[2] for selection in task()]
        if self.whole:
            fits = [True] * len(rounds)
            return RoundChunk(rounds=rounds, packed=packed, records=None, weights=None, fits=fits)
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
        return RoundChunk(
            rounds=rounds, packed=packed, records=records.flatten(1), weights=weights, fits=fits
        )

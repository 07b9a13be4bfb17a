"""One round as device operations that never wait for the CPU, so that they can be recorded.

A clock on the device holds the number of the round, so one recording can be replayed for all rounds of its
kind. `cuda_replay.py` decides when recordings are replayed, and checks them.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from topdp.learning.gradients.gradient_checks import FailureFlags
from topdp.simulator.engine import Engine
from topdp.simulator.round_tables import RoundChunk, RoundTables
from topdp.simulator.row_mixing_cuda import CudaMixer, PackedRows
from topdp.simulator.simulation import State


@final
class RoundProgram:
    """One round of `engine`, which has a `CudaMixer`, on tensors whose addresses never change.

    **Guarantees.** Records, divisors, clipping and draws are those of `Engine.advance` in the same round.
    Sums may be rounded differently if the tensors of a round hold more records than the round uses. Gradients
    that are not finite are either left out, or reported by `watch`. In the second case, no row that was made
    since the last `begin` may be used.
    """

    def __init__(self, engine: Engine, tables: RoundTables, watch: FailureFlags) -> None:
        self.watch = watch
        assert isinstance(engine.mixer, CudaMixer)
        self._engine, self._mixer, self._tables = engine, engine.mixer, tables
        device, shards = engine.device, engine.shards
        self.buffers = (engine.buffers.of(0), engine.buffers.of(1))
        self.sums = engine.buffers.empty(engine.held).zero_()
        self._saved = engine.buffers.empty(engine.buffers.capacity)
        self._clock = torch.zeros(2, dtype=torch.int32, device=device)  # position in the chunk, round
        like = self._mixer.packed(range(1)).tables()
        rows = [tables.length + 1, *[tables.max_rows] * (len(like) - 1)]
        self._packed = PackedRows.of(
            torch.zeros(count, *table.shape[1:], dtype=table.dtype, device=device)
            for count, table in zip(rows, like, strict=True)
        )
        chosen = engine.select(0, device)
        self._divisor = chosen.divisor.to(self.sums)[:, None]
        agents = len(engine.batches)
        if tables.whole:
            ones = self._divisor.new_ones(()) if chosen.weights is None else chosen.weights
            self._all_weights = (ones / self._divisor).expand(-1, shards.targets.shape[1])
        else:
            shape = (tables.length, agents, tables.width)
            self._records = torch.zeros(
                tables.length, agents * tables.width, dtype=torch.int64, device=device
            )
            self._weights = torch.zeros(shape, device=device)
            self._inputs, self._targets = shards.inputs.flatten(0, 1), shards.targets.flatten(0, 1)

    def load(self, chunk: RoundChunk) -> None:
        """Copy the tables of `chunk` to the device."""
        for there, here in zip(self._packed.tables(), chunk.packed.tables(), strict=True):
            there[: len(here)].copy_(here)
        if chunk.records is not None and chunk.weights is not None:
            self._records[: len(chunk.records)].copy_(chunk.records)
            self._weights[: len(chunk.weights)].copy_(chunk.weights).div_(self._divisor)

    def begin(self, state: State, chunk: RoundChunk) -> None:
        """Set the clock to the round after `state`, and copy the rows of `state`, because later rounds
        overwrite them.
        """
        before = self.buffers[(state.releases - 1) % 2][: len(state.rows)]
        self._saved[: len(state.rows)].copy_(state.rows)
        if before.data_ptr() != state.rows.data_ptr():  # the rows are starts, or come from a checkpoint
            before.copy_(state.rows)
        self.watch.clear()
        self.set_clock(state.releases, chunk)
        self._engine.buffers.begin_both()  # until `end` or `put_back`

    def set_clock(self, round: int, chunk: RoundChunk) -> None:
        """Set the clock to `round`, whose tables are in `chunk`."""
        self._clock.copy_(torch.tensor([round - chunk.rounds.start, round], dtype=torch.int32))

    def put_back(self, state: State) -> None:
        """Restore the rows of `state` from the copy that `begin` made."""
        state.rows.copy_(self._saved[: len(state.rows)])
        self._engine.buffers.complete(state.releases)

    def end(self, state: State, count: int) -> State:
        """Return the state after `count` rounds that began with `state`."""
        releases = state.releases + count
        made = len(self._engine.layout.made(releases - 1))
        if count == 1:  # the rows of `state` are still in the other buffer
            self._engine.buffers.complete(state.releases)
        self._engine.buffers.complete(releases)
        return State(releases, self.buffers[(releases - 1) % 2][:made])

    def make_round(self, odd: int, carries: bool) -> None:
        """Make the round that the clock shows.

        `odd`: the number of the round modulo 2; `carries`: whether rows carry gradients. All operations here
        are recorded. So no operation may use a number from the CPU, except these two: every replay would use
        the value that the number had in the recording.
        """
        before, out = self.buffers[1 - odd], self.buffers[odd]
        self._mixer.by_clock(before, self._mean_gradients(before) if carries else before, out,
                             self._packed, self._clock)  # fmt: skip
        self._clock += 1

    def _mean_gradients(self, before: Tensor) -> Tensor:
        """Return [agents, d] as `Engine.mean_gradients` does; divisors are applied as weights of records."""
        engine = self._engine
        inputs, targets, weights = self._batch()
        with engine.gradients.noting_failures(self.watch):
            engine.gradients.clipped_sum(
                before[: engine.held], inputs, targets, weights, out=self.sums, copies=engine.copies,
                fresh=True,
            )  # fmt: skip
        return self.sums

    def _batch(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._tables.whole:
            return self._engine.shards.inputs, self._engine.shards.targets, self._all_weights
        position, batch = self._clock[:1], self._weights.shape[1:]
        records = self._records.index_select(0, position).flatten()
        inputs, targets = (
            part.index_select(0, records).view(*batch, *part.shape[1:])
            for part in (self._inputs, self._targets)
        )
        return inputs, targets, self._weights.index_select(0, position).squeeze(0)

"""A round as operations on a device that ask the processor nothing: they can be recorded and replayed.

Which round it is stands in a clock on the device: one recording serves all rounds of its kind. What happens
when, and whether a recording can be trusted, is for `stretches.py`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from topdp.learning.gradients.failure_flags import FailureFlags
from topdp.simulator.engine import Engine, State
from topdp.simulator.round_tables import Chunk, Tables
from topdp.simulator.row_mixing_cuda import Fused, Packed


@final
class Program:
    """One round of `engine`, whose mixer is a `Fused`, on tensors that stay where they are.

    **Guarantees.** Records, divisors, clipping and draws are those of `Engine.advance` in the same round;
    sums may be rounded otherwise, where a round has room for more records than it uses. Gradients that are
    not finite are left out, or `watch` says that there were some, and nothing made since may be used.
    """

    def __init__(self, engine: Engine, tables: Tables, watch: FailureFlags) -> None:
        self.watch = watch
        assert isinstance(engine._mix, Fused)
        self._engine, self._mixer, self._tables = engine, engine._mix, tables
        device, plan, shards = engine.device, engine.plan, engine.shards
        self.buffers = (engine._buffer(0), engine._buffer(1))
        self.sums = engine._rows(torch.zeros, engine._held)
        self._kept = engine._rows(torch.empty, engine._capacity)
        self._clock = torch.zeros(2, dtype=torch.int32, device=device)  # place in the chunk, round
        self._packed = self._room_for_rows(plan.source.values.shape[2], plan.draw.values.shape[2])
        chosen = engine._select(0, device)
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

    def _room_for_rows(self, sources: int, draws: int) -> Packed:
        def room(dtype: torch.dtype, *width: int) -> Tensor:
            return torch.zeros(self._tables.most_rows, *width, dtype=dtype, device=self._engine.device)

        starts = torch.zeros(self._tables.length + 1, dtype=torch.int32, device=self._engine.device)
        whole, real = torch.int32, torch.float32
        return Packed(
            starts, room(whole, sources), room(real, sources), room(whole), room(real),
            room(whole, draws), room(whole, draws), room(real, draws),
        )  # fmt: skip

    def load(self, chunk: Chunk) -> None:
        """Sends what the rounds of `chunk` need."""
        for there, here in zip(self._packed, chunk.packed, strict=True):
            there[: len(here)].copy_(here)
        if chunk.records is not None and chunk.weights is not None:
            self._records[: len(chunk.records)].copy_(chunk.records)
            self._weights[: len(chunk.weights)].copy_(chunk.weights).div_(self._divisor)

    def begin(self, state: State, chunk: Chunk) -> None:
        """Sets the clock to the round after `state`, which is kept: what follows overwrites its rows."""
        before = self.buffers[(state.releases - 1) % 2][: len(state.rows)]
        self._kept[: len(state.rows)].copy_(state.rows)
        if before.data_ptr() != state.rows.data_ptr():  # a start, or of a checkpoint
            before.copy_(state.rows)
        self.watch.clear()
        self.set_clock(state.releases, chunk)
        self._engine._written[:] = None, None  # until what follows is done, or undone

    def set_clock(self, round: int, chunk: Chunk) -> None:
        self._clock.copy_(torch.tensor([round - chunk.rounds.start, round], dtype=torch.int32))

    def put_back(self, state: State) -> None:
        """The rows that `state` had when it was given to `begin`."""
        state.rows.copy_(self._kept[: len(state.rows)])
        self._engine._written[(state.releases - 1) % 2] = state.releases

    def end(self, state: State, count: int) -> State:
        """Where `count` rounds have led from `state`."""
        releases = state.releases + count
        made = len(self._engine.layout.made(releases - 1))
        if count == 1:  # its rows are still there
            self._engine._written[(state.releases - 1) % 2] = state.releases
        self._engine._written[(releases - 1) % 2] = releases
        return State(releases, self.buffers[(releases - 1) % 2][:made])

    def one(self, odd: int, carries: bool) -> None:
        """Makes the round that the clock shows: it is `odd` or not, and `carries` gradients or mixes alone.

        All of this is recorded. Numbers from the processor would stay what they were at the recording.
        """
        before, out = self.buffers[1 - odd], self.buffers[odd]
        self._mixer.by_clock(before, self._mean_gradients(before) if carries else before, out,
                             self._packed, self._clock)  # fmt: skip
        self._clock += 1

    def _mean_gradients(self, before: Tensor) -> Tensor:
        """As the engine's, with divisors as weights of records."""
        engine = self._engine
        inputs, targets, weights = self._batch()
        with engine.gradients.noting_failures(self.watch):
            engine.gradients.clipped_sum(
                before[: engine._held], inputs, targets, weights, out=self.sums, copies=engine._copies,
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

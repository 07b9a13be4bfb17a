"""The computation of the rows of a round on an NVIDIA GPU, in one kernel that reads and writes each row once.

Noise comes from the Philox generator with the counter (column, draw, round) and the key of the run, so a draw
does not depend on which other rows are made. Needs Triton, which is part of PyTorch's CUDA builds; imported
only if there is a GPU.
"""

# Triton compiles the kernel below from its source, so annotations and types follow Triton's rules.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-unimported"

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from topdp.plan import Plan
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.row_mixing import RowWork
from topdp.simulator.simulated_noise import Draws

PACKED_ROUNDS = 256  # rounds whose indices are sent to the GPU at once
LANES_PER_PROGRAM = 256  # each lane makes four columns, because one Philox call gives four normal numbers
WARPS_PER_PROGRAM = 4


@triton.jit
def _part(out, before, gradient, slot, weight, owner, step, key, draw, std, row, place, agents, round, d,
          out_row, before_row, gradient_row,
          W: tl.constexpr, V: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Make `LANES` times four columns of one row; without a mask, sixteen bytes are accessed at once."""
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    column = lane[:, None] * 4 + tl.arange(0, 4)[None, :]
    inside = column < d
    total = tl.zeros((LANES, 4), tl.float32)
    for w in tl.static_range(W):
        source = tl.load(slot + row * W + w).to(tl.int64)
        share = tl.load(weight + row * W + w)
        if share != 0:
            if MASKED:
                mixed = tl.load(before + source * before_row + column, mask=inside, other=0.0)
            else:
                mixed = tl.load(before + source * before_row + column)
            total += share * mixed.to(tl.float32)
    rate = tl.load(step + row)
    agent = (tl.load(owner + row) - agents).to(tl.int64)
    if rate != 0:
        if MASKED:
            pull = tl.load(gradient + agent * gradient_row + column, mask=inside, other=0.0)
        else:
            pull = tl.load(gradient + agent * gradient_row + column)
        total += rate * pull.to(tl.float32)
    for v in tl.static_range(V):
        deviation = tl.load(std + row * V + v)
        if deviation != 0:
            number = tl.load(draw + row * V + v)
            run = tl.load(key + row * V + v)
            zero = lane * 0
            a, b, c, e = tl.philox(run, lane, zero + number, zero + round, zero)
            z0, z1 = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(a), tl.uint_to_uniform_float(b))
            z2, z3 = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(c), tl.uint_to_uniform_float(e))
            z = tl.join(tl.join(z0, z1), tl.join(z2, z3))  # [lanes, 2, 2]
            total += deviation * tl.reshape(z, (LANES, 4))
    if out.dtype.element_ty == tl.bfloat16:
        # Round to nearest, ties to even, with whole numbers, because devices convert differently.
        bits = total.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        total = tl.where(total == total, bits.to(tl.float32, bitcast=True), total)
    value = total.to(out.dtype.element_ty)
    if MASKED:
        tl.store(out + place.to(tl.int64) * out_row + column, value, mask=inside)
    else:
        tl.store(out + place.to(tl.int64) * out_row + column, value)


# Without this list, Triton would compile the kernel again for some values of these numbers, such as 0, 1, 16.
@triton.jit(do_not_specialize=["first", "agents", "round"])
def _round(out, before, gradient, slot, weight, owner, step, key, draw, std, chosen, clock, starts,
           first, agents, round, d, out_row, before_row, gradient_row,
           W: tl.constexpr, V: tl.constexpr, LANES: tl.constexpr,
           SOME: tl.constexpr, BY_CLOCK: tl.constexpr):  # fmt: skip
    """Make the rows of `round`; with `SOME`, only the `chosen` rows; with `BY_CLOCK`, the clock's round."""
    place = tl.program_id(0)
    made = tl.num_programs(0)
    if BY_CLOCK:
        position = tl.load(clock)
        first = tl.load(starts + position)
        made = tl.load(starts + position + 1) - first
        round = tl.load(clock + 1)
    if place < made:
        if SOME:
            place = tl.load(chosen + place)
        row = first + place
        if (tl.program_id(1) + 1) * (4 * LANES) <= d:
            _part(out, before, gradient, slot, weight, owner, step, key, draw, std, row, place, agents, round,
                  d, out_row, before_row, gradient_row, W, V, LANES, False)  # fmt: skip
        else:
            _part(out, before, gradient, slot, weight, owner, step, key, draw, std, row, place, agents, round,
                  d, out_row, before_row, gradient_row, W, V, LANES, True)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedRows:
    """The rows that consecutive rounds make, one round after the other, with the places of their sources."""

    starts: Tensor  # [rounds + 1] the first row of each round, and the end; in the memory of the CPU
    slot: Tensor
    weight: Tensor
    owner: Tensor
    step: Tensor
    key: Tensor
    draw: Tensor
    std: Tensor

    @classmethod
    def of(cls, tables: Iterable[Tensor]) -> PackedRows:
        """Return a `PackedRows` of `tables`, which are in the order of the fields."""
        return cls(**dict(zip((field.name for field in fields(cls)), tables, strict=True)))

    def tables(self) -> tuple[Tensor, ...]:
        """Return all tables, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))


class CudaMixer:
    """A mixer that makes all rows of a round in one launch."""

    def __init__(
        self, plan: Plan, noise: Draws, device: torch.device, layout: RowLayout | None = None
    ) -> None:
        self.plan = plan
        self.layout = layout or RowLayout(plan)
        self.noise = noise
        self.device = device
        self._packed: tuple[int, PackedRows] | None = None

    def __call__(self, work: RowWork) -> None:
        packed = self._pack(work.round // PACKED_ROUNDS)
        first = int(packed.starts[work.round % PACKED_ROUNDS])
        chosen = None
        if work.only is not None:
            chosen = torch.from_numpy(work.only.astype(np.int32)).to(self.device)
        if chosen is None or len(chosen):
            self._launch(work, packed, None, first, chosen)

    def by_clock(
        self, before: Tensor, gradient: Tensor, out: Tensor, packed: PackedRows, clock: Tensor
    ) -> None:
        """Make the round that `clock` [position in `packed`, number of the round] shows at execution.

        The tables of `packed`, in int32 and float32, and the clock, in int32, are on the device. `out` has
        space for the rows of any round.
        """
        self._launch(RowWork(round=0, before=before, gradient=gradient, out=out), packed, clock)

    def _launch(
        self,
        work: RowWork,
        packed: PackedRows,
        clock: Tensor | None,
        first: int = 0,
        chosen: Tensor | None = None,
    ) -> None:
        """Launch the kernel for the round that `clock` shows, or, without a clock, for the round of `work`.

        `first`: the first row of this round in `packed`. `chosen`: the places of the rows to make; None means
        all.
        """
        before, gradient, out, d = work.before, work.gradient, work.out, work.out.shape[1]
        grid = (len(out if chosen is None else chosen), triton.cdiv(d, 4 * LANES_PER_PROGRAM))
        with torch.cuda.device_of(out):  # Triton launches on the current device
            _round[grid](
                out, before, gradient, *packed.tables()[1:], chosen, clock,
                None if clock is None else packed.starts, first, work.first, work.round, d,
                out.stride(0), before.stride(0), gradient.stride(0),
                W=packed.slot.shape[1], V=packed.draw.shape[1], LANES=LANES_PER_PROGRAM,
                SOME=chosen is not None, BY_CLOCK=clock is not None, num_warps=WARPS_PER_PROGRAM,
            )  # fmt: skip

    def _pack(self, chunk: int) -> PackedRows:
        if self._packed is None or self._packed[0] != chunk:
            stop = min((chunk + 1) * PACKED_ROUNDS, self.plan.releases)
            on_host = self.packed(range(chunk * PACKED_ROUNDS, stop))
            on_device = (table.to(self.device) for table in on_host.tables()[1:])
            self._packed = (chunk, PackedRows.of((on_host.starts, *on_device)))
        return self._packed[1]

    def packed(self, rounds: range) -> PackedRows:
        """Return the tables of consecutive rounds in the memory of the CPU, with 0 for absent entries."""
        plan, made = self.plan, [self.layout.made(r) for r in rounds]
        place = np.stack([self.layout.place(r) for r in rounds])
        counts, row = [len(rows) for rows in made], np.concatenate(made)
        at = np.repeat(np.arange(len(rounds)), counts)
        r = at + rounds.start
        source, draw = (part.values[part.which[r], row] for part in (plan.source, plan.draw))
        absent, silent = source < 0, draw < 0
        key, number = self.noise.names(np.where(silent, 0, draw))
        weight = plan.weight.values[plan.weight.which[r], row]
        step = -plan.rate[r] * plan.carries.values[plan.carries.which[r], row]
        std = plan.std.values[plan.std.which[r], row] * plan.scale[r][:, None]
        tables = (
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            np.where(absent, 0, place[at[:, None], source]).astype(np.int32),
            np.where(absent, 0.0, weight).astype(np.float32),
            self.layout.place_of[plan.owner[row]].astype(np.int32),
            step.astype(np.float32),
            key.astype(np.int32),
            number.astype(np.int32),
            np.where(silent, 0.0, std).astype(np.float32),
        )
        return PackedRows.of(map(torch.from_numpy, tables))

"""The computation of the rows of a round on an NVIDIA GPU, in one kernel that reads and writes each row once.

Noise comes from ChaCha20 with the key of the run, the round and draw as nonce and the column as counter, so a
draw does not depend on which other rows are made. On a CPU, `normal_draws` makes other numbers of the same
quality: the two order the words of the cipher differently. Needs Triton, which is part of PyTorch's CUDA
builds; imported only if there is a GPU.
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
COLUMNS_PER_LANE = 16  # one block of the cipher gives sixteen normal numbers
LANES_PER_PROGRAM = 128
WARPS_PER_PROGRAM = 4


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _chacha(key, count, moment, number, DOUBLE_ROUNDS: tl.constexpr):
    """Return the 16 words of each cipher block in `count` (RFC 8439). `key` points to eight words."""
    zero = count ^ count
    k0, k1, k2, k3 = (
        zero + tl.load(key),
        zero + tl.load(key + 1),
        zero + tl.load(key + 2),
        zero + tl.load(key + 3),
    )
    k4, k5, k6, k7 = (
        zero + tl.load(key + 4),
        zero + tl.load(key + 5),
        zero + tl.load(key + 6),
        zero + tl.load(key + 7),
    )
    n0, n1 = zero + moment, zero + number
    a0, a1, a2, a3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    b0, b1, b2, b3, c0, c1, c2, c3 = k0, k1, k2, k3, k4, k5, k6, k7
    d0, d1, d2, d3 = count, n0, n1, zero
    for _ in tl.static_range(DOUBLE_ROUNDS):
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return (a0 + 0x61707865, a1 + 0x3320646E, a2 + 0x79622D32, a3 + 0x6B206574,
            b0 + k0, b1 + k1, b2 + k2, b3 + k3, c0 + k4, c1 + k5, c2 + k6, c3 + k7,
            d0 + count, d1 + n0, d2 + n1, d3)  # fmt: skip


@triton.jit
def _pair(radius_word, angle_word):
    """Return two normal numbers of two words, by Box and Muller, up to 6.6 deviations as on a CPU."""
    u = ((radius_word & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2⁻³¹
    radius = tl.sqrt(-2.0 * tl.log(u))
    angle = angle_word.to(tl.float32) * 1.4629180792671596e-09  # 2π·2⁻³²
    return tl.join(radius * tl.cos(angle), radius * tl.sin(angle))


@triton.jit
def _normals(key, lane, moment, number, LANES: tl.constexpr):
    """Return [LANES, 16] the normal numbers of a draw, from cipher block `lane` on."""
    (w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15) = _chacha(
        key, lane.to(tl.uint32), moment.to(tl.uint32), number.to(tl.uint32), 10)  # fmt: skip
    first = tl.join(tl.join(_pair(w0, w1), _pair(w2, w3)), tl.join(_pair(w4, w5), _pair(w6, w7)))
    second = tl.join(tl.join(_pair(w8, w9), _pair(w10, w11)), tl.join(_pair(w12, w13), _pair(w14, w15)))
    return tl.reshape(tl.join(first, second), (LANES, 16))  # [LANES, 2, 2, 2, 2] before


@triton.jit
def _part(out, before, gradient, slot, weight, owner, step, keys, run, draw, std, row, place, agents, round,
          d, out_row, before_row, gradient_row,
          W: tl.constexpr, V: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Make `LANES` times 16 columns of one row; without a mask, sixteen bytes are accessed at once."""
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    column = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = column < d
    total = tl.zeros((LANES, 16), tl.float32)
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
            key = keys + tl.load(run + row * V + v) * 8
            total += deviation * _normals(key, lane, round, number, LANES)
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
def _round(out, before, gradient, slot, weight, owner, step, run, draw, std, keys, chosen, clock, starts,
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
        if (tl.program_id(1) + 1) * (16 * LANES) <= d:
            _part(out, before, gradient, slot, weight, owner, step, keys, run, draw, std, row, place, agents,
                  round, d, out_row, before_row, gradient_row, W, V, LANES, False)  # fmt: skip
        else:
            _part(out, before, gradient, slot, weight, owner, step, keys, run, draw, std, row, place, agents,
                  round, d, out_row, before_row, gradient_row, W, V, LANES, True)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedRows:
    """The rows that consecutive rounds make, one round after the other, with the places of their sources."""

    starts: Tensor  # [rounds + 1] the first row of each round, and the end; in the memory of the CPU
    slot: Tensor
    weight: Tensor
    owner: Tensor
    step: Tensor
    run: Tensor
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
        self._keys = torch.from_numpy(noise.keys.copy()).to(device)

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
        grid = (len(out if chosen is None else chosen), triton.cdiv(d, COLUMNS_PER_LANE * LANES_PER_PROGRAM))
        with torch.cuda.device_of(out):  # Triton launches on the current device
            _round[grid](
                out, before, gradient, *packed.tables()[1:], self._keys, chosen, clock,
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
        run, _, number = np.moveaxis(self.noise.names(r[:, None], np.where(silent, 0, draw)), -1, 0)
        weight = plan.weight.values[plan.weight.which[r], row]
        step = -plan.rate[r] * plan.carries.values[plan.carries.which[r], row]
        std = plan.std.values[plan.std.which[r], row] * plan.scale[r][:, None]
        tables = (
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            np.where(absent, 0, place[at[:, None], source]).astype(np.int32),
            np.where(absent, 0.0, weight).astype(np.float32),
            self.layout.place_of[plan.owner[row]].astype(np.int32),
            step.astype(np.float32),
            run.astype(np.int32),
            number.astype(np.int32),
            np.where(silent, 0.0, std).astype(np.float32),
        )
        return PackedRows.of(map(torch.from_numpy, tables))

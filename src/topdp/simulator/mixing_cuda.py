"""One round of rows on an NVIDIA GPU, as one kernel: each row is read once and written once.

Noise comes from the Philox counter (key of the run; column, draw, round), so a draw is the same number
whichever other rows are made. Needs Triton, which comes with PyTorch's CUDA builds: the engine comes here
only with a GPU.
"""

# Triton compiles the kernel below from its source: annotations and untyped names are Triton's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-unimported"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from topdp.plan import Plan
from topdp.simulator.draws import Draws
from topdp.simulator.layout import Layout
from topdp.simulator.mixing import Work

PACKED_ROUNDS = 256  # rounds whose indices are sent to the GPU at once
LANES = 256  # four columns a lane: one Philox call gives four normals


@triton.jit
def _round(out, before, gradient, chosen, slot, weight, owner, step, key, draw, std, first, agents, round, d,
           out_row, before_row, gradient_row,
           W: tl.constexpr, V: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    place = tl.load(chosen + tl.program_id(0))
    row = first + place
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    column = lane[:, None] * 4 + tl.arange(0, 4)[None, :]
    inside = column < d
    total = tl.zeros((LANES, 4), tl.float32)
    for w in tl.static_range(W):
        source = tl.load(slot + row * W + w).to(tl.int64)
        share = tl.load(weight + row * W + w)
        if share != 0:
            mixed = tl.load(before + source * before_row + column, mask=inside, other=0.0)
            total += share * mixed.to(tl.float32)
    rate = tl.load(step + row)
    agent = (tl.load(owner + row) - agents).to(tl.int64)
    if rate != 0:
        pull = tl.load(gradient + agent * gradient_row + column, mask=inside, other=0.0)
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
        # To nearest, ties to even, in whole numbers: how a conversion rounds is up to the device.
        bits = total.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        total = tl.where(total == total, bits.to(tl.float32, bitcast=True), total)
    tl.store(out + place.to(tl.int64) * out_row + column, total.to(out.dtype.element_ty), mask=inside)


class Packed(NamedTuple):
    """The rows made in some rounds, one after the other, with where their parts stand."""

    starts: list[int]  # first row of each round
    slot: Tensor
    weight: Tensor
    owner: Tensor
    step: Tensor
    key: Tensor
    draw: Tensor
    std: Tensor


class Fused:
    """All rows of a round in one launch."""

    def __init__(self, plan: Plan, noise: Draws, device: torch.device, layout: Layout | None = None) -> None:
        self.plan = plan
        self.layout = layout or Layout(plan)
        self.noise = noise
        self.device = device
        self._packed: tuple[int, Packed] | None = None
        self._places = torch.arange(self.layout.capacity, dtype=torch.int32, device=device)

    def __call__(self, work: Work) -> None:
        packed = self._pack(work.round // PACKED_ROUNDS)
        position = work.round % PACKED_ROUNDS
        rows, d = work.out.shape
        chosen = self._places[:rows]
        if work.only is not None:
            chosen = torch.from_numpy(work.only.astype(np.int32)).to(self.device)
        if not len(chosen):
            return
        grid = (len(chosen), triton.cdiv(d, 4 * LANES))
        with torch.cuda.device_of(work.out):  # Triton launches on the current device
            _round[grid](
                work.out, work.before, work.gradient, chosen, packed.slot, packed.weight, packed.owner,
                packed.step, packed.key, packed.draw, packed.std, packed.starts[position], work.first,
                work.round, d, work.out.stride(0), work.before.stride(0), work.gradient.stride(0),
                W=packed.slot.shape[1], V=packed.draw.shape[1], LANES=LANES,
            )  # fmt: skip

    def _pack(self, chunk: int) -> Packed:
        if self._packed is None or self._packed[0] != chunk:
            stop = min((chunk + 1) * PACKED_ROUNDS, self.plan.releases)
            self._packed = (chunk, self._packed_rounds(range(chunk * PACKED_ROUNDS, stop)))
        return self._packed[1]

    def _packed_rounds(self, rounds: range) -> Packed:
        parts: list[list[np.ndarray]] = [[] for _ in range(7)]
        starts, total = [], 0
        for r in rounds:
            this = self.plan[r]
            rows, place = self.layout.made(r), self.layout.place(r)
            source, draw = this.source[rows], this.draw[rows]
            absent, silent = source < 0, draw < 0
            key, number = self.noise.names(np.where(silent, 0, draw))
            columns = (
                np.where(absent, 0, place[source]).astype(np.int32),
                np.where(absent, 0.0, this.weight[rows]).astype(np.float32),
                self.layout.place_of[self.plan.owner[rows]].astype(np.int32),
                this.step[rows].astype(np.float32),
                key.astype(np.int32),
                number.astype(np.int32),
                np.where(silent, 0.0, this.std[rows]).astype(np.float32),
            )
            for part, column in zip(parts, columns, strict=True):
                part.append(column)
            starts.append(total)
            total += len(rows)
        return Packed(starts, *(torch.from_numpy(np.concatenate(part)).to(self.device) for part in parts))

"""Matrix products of every agent's own matrices, as tiles of 24 sums that stay in a processor's registers.

Two kinds serve a linear layer: `dots`, where both factors lie along what is summed (forwards), and `outers`,
where both lie along what comes out (back, and for the gradient). Nothing is copied or turned on the way, and
all agents are one call: for batches of some dozens, that is what libraries lose their time with.

Each number is added up in an order that follows from the length of its sum alone, and each step is rounded
once. So it has the same bits whatever is computed beside it, by any thread, on every processor that is wide
enough. Which products come here is for `products`.
"""

# Numba compiles these functions from their source: annotations are Numba's.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-unimported"

from __future__ import annotations

from itertools import product

import numpy as np
from llvmlite import ir
from numba import intp, void
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from topdp.learning.compiled import compiled_for

LANES = 16  # numbers in one register
SIZE = 4  # bytes of a number
DOTS = 4, 6  # rows of either factor in one tile: 24 sums, and 32 registers in all
OUTERS = 6, 4  # rows, and registers of columns
COLUMNS = LANES * OUTERS[1]

LONG = 1024
"""Numbers of a row that are taken at a time, so that six rows stay next to the processor."""

DEEP = 128
"""Terms that are summed before they are put into memory: as many parts of rows stay next to the processor."""

TALL = 64
"""Rows of the first factor that all rows of the second one meet before the next come."""

_INT, _FLOAT = ir.IntType(64), ir.FloatType()
_WIDE = ir.VectorType(_FLOAT, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_ALIGN = ir.Constant(ir.IntType(32), SIZE)
_ZERO = ir.Constant(_WIDE, [0.0] * LANES)


def here() -> bool:
    """Whether Numba compiles for registers of 16 numbers, and enough of them.

    It may have been told to compile for another processor than this one, which took 100 times as long.
    """
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+avx512f" in features.split(",")


class _Code:
    """What both tiles are written with. Addresses and steps between rows are in bytes."""

    def __init__(self, builder) -> None:
        self.builder = builder

    def at(self, address, *offsets, kind=_WIDE):
        for offset in offsets:
            address = self.builder.add(address, _INT(offset) if isinstance(offset, int) else offset)
        return self.builder.inttoptr(address, kind.as_pointer())

    def rows(self, first, step, limit, count):
        """Addresses of `count` rows; beyond the limit the last one again, of which nothing is kept."""
        build, last = self.builder, self.builder.sub(limit, _INT(1))
        least = [
            build.select(build.icmp_signed("<", _INT(row), last), _INT(row), last) for row in range(count)
        ]
        return [build.add(first, build.mul(row, step)) for row in least]

    def load(self, pointer):
        value = self.builder.load(pointer)
        value.align = SIZE
        return value

    def store(self, value, pointer):
        self.builder.store(value, pointer).align = SIZE

    def spread(self, value, kind=_WIDE):
        """The same number in all lanes."""
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0))
        return self.shuffle(one, one, [0] * LANES)

    def shuffle(self, one, other, lanes):
        indices = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        return self.builder.shuffle_vector(one, other, indices)

    def below(self, count):
        """Lanes before `count`."""
        kind = ir.VectorType(_INT, LANES)
        numbers = ir.Constant(kind, list(range(LANES)))
        return self.builder.icmp_signed("<", numbers, self.spread(count, kind))

    def masked_load(self, pointer, mask):
        """0 where there is nothing to read."""
        kind = ir.FunctionType(_WIDE, [pointer.type, _ALIGN.type, _MASK, _WIDE])
        return self._call("llvm.masked.load.v16f32.p0", kind, pointer, _ALIGN, mask, _ZERO)

    def masked_store(self, value, pointer, mask):
        kind = ir.FunctionType(ir.VoidType(), [_WIDE, pointer.type, _ALIGN.type, _MASK])
        self._call("llvm.masked.store.v16f32.p0", kind, value, pointer, _ALIGN, mask)

    def add_product(self, sums, one, other):
        """Multiplied and added with one rounding."""
        kind = ir.FunctionType(_WIDE, [_WIDE] * 3)
        total = self._call("llvm.fma.v16f32", kind, one, other, self.builder.load(sums))
        self.builder.store(total, sums)

    def registers(self, *shape):
        """Places for sums by their indices; LLVM keeps them in registers."""
        return {index: cgutils.alloca_once(self.builder, _WIDE) for index in product(*map(range, shape))}

    def _call(self, name, kind, *given):
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), given)

    def lane_sums(self, vectors):
        """One vector, of which the first lanes are the sums over all lanes of each of up to 16 vectors."""
        vectors = [*vectors, *[_ZERO] * (-len(vectors) % (1 << (len(vectors) - 1).bit_length()))]
        width = LANES  # lanes that belong to one sum
        while width > 1:
            starts, width = range(0, LANES, width), width // 2
            left = [start + lane for start in starts for lane in range(width)]
            pairs = list(zip(vectors[::2], vectors[1::2] or [_ZERO], strict=True))
            lower = [*left, *(LANES + lane for lane in left)]
            upper = [lane + width for lane in lower]
            vectors = [
                self.builder.fadd(self.shuffle(*pair, lower), self.shuffle(*pair, upper)) for pair in pairs
            ]
        return vectors[0]


@intrinsic
def _dots(context, x, x_step, w, w_step, count, start, start_step, out, out_step, rows, columns):
    """out[r, c] = start[r, c] + Σ_k x[r, k]·w[c, k], for one tile."""

    def write(context, builder, signature, given):
        x, x_step, w, w_step, count, start, start_step, out, out_step, rows, columns = given
        code = _Code(builder)
        height, width = DOTS
        left, right = code.rows(x, x_step, rows, height), code.rows(w, w_step, columns, width)
        sums = code.registers(height, width)
        for place in sums.values():
            builder.store(_ZERO, place)

        def step(load):
            """One register of each row."""
            each = [load(row) for row in right]
            for r in range(height):
                one = load(left[r])
                for c in range(width):
                    code.add_product(sums[r, c], one, each[c])

        whole = builder.udiv(count, _INT(LANES))
        with cgutils.for_range(builder, whole) as loop:
            along = builder.mul(loop.index, _INT(SIZE * LANES))
            step(lambda row: code.load(code.at(row, along)))
        rest = builder.urem(count, _INT(LANES))
        with builder.if_then(builder.icmp_signed(">", rest, _INT(0))):
            along, mask = builder.mul(whole, _INT(SIZE * LANES)), code.below(rest)
            step(lambda row: code.masked_load(code.at(row, along), mask))
        mask = code.below(columns)
        for r in range(height):
            with builder.if_then(builder.icmp_signed("<", _INT(r), rows)):
                found = code.lane_sums([builder.load(sums[r, c]) for c in range(width)])
                before = code.masked_load(code.at(start, builder.mul(start_step, _INT(r))), mask)
                place = code.at(out, builder.mul(out_step, _INT(r)))
                code.masked_store(builder.fadd(before, found), place, mask)
        return context.get_dummy_value()

    return void(*[intp] * 11), write


def _outers(registers, masked):
    """A tile of 6 rows and so many registers of columns; `masked`: of which some are not there."""

    @intrinsic
    def tile(context, d, d_step, d_next, a, a_step, count, fresh, out, out_step, rows, columns):
        """out[r, c] = (0 if fresh else out[r, c]) + Σ_k d[k, r]·a[k, c]."""

        def write(context, builder, signature, given):
            d, d_step, d_next, a, a_step, count, fresh, out, out_step, rows, columns = given
            code = _Code(builder)
            height = OUTERS[0]
            mask = code.below(columns) if masked else None
            left, targets = code.rows(d, d_next, rows, height), code.rows(out, out_step, rows, height)
            sums = code.registers(height, registers)

            def load(pointer):
                return code.load(pointer) if mask is None else code.masked_load(pointer, mask)

            with builder.if_else(builder.icmp_signed("!=", fresh, _INT(0))) as (new, old):
                with new:
                    for place in sums.values():
                        builder.store(_ZERO, place)
                with old:
                    for (r, c), place in sums.items():
                        builder.store(load(code.at(targets[r], SIZE * LANES * c)), place)
            with cgutils.for_range(builder, count) as loop:
                along, down = builder.mul(loop.index, a_step), builder.mul(loop.index, d_step)
                each = [load(code.at(a, along, SIZE * LANES * c)) for c in range(registers)]
                for r in range(height):
                    factor = code.spread(code.load(code.at(left[r], down, kind=_FLOAT)))
                    for c in range(registers):
                        code.add_product(sums[r, c], factor, each[c])
            for r in range(height):
                with builder.if_then(builder.icmp_signed("<", _INT(r), rows)):
                    for c in range(registers):
                        total, place = builder.load(sums[r, c]), code.at(targets[r], SIZE * LANES * c)
                        if mask is None:
                            code.store(total, place)
                        else:
                            code.masked_store(total, place, mask)
            return context.get_dummy_value()

        return void(*[intp] * 11), write

    return tile


_wide_outers = _outers(OUTERS[1], masked=False)
_narrow_outers = _outers(1, masked=True)


@compiled_for("void(f4[:,:,:], f4[:,:,:], f4[:,:], f4[:,:,:])")
def dots(x, w, bias, out):
    """out [n, m, o] becomes the products of x [n, m, k] and w [n, o, k], plus bias [n, o], or [0, o]: none.

    The last axis of x, w and out lies in memory without gaps.
    """
    agents, m, k = x.shape
    o = w.shape[1]
    height, width = DOTS
    x_step, w_step, out_step = x.strides[1], w.strides[1], out.strides[1]
    nothing = np.zeros(LANES, np.float32)
    for agent in range(agents):
        for low in range(0, m, TALL):
            for piece in range(0, max(1, k), LONG):
                count = min(LONG, k - piece)
                for column in range(0, o, width):
                    columns = min(width, o - column)
                    right = w[agent].ctypes.data + column * w_step + SIZE * piece
                    for row in range(low, min(m, low + TALL), height):
                        left = x[agent].ctypes.data + row * x_step + SIZE * piece
                        target = out[agent].ctypes.data + row * out_step + SIZE * column
                        start, start_step = target, out_step
                        if piece == 0:
                            start, start_step = nothing.ctypes.data, 0
                            if bias.shape[0]:
                                start = bias[agent].ctypes.data + SIZE * column
                        _dots(
                            left, x_step, right, w_step, count, start, start_step, target, out_step,
                            min(height, m - row), columns,
                        )  # fmt: skip


@compiled_for("void(f4[:,:,:], f4[:,:,:], f4[:,:,:], b1)")
def outers(out, delta, a, fresh):
    """out [n, o, i] gets, or where `fresh` becomes, the sum over m of delta [n, m, o] times a [n, m, i].

    The last axis of out and a lies in memory without gaps; delta may lie as it likes.
    """
    agents, m, i = a.shape
    o = delta.shape[2]
    height = OUTERS[0]
    d_step, d_next, a_step, out_step = delta.strides[1], delta.strides[2], a.strides[1], out.strides[1]
    for agent in range(agents):
        for low in range(0, max(1, m), DEEP):
            count, new = min(DEEP, m - low), intp(fresh and low == 0)
            column = 0
            while column < i:
                wide = i - column >= COLUMNS
                right = a[agent].ctypes.data + low * a_step + SIZE * column
                for row in range(0, o, height):
                    left = delta[agent].ctypes.data + low * d_step + row * d_next
                    target = out[agent].ctypes.data + row * out_step + SIZE * column
                    rows = min(height, o - row)
                    if wide:
                        _wide_outers(
                            left, d_step, d_next, right, a_step, count, new, target, out_step, rows, COLUMNS
                        )
                    else:
                        _narrow_outers(
                            left, d_step, d_next, right, a_step, count, new, target, out_step,
                            rows, min(LANES, i - column),
                        )  # fmt: skip
                column += COLUMNS if wide else LANES

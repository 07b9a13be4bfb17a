"""Rows of a round in one pass over memory: sources, gradient and noise meet next to the processor.

A thousand numbers of a row at a time are mixed, stepped and noised before the next come. Additions and
multiplications are made in the order in which the plan names them, and rounded one by one: the same bits on
every processor. What is mixed of what is for `mixing`.
"""

# Numba compiles these functions from their source: annotations are Numba's.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-unimported"

from __future__ import annotations

import numpy as np
from numba import float32, int32, intp, types, uint16
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from topdp.learning.numba_cache import compiled
from topdp.simulator.normal_draws import BLOCK, PAIRS, bits_of, number_of, pairs_of, words_of

_HALF = int32(0x7FFF)
_NO_NUMBER = uint16(0x7FC0)


@intrinsic
def _row(context, rows, index):
    """Row number `index` of `rows` [m, d], in which no row has gaps: as an array that has none."""
    kind = types.Array(rows.dtype, 1, "C")

    def write(context, builder, signature, given):
        whole = context.make_array(signature.args[0])(context, builder, given[0])
        (step, size), (_, width) = (
            cgutils.unpack_tuple(builder, part, 2) for part in (whole.strides, whole.shape)
        )
        made = context.make_array(kind)(context, builder)
        first = cgutils.pointer_add(builder, whole.data, builder.mul(given[1], step))
        populate_array(made, data=first, shape=[width], strides=[size], itemsize=size, meminfo=None)
        return made._getvalue()

    return kind(rows, intp), write


@compiled
def make(before, gradient, out, places, source, weight, whose, step, seeds, std, rounded):
    """Rows `places` of `out` become Σ weight·(rows `source` of `before`) + step·(row `whose` of `gradient`)
    + Σ std·draw; for each place one row of `source`, `weight`, `std` and `seeds`, and one of the others.

    Whose source is -1, or whose weight, step or deviation is 0, is left out. With `rounded`, `before` and
    `out` hold the bits of bfloat16: sums are rounded once, when they are put in place. Sums are of the type
    that weights have.
    """
    width = out.shape[1]
    words, z = np.empty(PAIRS, np.uint64), np.empty(BLOCK, np.float32)
    total, wide = np.empty(BLOCK, weight.dtype), np.empty(BLOCK, weight.dtype)
    for row in range(len(places)):
        target = _row(out, places[row])
        for block in range((width + BLOCK - 1) // BLOCK):
            low = block * BLOCK
            count = min(BLOCK, width - low)
            empty = True
            for k in range(source.shape[1]):
                if source[row, k] < 0 or weight[row, k] == 0:
                    continue
                values = _row(before, source[row, k])[low : low + count]
                if rounded:
                    for j in range(count):
                        wide[j] = number_of(int32(values[j]) << int32(16))
                    _add(total, wide, weight[row, k], count, empty)
                else:
                    _add(total, values, weight[row, k], count, empty)
                empty = False
            if step[row] != 0:
                _add(total, _row(gradient, whose[row])[low : low + count], step[row], count, empty)
                empty = False
            if empty:
                total[:count] = 0
            for k in range(std.shape[1]):
                if std[row, k] != 0:
                    words_of(seeds[row, k], block, words)
                    pairs_of(words, z)
                    _add(total, z, std[row, k], count, False)
            part = target[low : low + count]
            if rounded:
                for j in range(count):
                    # To nearest, ties to even; what is no number stays none.
                    bits = bits_of(float32(total[j]))
                    up = (bits + _HALF + ((bits >> int32(16)) & int32(1))) >> int32(16)
                    part[j] = _NO_NUMBER if np.isnan(total[j]) else uint16(up)
            else:
                for j in range(count):
                    part[j] = total[j]


@compiled
def _add(total, values, factor, count, fresh):
    """The first `count` of `total` get (or, where `fresh`, become) as many of `values`, times `factor`."""
    if fresh:
        for j in range(count):
            total[j] = factor * values[j]
    else:
        for j in range(count):
            total[j] += factor * values[j]

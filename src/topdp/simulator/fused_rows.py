"""The computation of rows in one pass over memory: mixing, gradient step and noise, block by block.

Additions and multiplications happen in the order of the plan and are rounded one by one, so the bits are the
same on every processor. `row_mixing` decides from which rows a row is mixed.
"""

# Numba compiles these functions from their source, so annotations and types follow Numba's rules.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-unimported"

from __future__ import annotations

import numpy as np
from numba import float32, int32, intp, types, uint16
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from topdp.learning.numba_cache import compiled
from topdp.simulator.normal_draws import BLOCK_NUMBERS, BLOCK_PAIRS, bits_of, number_of, pairs_of, words_of

_HALF = int32(0x7FFF)
_NAN_BITS = uint16(0x7FC0)


@intrinsic
def _row(context, rows, index):
    """Return row `index` of `rows` [m, d] as a contiguous array; each row must be contiguous in memory."""
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
def make(before, gradient, out, places, source, weight, owner, step, keys, names, std, rounded):
    """Set rows `places` of `out` to Σ weight·(rows `source` of `before`) + step·(row `owner` of `gradient`)
    + Σ std·draw.

    `source`, `weight`, `names` (of the draws, by `Draws.names`) and `std` have one row for each place;
    `owner` and `step` have one number. Terms with source -1, or with weight, step or deviation 0, are left
    out. With `rounded`, `before` and `out` hold the bits of bfloat16, and sums are rounded once, when they
    are stored. Sums have the number type of `weight`.
    """
    width = out.shape[1]
    words, z = np.empty(BLOCK_PAIRS, np.uint64), np.empty(BLOCK_NUMBERS, np.float32)
    total, wide = np.empty(BLOCK_NUMBERS, weight.dtype), np.empty(BLOCK_NUMBERS, weight.dtype)
    for row in range(len(places)):
        target = _row(out, places[row])
        for block in range((width + BLOCK_NUMBERS - 1) // BLOCK_NUMBERS):
            low = block * BLOCK_NUMBERS
            count = min(BLOCK_NUMBERS, width - low)
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
                _add(total, _row(gradient, owner[row])[low : low + count], step[row], count, empty)
                empty = False
            if empty:
                total[:count] = 0
            for k in range(std.shape[1]):
                if std[row, k] != 0:
                    run, moment, number = names[row, k]
                    words_of(keys[run], moment, number, block, words)
                    pairs_of(words, z)
                    _add(total, z, std[row, k], count, False)
            part = target[low : low + count]
            if rounded:
                for j in range(count):
                    # Round to nearest, ties to even; NaN stays NaN.
                    bits = bits_of(float32(total[j]))
                    up = (bits + _HALF + ((bits >> int32(16)) & int32(1))) >> int32(16)
                    part[j] = _NAN_BITS if np.isnan(total[j]) else uint16(up)
            else:
                for j in range(count):
                    part[j] = total[j]


@compiled
def _add(total, values, factor, count, fresh):
    """Add `factor` times the first `count` of `values` to `total`; if `fresh`, overwrite `total`."""
    if fresh:
        for j in range(count):
            total[j] = factor * values[j]
    else:
        for j in range(count):
            total[j] += factor * values[j]

"""Standard normal numbers from counters, in one pass.

Random bits come from a counter whose values are mixed, so any part of a draw can be made separately. All
other operations are additions, multiplications, divisions and roots, which IEEE 754 defines to the last bit.
So the same seed gives the same numbers on every processor. `simulated_noise` chooses the seed of each draw.
"""

# Numba compiles these functions from their source, so annotations and types follow Numba's rules.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-unimported"

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import float32, int32, uint64
from numba.extending import intrinsic

from topdp.learning.numba_cache import compiled

BLOCK_PAIRS = 512  # pairs of numbers in a block; its temporary arrays fit into the cache
BLOCK_NUMBERS = 2 * BLOCK_PAIRS

_ROOT_HALF = np.int32(0x3F3504F3)  # the bits of √½ in float32
_FRACTION = np.int32(0x007FFFFF)
_TWO_LN_2 = np.float32(2 * math.log(2))
_EIGHTH_TURN = np.float32(math.pi / 4 * 2.0**-31)  # a number of 32 bits becomes an angle from -π/4 to π/4
_HALF, _ONE, _FOUR = np.float32(0.5), np.float32(1), np.float32(4)
# Coefficients of Taylor series; later terms are below half of float32's last place.
_L3, _L5, _L7, _L9 = (np.float32(1 / k) for k in (3, 5, 7, 9))
_S3, _S5, _S7, _S9 = (np.float32((-1) ** (k // 2) / math.factorial(k)) for k in (3, 5, 7, 9))
_C2, _C4, _C6, _C8, _C10 = (np.float32((-1) ** (k // 2) / math.factorial(k)) for k in (2, 4, 6, 8, 10))


@intrinsic
def bits_of(context, number):
    """Return the bits of a float32."""
    return int32(float32), lambda context, builder, signature, given: builder.bitcast(*given, ir.IntType(32))


@intrinsic
def number_of(context, bits):
    """Return the float32 with these bits."""
    return float32(int32), lambda context, builder, signature, given: builder.bitcast(*given, ir.FloatType())


@compiled
def words_of(seed, block, words):
    """Set `words` [BLOCK_PAIRS] to the random words of block number `block` for `seed` [2]."""
    # SplitMix (Steele, Lea and Flood 2014): the mixed values of a counter; the seed gives start and odd step.
    step = seed[1] | uint64(1)
    start = seed[0] + uint64(block) * uint64(BLOCK_PAIRS) * step
    for i in range(BLOCK_PAIRS):
        word = start + uint64(i) * step
        word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
        words[i] = word ^ (word >> uint64(31))


@compiled
def pairs_of(words, out):
    """Set `out` [BLOCK_NUMBERS] to the normal numbers of `words` [BLOCK_PAIRS]."""
    # Box and Muller 1958: √(-2 ln u)·(cos 2πv, sin 2πv). 31 bits of the first 32 bits are a number k, and
    # u = (k + ½)·2⁻³¹ is from 2⁻³² to 1. 30 bits of the other 32 bits are v within a quarter turn, and the
    # other two bits select the quarter.
    bits = words.view(np.int32)
    radii, angles, first, second = (
        bits[:BLOCK_PAIRS],
        bits[BLOCK_PAIRS:],
        out[:BLOCK_PAIRS],
        out[BLOCK_PAIRS:],
    )
    for j in range(BLOCK_PAIRS):
        # k + ½ = m·2^e with m from √½ to √2, and ln m = 2 artanh s with s = (m - 1) / (m + 1), at most 0.172.
        above = bits_of(float32(radii[j] & int32(0x7FFFFFFF)) + _HALF) - _ROOT_HALF
        m = number_of((above & _FRACTION) + _ROOT_HALF)
        s = (m - _ONE) / (m + _ONE)
        q = s * s
        artanh = s * (_ONE + q * (_L3 + q * (_L5 + q * (_L7 + q * _L9))))
        radius = math.sqrt(float32(int32(31) - (above >> int32(23))) * _TWO_LN_2 - _FOUR * artanh)
        v = angles[j]
        x = float32(int32(v << int32(2))) * _EIGHTH_TURN
        q = x * x
        sine = x * (_ONE + q * (_S3 + q * (_S5 + q * (_S7 + q * _S9))))
        cosine = _ONE + q * (_C2 + q * (_C4 + q * (_C6 + q * (_C8 + q * _C10))))
        radius = -radius if v < int32(0) else radius
        turned = (v >> int32(30)) & int32(1)
        first[j] = radius * (sine if turned else cosine)
        second[j] = radius * (-cosine if turned else sine)


@compiled
def add(seed, std, out):
    """Add `std` times the draw of `seed` to `out` [d]."""
    words, z = np.empty(BLOCK_PAIRS, np.uint64), np.empty(BLOCK_NUMBERS, np.float32)
    for block in range((len(out) + BLOCK_NUMBERS - 1) // BLOCK_NUMBERS):
        words_of(seed, block, words)
        pairs_of(words, z)
        part = out[block * BLOCK_NUMBERS : (block + 1) * BLOCK_NUMBERS]
        for j in range(len(part)):
            part[j] += std * z[j]

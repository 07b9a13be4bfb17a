"""Standard normal numbers from the keystream of ChaCha20, in one pass.

The nonce of the cipher names the draw, and its counter the place in the draw, so any part of a draw can be
made separately. All other operations are additions, multiplications, divisions and roots, which IEEE 754
defines to the last bit. So the same key gives the same numbers on every processor. `simulated_noise` chooses
the key and the name of each draw.

**Guarantees.** Without the 256 bits of the key, nobody is known to tell the bits from independent ones, or
to compute the others from some of them. A radius has 31 bits, so draws end at 6.6 deviations.
"""

# Numba compiles these functions from their source, so annotations and types follow Numba's rules.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-unimported"

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import float32, int32, uint32, uint64
from numba.extending import intrinsic

from topdp.learning.numba_cache import compiled

BLOCK_PAIRS = 512  # pairs of numbers in a block; its temporary arrays fit into the cache
BLOCK_NUMBERS = 2 * BLOCK_PAIRS
CIPHER_BLOCKS = BLOCK_NUMBERS // 16  # the cipher makes 16 words of 32 bits at a time

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
def _quarter(a, b, c, d):
    a = uint32(a + b)
    d = uint32(d ^ a)
    d = uint32(uint32(d << uint32(16)) | uint32(d >> uint32(16)))
    c = uint32(c + d)
    b = uint32(b ^ c)
    b = uint32(uint32(b << uint32(12)) | uint32(b >> uint32(20)))
    a = uint32(a + b)
    d = uint32(d ^ a)
    d = uint32(uint32(d << uint32(8)) | uint32(d >> uint32(24)))
    c = uint32(c + d)
    b = uint32(b ^ c)
    b = uint32(uint32(b << uint32(7)) | uint32(b >> uint32(25)))
    return a, b, c, d


@compiled
def _double_round(a, b, c, d):
    """Return the rows of the cipher's state after two rounds: one on its columns, one on its diagonals."""
    a0, b0, c0, d0 = _quarter(a[0], b[0], c[0], d[0])
    a1, b1, c1, d1 = _quarter(a[1], b[1], c[1], d[1])
    a2, b2, c2, d2 = _quarter(a[2], b[2], c[2], d[2])
    a3, b3, c3, d3 = _quarter(a[3], b[3], c[3], d[3])
    a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
    a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
    a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
    a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return (a0, a1, a2, a3), (b0, b1, b2, b3), (c0, c1, c2, c3), (d0, d1, d2, d3)


@compiled
def words_of(key, round, draw, block, words):
    """Set `words` [BLOCK_PAIRS] to the random words of block number `block` of a draw. `key`: [8] of 32 bits.

    Word k of every cipher block, then word k + 1 of every cipher block.
    """
    # ChaCha20 (RFC 8439): constants, key, counter, nonce. The nonce is the round and both halves of `draw`.
    # Cipher blocks are independent, so the processor makes 8 or 16 of them at a time; for that, the rounds
    # stand here one by one. The counter has 32 bits: enough for rows of 2³⁶ numbers.
    out = words.view(np.uint32)
    text = uint32(0x61707865), uint32(0x3320646E), uint32(0x79622D32), uint32(0x6B206574)
    low, high = (key[0], key[1], key[2], key[3]), (key[4], key[5], key[6], key[7])
    nonce = uint32(round), uint32(draw), uint32(uint64(draw) >> uint64(32))
    first = uint32(uint64(block) * uint64(CIPHER_BLOCKS))
    for i in range(CIPHER_BLOCKS):
        count = uint32(first + uint32(i))
        end = count, nonce[0], nonce[1], nonce[2]
        a, b, c, d = _double_round(text, low, high, end)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        a, b, c, d = _double_round(a, b, c, d)
        for k in range(4):
            out[k * CIPHER_BLOCKS + i] = uint32(a[k] + text[k])
            out[(4 + k) * CIPHER_BLOCKS + i] = uint32(b[k] + low[k])
            out[(8 + k) * CIPHER_BLOCKS + i] = uint32(c[k] + high[k])
            out[(12 + k) * CIPHER_BLOCKS + i] = uint32(d[k] + end[k])


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
def add(key, round, draw, std, out):
    """Add `std` times the draw number `draw` of `round` to `out` [d]."""
    words, z = np.empty(BLOCK_PAIRS, np.uint64), np.empty(BLOCK_NUMBERS, np.float32)
    for block in range((len(out) + BLOCK_NUMBERS - 1) // BLOCK_NUMBERS):
        words_of(key, round, draw, block, words)
        pairs_of(words, z)
        part = out[block * BLOCK_NUMBERS : (block + 1) * BLOCK_NUMBERS]
        for j in range(len(part)):
            part[j] += std * z[j]

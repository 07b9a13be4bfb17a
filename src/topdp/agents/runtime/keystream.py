"""Random numbers for what hides data: normal draws and coins from a cipher, keyed by the operating system.

Or, for draws that two agents share, by keys that only these two can derive. Not for simulations, whose
numbers are named by a seed (`plan.streams`), and not for keys or names, which `secrets` makes.

**Guarantees.** Bits are the keystream of ChaCha20 under 256 fresh bits of the operating system for every
`CHUNK` numbers. No key is kept: none is used twice, after a fork, a restart or in another process either, and
who has worked out some numbers learns nothing of others. Normal draws are those of Box and Muller in float64,
up to 9.3 deviations; what floating point does not promise is in docs/privacy.md. Under given keys the same
numbers come again, on another machine up to the last digit of its logarithm and cosine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from topdp.base.array_types import Bools

CHUNK = 2**16  # numbers under one key, and in memory at a time
NOTHING = bytes(8 * CHUNK)  # enciphered, it is the keystream itself


KeyOfPiece = Callable[[int], bytes]
"""The key under which piece 0, 1, 2, ... of a draw is made."""


def words(count: int, key: bytes | None = None) -> NDArray[np.uint64]:
    """Up to `CHUNK` random numbers of 64 bits, under a key of their own."""
    assert count <= CHUNK, count
    cipher = Cipher(algorithms.ChaCha20(key or os.urandom(32), bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(memoryview(NOTHING)[: 8 * count]), "<u8")


def normals(count: int, key: KeyOfPiece | None = None) -> Iterator[Tensor]:
    """`count` standard normal draws in float64, `CHUNK` at a time; fresh ones without `key`."""
    for piece, begun in enumerate(range(0, count, CHUNK)):
        yield _normals(min(CHUNK, count - begun), key(piece) if key else None)


def _normals(count: int, key: bytes | None) -> Tensor:
    half = -(-count // 2)
    bits = words(2 * half, key)
    # Box and Muller 1958: √(-2 ln u)·(cos 2πv, sin 2πv), with u in (0, 1] down to 2⁻⁶³ and v in [-½, ½].
    # Signed numbers become float64 eight times faster than unsigned ones.
    u = ((bits[:half] >> np.uint64(1)).view(np.int64) + 1.0) * 2.0**-63
    angle = torch.from_numpy(bits[half:].view(np.int64) * (math.pi * 2.0**-63))
    both = torch.empty((2, half), dtype=torch.float64)
    torch.cos(angle, out=both[0])
    torch.sin(angle, out=both[1])
    return both.mul_(torch.from_numpy(np.sqrt(-2 * np.log(u)))).view(-1)[:count]


def coins(count: int, probability: float) -> Bools:
    """`count` coins, each True with `probability` (to 2⁻⁵³)."""
    parts = [words(min(CHUNK, count - begun)) for begun in range(0, count, CHUNK)]
    return np.concatenate([(part >> np.uint64(11)) * 2.0**-53 < probability for part in parts])

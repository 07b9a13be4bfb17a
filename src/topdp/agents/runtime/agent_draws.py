"""What one agent leaves to chance in a round: its noise, and its sample where batches are Poisson's.

An agent draws what nobody can repeat (`SystemDraws`), or in tests what the simulator would (`SeededDraws`).
Draws that two agents share are derived from the seed that these two have agreed on (`agreement`).
The order of cyclic batches is not left to chance: it counts as known (`rows.AgentGradients`).

**Guarantees.** A round that was computed and not booked, because the agent was killed, is computed again with
a new sample and new noise. That is right, and repeating the old ones would add nothing: what is not on the
books never left the process, so nobody has seen the first attempt, and a kill that does not depend on what
was drawn leaves the second as fresh as the first. Shared draws are the same in both attempts. That is right
too: one row is seen with them, and they are independent of all else in it. Two *different rows* under one
shared draw, both seen, would cost many times their charges, because the draw is gone from their difference.
So what is on the books is never computed again: its stored bytes are sent. And an agent whose books do not
know of a row that left makes no further ones (`terms.run_key`). Nothing that was drawn is ever written down,
and of keys the run's alone, until the run ends.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from topdp.base.array_types import Bools
from topdp.plan.batches import Batches

NUMBERS_PER_KEY = 2**16  # numbers under one key, and in memory at a time
ZERO_BYTES = bytes(8 * NUMBERS_PER_KEY)  # enciphered, it is the keystream itself


KeyOfPiece = Callable[[int], bytes]
"""The key under which piece 0, 1, 2, ... of a draw is made."""


class AgentDraws(ABC):
    """The draws of one agent."""

    def share(self, seeds: Mapping[int, bytes]) -> None:  # noqa: B027 - draws of a seed need no other
        """`seeds`: for each draw that this agent shares with another, by its number, the seed of the two."""

    @abstractmethod
    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        """`row` gets `std` times the standard normal draw number `draw` of `round`."""

    @abstractmethod
    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        """The records of `agent` that the coins of `round` choose."""


@final
class SystemDraws(AgentDraws):
    """Draws that nobody can repeat, this agent included; those that are shared, by the other alone."""

    def __init__(self, shared: frozenset[int] = frozenset()) -> None:
        """`shared`: the draws that need a seed."""
        self.shared = shared
        self._seeds: Mapping[int, bytes] = {}

    def share(self, seeds: Mapping[int, bytes]) -> None:
        self._seeds = dict(seeds)

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        # Without the seed of the two it is not made at all: a draw that the other lacks never cancels.
        key = None
        if draw in self.shared:
            from topdp.agents.runtime.pair_keys import draw_key

            key = partial(draw_key, self._seeds[draw], round, draw)
        done = 0
        for z in normals(len(row), key):
            part = row[done : done + len(z)]
            part.copy_(z.mul_(std).add_(part))  # float64 until the sum is made: rounded once
            done += len(z)

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        mine = batches[agent]
        return torch.from_numpy(np.flatnonzero(coins(mine.records, mine.rate)))


def random_words(count: int, key: bytes | None = None) -> NDArray[np.uint64]:
    """Up to `NUMBERS_PER_KEY` random numbers of 64 bits, under a key of their own."""
    assert count <= NUMBERS_PER_KEY, count
    cipher = Cipher(algorithms.ChaCha20(key or os.urandom(32), bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(memoryview(ZERO_BYTES)[: 8 * count]), "<u8")


def normals(count: int, key: KeyOfPiece | None = None) -> Iterator[Tensor]:
    """`count` standard normal draws in float64, `NUMBERS_PER_KEY` at a time; fresh ones without `key`."""
    for piece, begun in enumerate(range(0, count, NUMBERS_PER_KEY)):
        yield _normals(min(NUMBERS_PER_KEY, count - begun), key(piece) if key else None)


def _normals(count: int, key: bytes | None) -> Tensor:
    half = -(-count // 2)
    bits = random_words(2 * half, key)
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
    parts = [random_words(min(NUMBERS_PER_KEY, count - begun)) for begun in range(0, count, NUMBERS_PER_KEY)]
    return np.concatenate([(part >> np.uint64(11)) * 2.0**-53 < probability for part in parts])

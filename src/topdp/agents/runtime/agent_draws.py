"""The random numbers of one agent: its noise, and its sample where batches are Poisson.

Draws are numbers that nobody can repeat. Draws that two agents share come from the seed that these two agreed
on (`pair_keys`). The order of cyclic batches is not random: it counts as known (`agent_gradients`). Not for
simulations, whose numbers are named by a seed (`plan.random_streams`), and not for keys or names, which
`secrets` makes.

**Guarantees.** Bits are the keystream of ChaCha20 under 256 fresh bits of the operating system for every
`NUMBERS_PER_KEY` numbers. No key is kept: none is used twice, after a fork, a restart or in another process
either, and working out some numbers reveals nothing of others. Normal draws are those of Box and Muller in
float64, up to 9.3 deviations; docs/privacy.md states what floating point does not promise. Under given keys
the same numbers come again, on another machine up to the last digit of its logarithm and cosine.

A round that was computed and is not in the ledger, because the agent was killed, is computed again with a new
sample and new noise. That is right, and repeating the old ones would add nothing: what is not in the ledger
never left the process, so nobody has seen the first attempt, and a kill that does not depend on what was
drawn leaves the second as fresh as the first. Shared draws are the same in both attempts. That is right too:
one row is seen with them, and they are independent of all else in it. Two *different rows* under one shared
draw, both seen, would cost many times their charges, because the draw is gone from their difference. So what
is in the ledger is never computed again: its stored bytes are sent. And an agent whose ledger lacks a row
that left makes no further ones (`agreement/run_marks.py`). Nothing that was drawn is ever written down, and
of keys only the run's, until the run ends.
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
ZERO_BYTES = bytes(8 * NUMBERS_PER_KEY)  # their encryption is the keystream itself


KeyOfPiece = Callable[[int], bytes]
"""The key under which piece 0, 1, 2, ... of a draw is made."""


class AgentDraws(ABC):
    """The draws of one agent."""

    def share(self, seeds: Mapping[int, bytes]) -> None:  # noqa: B027 - draws of a seed need no other
        """`seeds`: for each draw that this agent shares, by its number, the seed of the pair."""

    @abstractmethod
    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        """Add `std` times the standard normal draw number `draw` of `round` to `row`."""

    @abstractmethod
    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        """The records of `agent` that the coins of `round` choose."""


@final
class SystemDraws(AgentDraws):
    """Draws that nobody can repeat, not even this agent; only the partner can repeat a shared draw."""

    def __init__(self, shared: frozenset[int] = frozenset()) -> None:
        """`shared`: the draws that need a seed."""
        self.shared = shared
        self._seeds: Mapping[int, bytes] = {}

    def share(self, seeds: Mapping[int, bytes]) -> None:
        self._seeds = dict(seeds)

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        # Without the pair's seed it is not made at all: a draw that the other agent lacks never cancels.
        key = None
        if draw in self.shared:
            from topdp.agents.runtime.pair_keys import draw_key

            key = partial(draw_key, self._seeds[draw], round, draw)
        done = 0
        for z in normals(len(row), key):
            part = row[done : done + len(z)]
            part.copy_(z.mul_(std).add_(part))  # in float64 until the sum is made: rounded once
            done += len(z)

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        mine = batches[agent]
        return torch.from_numpy(np.flatnonzero(coins(mine.records, mine.rate)))


def random_words(count: int, key: bytes | None = None) -> NDArray[np.uint64]:
    """Return up to `NUMBERS_PER_KEY` random 64-bit numbers, drawn under a separate key."""
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

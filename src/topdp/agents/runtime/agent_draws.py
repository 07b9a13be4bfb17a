"""The random numbers of one agent: its noise, and its sample if batches are Poisson.

Nobody can reproduce an agent's own draws. Draws that two agents share come from their pair secret
(`pair_keys`). The order of cyclic batches is not random: it counts as known (`agent_gradients`). Simulations
use other numbers, which a seed names (`plan.random_streams`); `secrets` makes keys and names.

**Guarantees.** Bits are the keystream of ChaCha20 under 256 fresh bits of the operating system for every
`NUMBERS_PER_KEY` numbers. No key is stored, so no key is used twice, not even after a fork, after a restart
or in another process, and some of the numbers reveal nothing of others. Normal draws are those of Box and
Muller in float64, up to 9.3 deviations; docs/privacy.md states what floating point does not guarantee. The
same keys give the same numbers, on another machine up to the last digit of its logarithm and cosine.

If an agent is killed after it computed a round and before the round is in its ledger, it computes the round
again with a new sample and new noise. This is correct, and repeating the old numbers would add nothing: what
is not in the ledger was not sent, so nobody has seen the first attempt; and if the kill does not depend on
the numbers, those of the second attempt are as fresh as the first. Shared draws are the same in both
attempts. This is correct too: one row with them is seen, and they are independent of everything else in it.
Two *different rows* with the same shared draw, both seen, would cost many times their charges, because the
draw cancels in their difference. So a round in the ledger is never computed again: its stored bytes are sent.
An agent whose ledger lacks a row that was sent makes no further rows (`agreement/run_marks.py`). Draws are
never written to disk; of the keys, only the key of the run is, until the run ends.
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
"""Returns the key of piece 0, 1, 2, ... of a draw."""


class AgentDraws(ABC):
    """The draws of one agent."""

    def set_pair_seeds(self, seeds: Mapping[int, bytes]) -> None:  # noqa: B027 - seeded draws need no secrets
        """Use these pair secrets for shared draws. `seeds` maps the number of a draw to its secret."""

    @abstractmethod
    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        """Add `std` times the standard normal draw number `draw` of `round` to `row`."""

    @abstractmethod
    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        """Return the records of `agent` in the Poisson sample of `round`."""


@final
class SystemDraws(AgentDraws):
    """Draws that nobody can reproduce, not even this agent; only its partner can reproduce a shared draw."""

    def __init__(self, shared: frozenset[int] = frozenset()) -> None:
        """`shared`: the draws that need a pair secret."""
        self.shared = shared
        self._seeds: Mapping[int, bytes] = {}

    def set_pair_seeds(self, seeds: Mapping[int, bytes]) -> None:
        self._seeds = dict(seeds)

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        # Without the pair secret this raises: a draw that the other agent lacks would never cancel.
        key = None
        if draw in self.shared:
            from topdp.agents.runtime.pair_keys import draw_key

            key = partial(draw_key, self._seeds[draw], round, draw)
        end = 0
        for z in normals(len(row), key):
            start, end = end, end + len(z)
            part = row[start:end]
            part.copy_(z.mul_(std).add_(part))  # the sum is in float64, and rounded once

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        own = batches[agent]
        return torch.from_numpy(np.flatnonzero(coin_flips(own.records, own.rate)))


def random_words(count: int, key: bytes | None = None) -> NDArray[np.uint64]:
    """Return up to `NUMBERS_PER_KEY` random 64-bit numbers, drawn under a separate key."""
    assert count <= NUMBERS_PER_KEY, count
    cipher = Cipher(algorithms.ChaCha20(key or os.urandom(32), bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(memoryview(ZERO_BYTES)[: 8 * count]), "<u8")


def normals(count: int, key: KeyOfPiece | None = None) -> Iterator[Tensor]:
    """Yield `count` standard normal numbers in float64, `NUMBERS_PER_KEY` at a time; fresh without `key`."""
    for piece, start in enumerate(range(0, count, NUMBERS_PER_KEY)):
        yield _normals(min(NUMBERS_PER_KEY, count - start), key(piece) if key else None)


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


def coin_flips(count: int, probability: float) -> Bools:
    """Return `count` independent coin flips, each True with `probability` (to 2⁻⁵³)."""
    parts = [random_words(min(NUMBERS_PER_KEY, count - start)) for start in range(0, count, NUMBERS_PER_KEY)]
    return np.concatenate([(part >> np.uint64(11)) * 2.0**-53 < probability for part in parts])

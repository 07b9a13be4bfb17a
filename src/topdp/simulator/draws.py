"""Standard normal draws, named by (seed, round, draw): the payload of a plan's noise in the simulator.

A draw does not depend on which other draws were made, so pruned, resumed and unbroken runs see the same
numbers. Not for real agents, whose noise comes from the operating system.

Bits are those of SFC64, started anew for every `BLOCK` numbers from a hash of their name; so any thread can
make any block. Normal draws are those of Box and Muller in the type of the row, up to 6.6 deviations.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topdp.errors import InputError
from topdp.plan.arrays import Ints
from topdp.plan.streams import stream

LIMIT = 2**31
"""Draws of a round, and rounds, that counters of 32 bits on a GPU can tell apart."""

BLOCK = 2**17
"""Numbers made at once: few calls for each, and all that is in between stays in a processor's cache."""


class Draws(Protocol):
    """The draws of a run, or of runs side by side (stacking.py)."""

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        """`out` [d] becomes draw number `draw` of `round`."""

    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        """For devices with a counter-based generator: its key for each of `draws`, and their numbers."""


class Noise:
    """Fills tensors with the draws of a run. Safe to call from several threads."""

    def __init__(self, seed: int, draws: int, releases: int) -> None:
        if max(draws, releases) > LIMIT:
            raise InputError(
                f"Expected at most {LIMIT} draws in a round and rounds in a run, got {draws} in each of "
                f"{releases} releases."
            )
        self._key = stream(seed, "noise").bytes(32)
        self._counter_key = int(stream(seed, "noise").integers(0, 2**31))

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        if out.device.type != "cpu" or out.dtype not in (torch.float32, torch.float64):
            return out.copy_(self.fill(torch.empty(out.shape), round, draw))
        row = out.numpy()
        for block, start in enumerate(range(0, len(row), BLOCK)):
            part = row[start : start + BLOCK]
            _normals(part, self._bits(-(-len(part) // 2), round, draw, block))
        return out

    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        return np.full_like(draws, self._counter_key), draws

    def _bits(self, count: int, *name: int) -> NDArray[np.int32]:
        """2·count numbers of 32 bits."""
        hashed = hashlib.blake2b(np.array(name, "<u8").tobytes(), digest_size=24, key=self._key).digest()
        words = _SFC64.started(np.frombuffer(hashed + _COUNTER, np.uint64))
        # `integers` lets other threads run, which `random_raw` does not.
        return words.integers(0, 2**64, count, np.uint64).view(np.int32)


class _Generators(threading.local):
    """One generator for each thread: to make one takes longer than to set its state."""

    def __init__(self) -> None:
        self._bits = np.random.SFC64(0)
        self._words = np.random.Generator(self._bits)

    def started(self, state: NDArray[np.uint64]) -> np.random.Generator:
        self._bits.state = {
            "bit_generator": "SFC64", "state": {"state": state}, "has_uint32": 0, "uinteger": 0
        }  # fmt: skip
        return self._words


_SFC64 = _Generators()
_COUNTER = (1).to_bytes(8, sys.byteorder)  # where SFC64 begins to count


def _normals(out: NDArray[Any], bits: NDArray[np.int32]) -> None:
    """`out` becomes the normal draws of `bits`, of which there are as many, or one more."""
    half, number = len(bits) // 2, out.dtype.type
    # Box and Muller 1958: √(-2 ln u)·(cos 2πv, sin 2πv), with u in (0, 1] down to 2⁻³² and v in [-½, ½).
    # Signed numbers become floats faster than unsigned ones; what is in between is written where it was read.
    radius = np.bitwise_and(bits[:half], 0x7FFFFFFF, out=bits[:half]).astype(number)
    radius += number(0.5)
    radius *= number(2.0**-31)
    np.log(radius, out=radius)
    radius *= number(-2)
    np.sqrt(radius, out=radius)
    first, second = out[:half], out[half:]
    first[:] = bits[half:]
    first *= number(math.pi * 2.0**-31)
    np.sin(first[: len(second)], out=second)
    np.cos(first, out=first)
    first *= radius
    second *= radius[: len(second)]

"""Standard normal draws, named by (seed, round, draw): the payload of a plan's noise in the simulator.

A draw does not depend on which other draws were made, so pruned, resumed and unbroken runs see the same
numbers; and on a CPU not on the machine either. Not for real agents, whose noise comes from the operating
system. How normal numbers are made of a seed is in `normals`; here is which seed belongs to which draw.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.plan.arrays import Ints
from topdp.plan.streams import stream

LIMIT = 2**31
"""Draws of a round, and rounds, that counters of 32 bits on a GPU can tell apart."""


class Draws(ABC):
    """The draws of a run, or of runs side by side (stacking.py)."""

    @abstractmethod
    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        """`row` [d] gets `std` times draw number `draw` of `round`."""

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        """`out` [d] becomes that draw."""
        self.add(out.zero_(), 1.0, round, draw)
        return out

    @abstractmethod
    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        """For devices with a counter-based generator: its key for each of `draws`, and their numbers."""


class Noise(Draws):
    """The draws of a run, by its seed. Safe to call from several threads."""

    def __init__(self, seed: int, draws: int, releases: int) -> None:
        if max(draws, releases) > LIMIT:
            raise InputError(
                f"Expected at most {LIMIT} draws in a round and rounds in a run, got {draws} in each of "
                f"{releases} releases."
            )
        self._key = stream(seed, "noise").bytes(32)
        self._counter_key = int(stream(seed, "noise").integers(0, 2**31))

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        from topdp.simulator import normals  # what it needs is not needed with a GPU

        if row.device.type != "cpu" or row.dtype not in (torch.float32, torch.float64):
            row.add_(self.fill(torch.empty(row.shape, dtype=torch.float32), round, draw).to(row), alpha=std)
            return
        name = np.array((round, draw), "<u8").tobytes()
        hashed = hashlib.blake2b(name, digest_size=16, key=self._key).digest()
        numbers = row.numpy()
        normals.add(np.frombuffer(hashed, "<u8"), numbers.dtype.type(std), numbers)  # type: ignore[no-untyped-call]

    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        return np.full_like(draws, self._counter_key), draws

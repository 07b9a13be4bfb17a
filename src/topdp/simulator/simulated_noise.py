"""Standard normal draws, named by (seed, round, draw): the payload of a plan's noise in the simulator.

A draw does not depend on which other draws were made, so pruned, resumed and unbroken runs see the same
numbers; and on a CPU not on the machine either. Not for real agents, whose noise comes from the operating
system. How normal numbers are made of a seed is in `normals`; here is which seed belongs to which draw.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.errors import InputError
from topdp.plan.random_streams import stream

Words = npt.NDArray[np.uint64]

LIMIT = 2**31
"""Draws of a round, and rounds, that counters of 32 bits on a GPU can tell apart."""


class Draws(ABC):
    """The draws of a run, or of runs side by side (stacking.py). Safe to call from several threads."""

    @abstractmethod
    def seeds(self, round: int, draws: Ints) -> Words:
        """[draws, 2]: of what `normals` makes each of these draws of `round`."""

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        """`out` [d] becomes draw number `draw` of `round`."""
        from topdp.simulator import normal_draws  # what it needs is not needed with a GPU

        z = np.zeros(len(out), np.float64 if out.dtype == torch.float64 else np.float32)
        normal_draws.add(self.seeds(round, np.array([draw]))[0], z.dtype.type(1), z)
        return out.copy_(torch.from_numpy(z))

    @abstractmethod
    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        """For devices with a counter-based generator: its key for each of `draws`, and their numbers."""


class SimulatedDraws(Draws):
    """The draws of a run, by its seed."""

    def __init__(self, seed: int, draws: int, releases: int) -> None:
        if max(draws, releases) > LIMIT:
            raise InputError(
                f"Expected at most {LIMIT} draws in a round and rounds in a run, got {draws} in each of "
                f"{releases} releases."
            )
        self._key = stream(seed, "noise").bytes(32)
        self._counter_key = int(stream(seed, "noise").integers(0, 2**31))

    def seeds(self, round: int, draws: Ints) -> Words:
        names = np.stack(np.broadcast_arrays(round, draws), axis=-1).astype("<u8").tobytes()
        each = (names[at : at + 16] for at in range(0, len(names), 16))
        hashed = [hashlib.blake2b(name, digest_size=16, key=self._key).digest() for name in each]
        return np.frombuffer(b"".join(hashed), "<u8").reshape(-1, 2)

    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        return np.full_like(draws, self._counter_key), draws

"""The draws of a plan's noise in the simulator, identified by (seed, round, draw).

A draw does not depend on which other draws are made, so pruned, resumed and uninterrupted runs use the same
numbers. On a CPU, a draw does not depend on the machine either. Real agents do not use these draws; their
noise comes from the operating system. `normal_draws` makes normal numbers from a seed; this module chooses
the seed of each draw.
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

# Limit of draws in a round, and of releases, because counters on a GPU have 32 bits.
MAX_COUNTED_DRAWS = 2**31


class Draws(ABC):
    """The draws of a run, or of stacked runs (run_stacking.py). Several threads may call the methods."""

    @abstractmethod
    def seeds(self, round: int, draws: Ints) -> Words:
        """Return the seeds [draws, 2] from which `normal_draws` makes these draws of `round`."""

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        """Set `out` [d] to draw number `draw` of `round`, and return `out`."""
        from topdp.simulator import normal_draws  # imports Numba, which is not needed with a GPU

        z = np.zeros(len(out), np.float64 if out.dtype == torch.float64 else np.float32)
        normal_draws.add(self.seeds(round, np.array([draw]))[0], z.dtype.type(1), z)
        return out.copy_(torch.from_numpy(z))

    @abstractmethod
    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        """Return (keys, numbers), which identify these draws for a counter-based generator on a GPU."""


class SimulatedDraws(Draws):
    """The draws of one run, which follow from its seed."""

    def __init__(self, seed: int, draws: int, releases: int) -> None:
        if max(draws, releases) > MAX_COUNTED_DRAWS:
            raise InputError(
                f"Expected at most {MAX_COUNTED_DRAWS} releases, with at most as many draws each, got "
                f"{releases} releases with {draws} draws."
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

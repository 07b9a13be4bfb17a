"""The draws of a plan's noise in the simulator, identified by (seed, round, draw).

A draw does not depend on which other draws are made, so pruned, resumed and unbroken runs use the same
numbers; on a CPU it does not depend on the machine either. Not for real agents, whose noise comes from the
operating system. `normal_draws` makes normal numbers from a seed; this file chooses the seed of each draw.
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

MAX_COUNTED_DRAWS = 2**31  # in a round; also the limit of rounds: counters on a GPU have 32 bits


class Draws(ABC):
    """The draws of a run, or of stacked runs (run_stacking.py). Safe to call from several threads."""

    @abstractmethod
    def seeds(self, round: int, draws: Ints) -> Words:
        """Return [draws, 2] the seeds from which `normal_draws` makes these draws of `round`."""

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        """Set `out` [d] to draw number `draw` of `round`."""
        from topdp.simulator import normal_draws  # Numba is not needed with a GPU

        z = np.zeros(len(out), np.float64 if out.dtype == torch.float64 else np.float32)
        normal_draws.add(self.seeds(round, np.array([draw]))[0], z.dtype.type(1), z)
        return out.copy_(torch.from_numpy(z))

    @abstractmethod
    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        """Return the key and the number of each draw, for devices with a counter-based generator."""


class SimulatedDraws(Draws):
    """The draws of one run, by its seed."""

    def __init__(self, seed: int, draws: int, releases: int) -> None:
        if max(draws, releases) > MAX_COUNTED_DRAWS:
            raise InputError(
                f"Expected at most {MAX_COUNTED_DRAWS} draws in a round and rounds in a run, got {draws} in "
                f"each of {releases} releases."
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

"""The draws of a plan's noise in the simulator, identified by (key, round, draw).

A draw does not depend on which other draws are made, so pruned, resumed and uninterrupted runs use the same
numbers. On a CPU, a draw does not depend on the machine either. Real agents do not use these draws; their
noise comes from the operating system. `normal_draws` makes normal numbers from a key and a name; this module
has the key of each run and the name of each draw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.errors import InputError
from topdp.plan.noise_key import NoiseKey

Keys = npt.NDArray[np.uint32]

# Limit of draws in a round, and of releases, because their numbers have 32 bits on a GPU.
MAX_COUNTED_DRAWS = 2**31


class Draws(ABC):
    """The draws of a run, or of stacked runs (run_stacking.py). Several threads may call the methods."""

    keys: Keys
    """[runs, 8]: the key of each run, in words of 32 bits."""

    @abstractmethod
    def names(self, round: int | Ints, draws: Ints) -> Ints:
        """Return the names [..., 3] of these draws: the run, which has one of `keys`, the round, and the
        number of the draw in its run.
        """

    def fill(self, out: Tensor, round: int, draw: int) -> Tensor:
        """Set `out` [d] to draw number `draw` of `round`, and return `out`."""
        from topdp.simulator import normal_draws  # imports Numba, which is not needed with a GPU

        z = np.zeros(len(out), np.float64 if out.dtype == torch.float64 else np.float32)
        run, moment, number = self.names(round, np.array(draw)).tolist()
        normal_draws.add(self.keys[run], moment, number, z.dtype.type(1), z)
        return out.copy_(torch.from_numpy(z))


class SimulatedDraws(Draws):
    """The draws of one run, which follow from its key."""

    def __init__(self, key: NoiseKey, draws: int, releases: int) -> None:
        if max(draws, releases) > MAX_COUNTED_DRAWS:
            raise InputError(
                f"Expected at most {MAX_COUNTED_DRAWS} releases, with at most as many draws each, got "
                f"{releases} releases with {draws} draws."
            )
        self.keys = np.frombuffer(key.derive("noise"), "<u4").reshape(1, 8)

    def names(self, round: int | Ints, draws: Ints) -> Ints:
        return np.stack(np.broadcast_arrays(0, round, draws), axis=-1)

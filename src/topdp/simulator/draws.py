"""Standard normal draws, named by (seed, round, draw): the payload of a plan's noise in the simulator.

A draw does not depend on which other draws were made, so pruned, resumed and unbroken runs see the same
numbers. Not for real agents, whose noise comes from the operating system.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.plan.arrays import Ints
from topdp.plan.streams import stream

# Distinct draws of one run get distinct generator states as long as their numbers fit 32 bits, which is all
# that the CPU generator takes of a seed.
LIMIT = 2**32


class Draws(Protocol):
    """The draws of a run, or of runs side by side (stacking.py)."""

    def fill(self, out: Tensor, round: int, draw: int, generator: torch.Generator) -> Tensor:
        """`out` becomes draw number `draw` of `round`; `generator` is scratch of the calling thread."""

    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        """For devices with a counter-based generator: its key for each of `draws`, and their numbers."""


class Noise:
    """Fills tensors with the draws of a run. Safe to call from several threads."""

    def __init__(self, seed: int, draws: int, releases: int) -> None:
        if draws * releases > LIMIT:
            raise InputError(
                f"Expected at most {LIMIT} draws in a run, got {draws} in each of {releases} releases."
            )
        self.draws = draws
        key = stream(seed, "noise").integers(0, 2**32, size=4, dtype=np.uint64)
        self._key = [int(k) for k in key]
        self._counter_key = int(stream(seed, "noise").integers(0, 2**31))

    def fill(self, out: Tensor, round: int, draw: int, generator: torch.Generator) -> Tensor:
        generator.manual_seed(self._scramble(round * self.draws + draw))
        return out.normal_(generator=generator)

    def names(self, draws: Ints) -> tuple[Ints, Ints]:
        return np.full_like(draws, self._counter_key), draws

    def _scramble(self, number: int) -> int:
        """A bijection of 32-bit numbers keyed by the seed: a four-round Feistel network on 16-bit halves."""
        left, right = number >> 16, number & 0xFFFF
        for key in self._key:
            mixed = ((right ^ (key & 0xFFFF)) * 0x9E3779B1 + key) & 0xFFFFFFFF
            left, right = right, left ^ ((mixed >> 15) & 0xFFFF)
        return (left << 16) | right

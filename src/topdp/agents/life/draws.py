"""What one agent leaves to chance in a round: its noise, and its sample where batches are Poisson's.

An agent draws what nobody can repeat (`SystemDraws`), or in tests what the simulator would (`SeededDraws`).
The order of cyclic batches is not left to chance: it counts as known (`rows.Gradients`).

**Guarantees.** A round that was computed and not booked, because the agent was killed, is computed again with
a new sample and new noise. That is right, and repeating the old ones would add nothing: what is not on the
books never left the process, so nobody has seen the first attempt, and a kill that does not depend on what
was drawn leaves the second as fresh as the first. What is on the books is never computed again: its stored
bytes are sent. Nothing that was drawn, nor a key, is ever written down.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.agents.life.keystream import coins, normals
from topdp.data.selection import select
from topdp.plan import Plan
from topdp.plan.batches import Batches
from topdp.simulator.draws import Noise


class AgentDraws(ABC):
    """The draws of one agent."""

    seeded: bool

    @abstractmethod
    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        """`row` gets `std` times the standard normal draw number `draw` of `round`."""

    @abstractmethod
    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        """The records of `agent` that the coins of `round` choose."""


@final
class SystemDraws(AgentDraws):
    """Draws that nobody can repeat, this agent included; `round` and `draw` name nothing here."""

    seeded = False

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        done = 0
        for z in normals(len(row)):
            part = row[done : done + len(z)]
            part.copy_(z.mul_(std).add_(part))  # float64 until the sum is made: rounded once
            done += len(z)

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        mine = batches[agent]
        return torch.from_numpy(np.flatnonzero(coins(mine.records, mine.rate)))


@final
class SeededDraws(AgentDraws):
    """The simulator's draws, for tests only: who knows the seed can subtract the noise."""

    seeded = True

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self._noise, self._generator = Noise(seed, plan.draws, plan.releases), torch.Generator()

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        row.add_(self._noise.fill(torch.empty_like(row), round, draw, self._generator), alpha=std)

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        chosen = select(batches, self.seed, round)
        assert chosen.indices is not None and chosen.weights is not None
        return chosen.indices[agent][chosen.weights[agent] > 0]

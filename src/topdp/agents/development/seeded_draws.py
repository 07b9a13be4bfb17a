"""The simulator's draws for an agent, so that a federation repeats a simulated run. For tests only."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.data.batch_selection import select
from topdp.plan import Plan
from topdp.plan.batches import Batches
from topdp.simulator.simulated_noise import SimulatedDraws


@final
class SeededDraws(AgentDraws):
    """Draws named by a seed. Anyone who knows the seed can subtract the noise."""

    def __init__(self, seed: int, plan: Plan, dtype: torch.dtype = torch.float32) -> None:
        """`dtype`: that of the model, in which the simulator draws."""
        self.seed, self.dtype = seed, dtype
        self._noise = SimulatedDraws(seed, plan.draws, plan.releases)

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        z = self._noise.fill(torch.empty_like(row, dtype=self.dtype), round, draw)
        row.add_(z.to(row.dtype), alpha=std)

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        selection = select(batches, self.seed, round)
        assert selection.indices is not None and selection.weights is not None
        return selection.indices[agent][selection.weights[agent] > 0]

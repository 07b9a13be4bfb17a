"""A legal clipped model whose gradients carry the effect of a record past the noise; for tests only.

The model has a parameter x, and a parameter y_k for each agent k of `writers`. An ordinary record of such
an agent has the loss gain·x·y_k, with no gradient for x: its gradient is gain·x in place k, a function of
the agent's own estimate, and it is clipped like any other. So the agent's gradient amplifies its estimate,
so that fresh noise is small beside it, and x itself stays unchanged. The record under attack pulls x by the
clip; in the data set without it, a record with zero gradient takes its place (the number of records is
public). `TorchCarrier` is this model for the real engine; `Carrier.gradients` computes the same for many
runs at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from topdp.data import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Full, Plan
from topdp.plan.noise_key import NoiseKey
from topdp.simulator.engine import Engine
from topdp.simulator.simulated_noise import SimulatedDraws

PULL = 1e3  # far above every clip


class TorchCarrier(nn.Module):
    """(records [b, places + 1]) -> losses [b]; a record is (a gain in each place, its pull on x)."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.y = nn.Parameter(torch.zeros(places, dtype=torch.float64))

    def forward(self, records: Tensor) -> Tensor:
        return (records[:, :-1] @ self.y) * self.x.detach() + records[:, -1] * self.x


def given(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss: the outputs of the model unchanged."""
    return outputs


@dataclass(frozen=True)
class Carrier:
    """`records` per agent, clipped to `clip`; at step λ, an agent amplifies its estimate by λ·gain."""

    agents: int
    writers: tuple[int, ...]
    records: int
    clip: float
    gain: float

    @property
    def width(self) -> int:
        return 1 + len(self.writers)

    @property
    def sensitivity(self) -> float:
        return self.clip / self.records

    def gradients(self, estimates: np.ndarray, owner: int, with_record: bool) -> np.ndarray:
        """[agents, width, runs] -> the same: means of clipped gradients."""
        found = np.zeros_like(estimates)
        for place, k in enumerate(self.writers, 1):
            found[k, place] = self._share(k, owner) * np.clip(
                self.gain * estimates[k, 0], -self.clip, self.clip
            )
        found[owner, 0] = self.sensitivity if with_record else 0.0
        return found

    def linear(self, rows: list[np.ndarray], owner: int) -> np.ndarray:
        """The same without clipping: coefficients of gradients, from the coefficients of rows."""
        estimates = rows[-1][: self.agents]
        found = np.zeros_like(estimates)
        for place, k in enumerate(self.writers, 1):
            found[k, place] = self._share(k, owner) * self.gain * estimates[k, 0]
        return found

    def _share(self, agent: int, owner: int) -> float:
        """The share of ordinary records."""
        return 1.0 - (agent == owner) / self.records

    def shards(self, owner: int, with_record: bool) -> Shards:
        held = np.zeros((self.agents, self.records, self.width))
        for place, k in enumerate(self.writers):
            held[k, :, place] = self.gain
        held[owner, 0] = 0.0
        held[owner, 0, -1] = PULL * self.clip if with_record else 0.0
        labels = np.zeros(self.records, np.int64)
        return Shards.from_arrays([(one, labels) for one in held], classes=1, dtype=torch.float64)

    def by_the_engine(self, plan: Plan, owner: int, with_record: bool, seed: int) -> list[np.ndarray]:
        """The rows of every round from the engine for real runs, including rows that are only sent."""
        gradients = ClippedGradients(TorchCarrier(len(self.writers)), self.clip, given)
        shards = self.shards(owner, with_record)
        everything = replace(plan, pruned=True)  # warns that rows on which no estimate depends are removed
        batches = [Full(self.records)] * self.agents
        engine = Engine(everything, gradients, shards, batches, seed=seed, key=NoiseKey.of_seed(seed))
        state = engine.start(gradients.flat.flatten())
        found = []
        for _ in range(plan.releases):
            state = engine.advance(state)
            found.append(state.rows.numpy().copy())
        return found

    def draws_of_the_engine(self, plan: Plan, seed: int) -> np.ndarray:
        """[R, draws, width, 1]"""
        noise = SimulatedDraws(NoiseKey.of_seed(seed), plan.draws, plan.releases)
        return np.array(
            [
                [
                    noise.fill(torch.empty(self.width, dtype=torch.float64), r, d).numpy()
                    for d in range(plan.draws)
                ]
                for r in range(plan.releases)
            ]
        )[..., None]

    def execute(self, plan: Plan, owner: int, with_record: bool, draws: list[np.ndarray]) -> list[np.ndarray]:
        """[m, width, runs] by the definitions in topdp.plan. `draws`: [draws, width, runs]."""
        rows = np.zeros((plan.rows, self.width, draws[0].shape[-1]))
        found = []
        for r, this in enumerate(plan):
            gradient = self.gradients(rows[: self.agents], owner, with_record)
            made = np.zeros_like(rows)
            for m in np.flatnonzero(this.exists):
                for source, weight in zip(this.source[m], this.weight[m], strict=True):
                    if source >= 0:
                        made[m] += weight * rows[source]
                made[m] += this.step[m] * gradient[plan.owner[m]]
                for draw, std in zip(this.draw[m], this.std[m], strict=True):
                    if draw >= 0:
                        made[m] += std * draws[r][draw]
            rows = made
            found.append(rows)
        return found

"""Runs that go together, and how they become one stack: one plan, one model, one engine for all their agents.

Each run keeps the graph, start, batches and noise that it has alone. Not for single runs (`runs/run.py`), nor
for accounting: plans get the noise that was calibrated before.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from topdp.data import Shards
from topdp.plan.arrays import Floats
from topdp.reproduce.shared_plans import shared_plans
from topdp.runs.assembly import Assembly, stacked_engine
from topdp.settings import build
from topdp.settings.config import RunConfig
from topdp.simulator.engine import Engine, State

DEALT = 6  # partitions of a data set that stay on the device between stacks


@dataclass(frozen=True)
class Stack:
    """Runs ready to be executed together; rounds, evaluations and test records are those of the first."""

    engine: Engine
    starts: Tensor  # [agents of all runs, d]
    agents: list[int]  # of each run

    def accuracy(self, state: State) -> list[Floats]:
        """For each run, the test accuracy of each of its agents."""
        accuracy, each = self.engine.evaluate(state).accuracy, []
        for count in self.agents:
            own, accuracy = accuracy[:count], accuracy[count:]
            each.append(own)
        return each


class Stacks:
    """Puts stacks together on a device. Records that many runs share are dealt out, and go there, once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._dealt: dict[str, Shards] = {}

    def assemble(self, configs: list[RunConfig], sigmas: list[float], test_records: int) -> Stack:
        """All runs as one, each with its σ, tested on the first records of the test set."""
        runs = [Assembly.of(config, self.device, shards=self._shards(config)) for config in configs]
        graphs = [one.graph for one in runs]
        plans = shared_plans(configs, graphs, [one.shards.counts for one in runs], sigmas)
        starts = torch.cat([one.start.expand(one.graph.agents, -1) for one in runs])
        return Stack(stacked_engine(runs, plans, test_records), starts, [graph.agents for graph in graphs])

    def _shards(self, config: RunConfig) -> Shards:
        agents = build.graph(config).agents
        key = f"{config.seed} {agents} {config.data}"
        if key not in self._dealt:
            if len(self._dealt) == DEALT:
                del self._dealt[next(iter(self._dealt))]
            self._dealt[key] = build.shards(config, agents, device=self.device).to(self.device)
        return self._dealt[key]


def stackable(configs: list[RunConfig], limit: float) -> list[list[RunConfig]]:
    """The runs in groups that can go together, each within a limit of bytes."""
    groups: dict[str, list[RunConfig]] = defaultdict(list)
    for c in configs:
        # A stack is tested on the records of its first run: what one seed holds out, another trains on.
        held_out = c.data.validation and c.seed
        key = (c.rounds, c.data, c.model, c.privacy.clip, c.train.evaluate_every, held_out)
        groups[str(key)].append(c)
    stacks = []
    for group in groups.values():
        stack: list[RunConfig] = []
        used = 0.0
        for config in group:
            size = _bytes(config)
            if stack and used + size > limit:
                stacks.append(stack)
                stack, used = [], 0.0
            stack.append(config)
            used += size
        stacks.append(stack)
    return stacks


def _bytes(config: RunConfig) -> float:
    """Roughly: the records of the agents, and two buffers of rows with gradients."""
    agents = config.topology.agents
    image = 3072 if config.data.name == "cifar10" else 784
    if config.data.features == "scattering":
        image *= 5  # 81 numbers in the place of 16
    records = config.data.records or 60_000 // agents
    rows = agents * (4 if config.method.name.startswith("top") else 1)
    return 4.0 * agents * records * image + 4.0 * 80_000 * (2 * rows + 2 * agents)

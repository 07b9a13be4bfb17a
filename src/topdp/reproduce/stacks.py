"""Runs that go together, and how they become one stack: one plan, one model, one engine for all their agents.

Each run keeps the graph, start, batches and noise that it has alone. Not for single runs (`runs/run.py`), nor
for accounting: plans get the noise that was calibrated before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

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
        runs = self._assemblies(configs)
        graphs = [one.graph for one in runs]
        plans = shared_plans(configs, graphs, [one.shards.counts for one in runs], sigmas)
        starts = torch.cat([one.start.expand(one.graph.agents, -1) for one in runs])
        return Stack(stacked_engine(runs, plans, test_records), starts, [graph.agents for graph in graphs])

    def _assemblies(self, configs: list[RunConfig]) -> list[Assembly]:
        """Runs that differ in method and budget alone have one graph, model and start."""
        made: dict[str, Assembly] = {}
        runs = []
        for config in configs:
            pools = build.method(config).pools
            key = str((config.seed, config.topology, config.data, config.model, config.privacy.clip, pools))
            if key not in made:
                made[key] = Assembly.of(config, self.device, shards=self._shards(config))
            runs.append(replace(made[key], config=config))
        return runs

    def _shards(self, config: RunConfig) -> Shards:
        agents, pools = build.graph(config).agents, build.method(config).pools
        key = f"{config.seed} {agents} {config.data}"
        if key not in self._dealt:
            if pools:  # what others share out is here already, or soon needed
                alone = config.method.model_copy(update={"name": "plain"})
                found = self._shards(config.model_copy(update={"method": alone})).pooled()
            else:
                found = build.shards(config, agents, device=self.device).to(self.device)
            if len(self._dealt) == DEALT:
                del self._dealt[next(iter(self._dealt))]
            self._dealt[key] = found
        return self._dealt[key]


def stackable(configs: list[RunConfig], limit: float) -> list[list[RunConfig]]:
    """The runs in groups that can go together, each within a limit of bytes."""
    groups: dict[str, list[RunConfig]] = defaultdict(list)
    for c in configs:
        # A stack is tested on the records of its first run: what one seed holds out, another trains on.
        held_out = c.data.validation and c.seed
        releases = c.method.gossip if c.method.name in ("muffliato", "correlated") else 0
        alike = (c.rounds, releases, build.method(c).pools, c.train.evaluate_every, held_out)
        groups[str((c.data, c.model, c.privacy.clip, *alike))].append(c)
    stacks = []
    for group in groups.values():
        for runs in _in_turn(group):
            stacks += _within(limit, runs)
    return stacks


def _in_turn(group: list[RunConfig]) -> list[list[list[RunConfig]]]:
    """Runs that use all of their records, seed by seed in turn: each seed's records are then read once."""
    if group[0].data.batch != "full":
        return [[[config] for config in group]]
    by_data: dict[tuple[int, int], list[RunConfig]] = defaultdict(list)
    for config in group:
        by_data[config.seed, config.topology.agents].append(config)
    alike = len({(agents, len(runs)) for (_, agents), runs in by_data.items()}) == 1
    sets = [list(by_data.values())] if alike else [[runs] for runs in by_data.values()]
    return [[list(each) for each in zip(*several, strict=True)] for several in sets]


def _within(limit: float, turns: list[list[RunConfig]]) -> list[list[RunConfig]]:
    """As many turns in a stack as fit."""
    stacks: list[list[RunConfig]] = []
    used = math.inf
    for turn in turns:
        records, rows = (sum(sizes) for sizes in zip(*map(_bytes, turn), strict=True))
        once = turn[0].data.batch == "full"
        if used + rows + (0 if once else records) > limit:
            stacks.append([])
            used = records if once else 0.0
        stacks[-1] += turn
        used += rows + (0 if once else records)
    return stacks


def _bytes(config: RunConfig) -> tuple[float, float]:
    """Roughly: of the records of the agents, and of two buffers of rows with gradients."""
    agents = config.topology.agents
    image = 3072 if "cifar10" in config.data.name else 784
    if config.data.features == "scattering":
        image *= 5  # 81 numbers in the place of 16
    parameters = {"linear": 10 * image, "mlp": 100 * image}.get(config.model.name, 80_000)
    records = config.data.records or 60_000 // agents
    rows = agents * (4 if config.method.name.startswith("top") else 1)
    return 4.0 * agents * records * image, 4.0 * parameters * (2 * rows + 2 * agents)

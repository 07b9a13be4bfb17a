"""Stacked runs: one plan, one model and one engine for the agents of several runs.

Each run keeps the graph, start, batches and noise that it has alone. For figures (`reproduce`) and sweeps
(`sweep.py`); not for single runs (`run.py`), nor for accounting: each run is accounted by its own plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from topdp.base.progress import Progress, silent
from topdp.data import Shards
from topdp.plan import Plan
from topdp.runs.assembly import Assembly, stacked_engine
from topdp.runs.config import RunConfig
from topdp.runs.methods import METHODS
from topdp.runs.named_model import named_task
from topdp.runs.named_records import load_shards
from topdp.runs.resolve import resolve_outline
from topdp.runs.run_outline import RunOutline, optimiser_of
from topdp.simulator.engine import Engine
from topdp.simulator.evaluation import Evaluation
from topdp.simulator.simulation import State
from topdp.simulator.stepping import fastest, releases_until_due
from topdp.topology import Topology

MAX_CACHED_SHARDS = 6  # partitions of a data set that stay on the device between stacks

MAX_STACK_BYTES = {"cuda": 40e9, "cpu": 2e9}  # bytes of rows and records in one stack

Size = Callable[[RunConfig], tuple[float, float]]
"""How many bytes the records of a run take, and its rows."""

MAY_DIFFER = {
    "privacy": {"epsilon", "delta", "guarantee", "answers", "colluders", "adjacency", "sigma", "allow_slow"},
    "train": {
        "learning_rate", "fading", "fading_factor", "fading_period", "warmup", "rounds_per_epoch",
        "optimiser", "momentum", "second_moment", "floor", "weight_decay", "average", "checkpoint_every",
    },
}  # fmt: skip
"""What runs of a stack need not have in common, beside seed, graph and method: it is all in their plans."""


@dataclass(frozen=True)
class Stack:
    """Runs to execute as one; rounds, evaluations and test records are those of the first."""

    engine: Engine
    starts: Tensor  # [agents of all runs, d]
    agents: list[int]  # of each run
    config: RunConfig  # of the first

    @classmethod
    def of(cls, runs: Sequence[Assembly], plans: Sequence[Plan], test_records: int) -> Stack:
        starts = torch.cat([parts.start.expand(parts.run.graph.agents, -1) for parts in runs])
        engine = stacked_engine(runs, plans, test_records)
        return cls(engine, starts, [parts.run.graph.agents for parts in runs], runs[0].run.config)

    def rounds(self) -> Iterator[tuple[int, State, bool]]:
        """Yield the number of a round, the state after it, and whether to evaluate it.

        A CPU yields every round; a GPU yields those to evaluate, and perhaps some others.
        """
        simulation, first = fastest(self.engine), self.config
        state = simulation.start(self.starts)
        each, every = simulation.plan.releases_per_round, first.train.evaluate_every
        while state.releases < simulation.plan.releases:
            state = simulation.advance(state, releases_until_due(state.releases, each, first.rounds, every))
            t, within = divmod(state.releases - each, each)  # rounds done; one release is before the loop
            if not within:
                yield t, state, t % first.train.evaluate_every == 0 or t == first.rounds

    def evaluations(self, state: State) -> list[Evaluation]:
        """Return the evaluation of each run, over its own agents."""
        evaluation = self.engine.evaluate(state)
        ends = np.cumsum(self.agents).tolist()
        places = [slice(end - count, end) for end, count in zip(ends, self.agents, strict=True)]
        metrics = evaluation.metrics.items()
        return [Evaluation(evaluation.loss[own], {n: values[own] for n, values in metrics}) for own in places]

    def reported(self, state: State) -> list[Tensor]:
        """[agents, d] of each run."""
        return list(torch.split(self.engine.reported(state), self.agents))


@dataclass(eq=False)
class Dealer:
    """Assembles runs on a device. Records that several runs share are loaded and moved there once.

    `dealt` and `graphs` are what another dealer has made, by its names for them: they are not read again.
    """

    device: torch.device
    progress: Progress = silent
    dealt: dict[str, Shards] = field(default_factory=dict)
    graphs: dict[str, Topology] = field(default_factory=dict)

    def assemblies(self, configs: Sequence[RunConfig]) -> list[Assembly]:
        """Return the assembled runs.

        Runs that differ only in method and budget share one graph, model and start.
        """
        made: dict[str, Assembly] = {}
        runs = []
        for config in configs:
            outline = RunOutline.of(config, self.graph(config))
            key = str((config.seed, config.topology, _in_common(config)))
            if key in made:
                parts = replace(made[key], run=resolve_outline(outline, made[key].run.counts))
            else:
                parts = Assembly.of_records(outline, self.shards(config), named_task(config), self.device)
                made[key] = parts
            runs.append(parts)
        return runs

    def name_of_shards(self, config: RunConfig) -> str:
        """The same for runs whose records are dealt out alike."""
        return f"{config.seed} {self.graph(config).agents} {config.data}"

    def graph(self, config: RunConfig) -> Topology:
        name = name_of_graph(config)
        return self.graphs[name] if name in self.graphs else RunOutline.of(config).graph

    def shards(self, config: RunConfig) -> Shards:
        pools = METHODS[config.method.name].pools
        key = self.name_of_shards(config)
        if key not in self.dealt:
            if pools:  # what others share out is here already, or soon needed
                alone = config.method.model_copy(update={"name": "plain"})
                dealt = self.shards(config.model_copy(update={"method": alone})).pooled()
            else:
                outline = RunOutline.of(config, self.graph(config))
                dealt = load_shards(outline, self.progress, self.device).to(self.device)
            if len(self.dealt) == MAX_CACHED_SHARDS:
                del self.dealt[next(iter(self.dealt))]
            self.dealt[key] = dealt
        return self.dealt[key]


def name_of_graph(config: RunConfig) -> str:
    """The same for runs on one graph."""
    return f"{config.seed} {config.topology} {METHODS[config.method.name].pools}"


def stackable(configs: Sequence[RunConfig], limit: float, size: Size) -> list[list[RunConfig]]:
    """The runs in groups that can go together, each within a limit of bytes."""
    groups: dict[str, list[RunConfig]] = defaultdict(list)
    for config in configs:
        groups[_in_common(config)].append(config)
    stacks = []
    for group in groups.values():
        for runs in _in_turn(group):
            stacks += _within(limit, runs, size)
    return stacks


def _in_common(config: RunConfig) -> str:
    """Return the settings that runs of one stack have in common.

    A key that is added later must be equal, too.
    """
    sections = {
        name: section.model_dump(exclude=MAY_DIFFER.get(name, set()))
        for name in type(config).model_fields
        if name not in ("seed", "rounds", "topology", "method")
        for section in [getattr(config, name)]
    }
    # A stack is tested on the records of its first run: what one seed holds out, another trains on.
    held_out = config.data.validation and config.seed
    method = METHODS[config.method.name]
    releases = config.method.gossip if method.gossips else 0
    alone = str(config) if not _fits(config) else ""
    return str((config.rounds, releases, method.pools, held_out, alone, sections))


def _fits(config: RunConfig) -> bool:
    """Whether a run can be stacked.

    Adaptive steps, robust mixing and rounding are not linear; attacks and sinks belong to one run.
    """
    linear = not optimiser_of(config).adaptive and config.robust.rule == "mean"
    return (
        linear and config.train.rows == "model" and config.attack.name == "none" and not config.report.sinks
    )


def _in_turn(group: list[RunConfig]) -> list[list[list[RunConfig]]]:
    """Order runs with full batches by seed, so that the records of each seed are read once."""
    if group[0].data.batch != "full":
        return [[[config] for config in group]]
    by_data: dict[tuple[int, int], list[RunConfig]] = defaultdict(list)
    for config in group:
        by_data[config.seed, config.topology.agents].append(config)
    alike = len({(agents, len(runs)) for (_, agents), runs in by_data.items()}) == 1
    sets = [list(by_data.values())] if alike else [[runs] for runs in by_data.values()]
    return [[list(each) for each in zip(*several, strict=True)] for several in sets]


def _within(limit: float, turns: list[list[RunConfig]], size: Size) -> list[list[RunConfig]]:
    """Return stacks of runs, each with as many turns as fit into the `limit`."""
    stacks: list[list[RunConfig]] = []
    used = math.inf
    for turn in turns:
        records, rows = (sum(sizes) for sizes in zip(*map(size, turn), strict=True))
        once = turn[0].data.batch == "full"
        if used + rows + (0 if once else records) > limit:
            stacks.append([])
            used = records if once else 0.0
        stacks[-1] += turn
        used += rows + (0 if once else records)
    return stacks

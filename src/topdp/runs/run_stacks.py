"""Stacked runs: one plan, one model and one engine for the agents of several runs.

Each run has its own key, and the same graph, start, batches and noise as without the stack. Figures
(`reproduce`) and sweeps (`sweep.py`) use stacks; single runs (`run.py`) do not. Accounting does not use
stacks either: each run has its own plan and account.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from topdp.base.progress import Progress, silent
from topdp.data import Shards
from topdp.plan import Plan
from topdp.plan.noise_key import NoiseKey
from topdp.runs.assembly import Assembly, stacked_engine
from topdp.runs.config import RunConfig
from topdp.runs.job_settings import follows_job
from topdp.runs.named_model import named_task
from topdp.runs.named_records import load_shards
from topdp.runs.run_outline import RunOutline
from topdp.runs.statistics.standardisation_cost import standardises
from topdp.simulator.engine import Engine
from topdp.simulator.evaluation import Evaluation
from topdp.simulator.run_stacking import supports
from topdp.simulator.simulation import State
from topdp.simulator.stepping import fastest, releases_until_due

MAX_CACHED_SHARDS = 6  # sets of shards that stay on the device between stacks

MAX_STACK_BYTES = {"cuda": 40e9, "cpu": 2e9}  # bytes of rows and records in one stack

# A function that returns the bytes of a run's records, and the bytes of its rows.
Size = Callable[[RunOutline], tuple[float, float]]

# Keys, besides seed, graph and method, in which runs of a stack may differ, because plans contain them.
MAY_DIFFER = {
    "privacy": {"epsilon", "delta", "guarantee", "answers", "colluders", "adjacency", "sigma", "allow_slow"},
    "train": {
        "learning_rate", "fading", "fading_factor", "fading_period", "warmup", "rounds_per_epoch",
        "optimiser", "momentum", "second_moment", "floor", "weight_decay", "average", "checkpoint_every",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Stack:
    """Runs to execute as one. Rounds, evaluations and test records are those of the first run."""

    engine: Engine
    starts: Tensor  # [agents of all runs, d]
    agents: list[int]  # the number of agents of each run
    config: RunConfig  # of the first run

    @classmethod
    def of(
        cls, runs: Sequence[Assembly], plans: Sequence[Plan], keys: Sequence[NoiseKey], test_records: int
    ) -> Stack:
        starts = torch.cat([parts.start.expand(parts.run.graph.agents, -1) for parts in runs])
        engine = stacked_engine(runs, plans, keys, test_records)
        return cls(engine, starts, [parts.run.graph.agents for parts in runs], runs[0].run.config)

    def rounds(self) -> Iterator[tuple[int, State, bool]]:
        """Yield the number of a round, the state after it, and whether to evaluate it.

        On a CPU, every round is yielded. On a GPU, at least the rounds to evaluate are yielded.
        """
        simulation, first = fastest(self.engine), self.config
        state = simulation.start(self.starts)
        each, every = simulation.plan.releases_per_round, first.train.evaluate_every
        while state.releases < simulation.plan.releases:
            state = simulation.advance(state, releases_until_due(state.releases, each, first.rounds, every))
            t, within = divmod(state.releases - each, each)  # t rounds of the loop are complete after round 0
            if not within:
                yield t, state, t % first.train.evaluate_every == 0 or t == first.rounds

    def evaluations(self, state: State) -> list[Evaluation]:
        """Return the evaluation of each run, with the values of its own agents."""
        evaluation = self.engine.evaluate(state)
        ends = np.cumsum(self.agents).tolist()
        places = [slice(end - count, end) for end, count in zip(ends, self.agents, strict=True)]
        metrics = evaluation.metrics.items()
        return [Evaluation(evaluation.loss[own], {n: values[own] for n, values in metrics}) for own in places]

    def reported(self, state: State) -> list[Tensor]:
        """Return the reported estimates [agents, d] of each run."""
        return list(torch.split(self.engine.reported(state), self.agents))


@dataclass(eq=False)
class Dealer:
    """The assembler of runs on one device. It loads records that several runs share only once.

    `dealt`: shards that exist already, by the names of `name_of_shards`. They are not read again.
    """

    device: torch.device
    progress: Progress = silent
    dealt: dict[str, Shards] = field(default_factory=dict)

    def assemblies(self, runs: Sequence[RunOutline]) -> list[Assembly]:
        """Return the assembled runs. Runs that differ only in method and budget share one model and start."""
        assembled: dict[str, Assembly] = {}
        assemblies = []
        for run in runs:
            key = str((run.config.seed, run.config.topology, _in_common(run)))
            if key in assembled:
                parts = assembled[key].of_outline(run)
            else:
                parts = Assembly.of_records(run, self.shards(run), named_task(run.config), self.device)
                assembled[key] = parts
            assemblies.append(parts)
        return assemblies

    def shards(self, outline: RunOutline) -> Shards:
        key = name_of_shards(outline)
        if key not in self.dealt:
            if outline.method.pools:  # pool shards that are cached already or needed soon by other methods
                dealt = self.shards(outline.unpooled).pooled()
            else:
                dealt = load_shards(outline, self.progress, self.device).to(self.device)
            if len(self.dealt) == MAX_CACHED_SHARDS:
                del self.dealt[next(iter(self.dealt))]
            self.dealt[key] = dealt
        return self.dealt[key]


def name_of_shards(outline: RunOutline) -> str:
    """Return a name of the shards of a run, which is the same for all runs with the same shards."""
    config = outline.config
    holders = config.topology if outline.method.pools else outline.graph.agents
    return f"{config.seed} {holders} {config.person_column} {config.data}"


def stackable(runs: Sequence[RunOutline], limit: float, size: Size) -> list[list[RunOutline]]:
    """Return the runs in stacks. The runs of a stack can be executed as one, within `limit` bytes."""
    groups: dict[str, list[RunOutline]] = defaultdict(list)
    for run in runs:
        groups[_in_common(run)].append(run)
    stacks = []
    for group in groups.values():
        for turns in _in_turns(group):
            stacks += _within(limit, turns, size)
    return stacks


def _in_common(run: RunOutline) -> str:
    """Return text that is equal for two runs if they can be in one stack: the settings that must be equal.

    These are all keys except a list of exceptions, so a key that is added to the configuration must be equal.
    """
    config = run.config
    sections = {
        name: section.model_dump(exclude=MAY_DIFFER.get(name, set()))
        for name in type(config).model_fields
        if name not in ("seed", "noise_seed", "rounds", "topology", "method")
        for section in [getattr(config, name)]
    }
    # A stack is tested on the records of its first run, and other seeds may train on records held out there.
    held_out = config.data.validation and config.seed
    releases = config.method.gossip if run.method.gossips else 0
    # An attack, sinks and a standardisation apply to one run only.
    # Each run may follow from its job to other rounds.
    single = (
        supports(run)
        or follows_job(config)
        or config.attack.name != "none"
        or config.report.sinks
        or standardises(config)
    )
    own_key = str(config) if single else ""
    return str((config.rounds, releases, run.method.pools, held_out, own_key, sections))


def _in_turns(group: list[RunOutline]) -> list[list[list[RunOutline]]]:
    """Return lists of turns. A turn is a list of runs that enter a stack together.

    With full batches, each turn has one run for each set of records. So these sets repeat in order in a
    stack, which then reads each of them once (`assembly.stacked_engine`). If sets have different numbers of
    runs or agents, each set has its own list of turns.
    """
    if group[0].config.data.batch != "full":
        return [[[run] for run in group]]
    by_data: dict[tuple[int, int], list[RunOutline]] = defaultdict(list)
    for run in group:
        by_data[run.config.seed, run.config.topology.agents].append(run)
    same_size = len({(agents, len(runs)) for (_, agents), runs in by_data.items()}) == 1
    sets = [list(by_data.values())] if same_size else [[runs] for runs in by_data.values()]
    return [[list(turn) for turn in zip(*runs_by_set, strict=True)] for runs_by_set in sets]


def _within(limit: float, turns: list[list[RunOutline]], size: Size) -> list[list[RunOutline]]:
    """Return stacks of runs, each with as many turns as fit into `limit` bytes."""
    stacks: list[list[RunOutline]] = []
    used = math.inf
    for turn in turns:
        records, rows = (sum(sizes) for sizes in zip(*map(size, turn), strict=True))
        shared = turn[0].config.data.batch == "full"  # all turns of a stack read the same records
        if used + rows + (0 if shared else records) > limit:
            stacks.append([])
            used = records if shared else 0.0
        stacks[-1] += turn
        used += rows + (0 if shared else records)
    return stacks

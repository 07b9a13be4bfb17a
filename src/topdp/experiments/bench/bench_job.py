"""The benchmark's workload, one private round of agents on random records, and how it is timed.

The workload is defined once for all contestants, which are the implementations to be compared. A round
consists of per-example clipped gradients of every agent, Gaussian noise for every agent, one step, and mixing
with the rows of some other agents. Records are random, and no account is computed.

Contestants are timed in turns, so that a busy moment of the machine affects all of them. In its turn, each
contestant runs for a while, as in training, where rounds follow each other. If a turn were a single round, a
fast contestant would mostly be timed while it fills caches that other contestants have emptied. With one
thread, the clock is the processor time of this process, which excludes other processes. With more threads it
is wall time, because waiting between threads is part of the cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from topdp.base.array_types import Floats
from topdp.base.progress import Progress, silent
from topdp.data.shards import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import initial_row, mlp
from topdp.plan import NOBODY, PerRound, Plan
from topdp.plan.batches import Full
from topdp.simulator.engine import Engine

TURN_SECONDS = 0.05
"""The least duration of a turn."""


@dataclass(frozen=True, eq=False)
class Turns:
    """The seconds [turns] of each contestant."""

    seconds: Mapping[str, Floats]

    def best(self, name: str) -> float:
        return float(self.seconds[name].min())

    def median(self, name: str) -> float:
        return float(np.median(self.seconds[name]))

    def ratio(self, name: str, to: str) -> dict[str, float]:
        """Return the ratios of the times of `name` to those of `to`.

        `best`: the ratio of the best times. `median`, `low`, `high`: median and quartiles of the ratios in
        the same turn.
        """
        each = np.quantile(self.seconds[name] / self.seconds[to], [0.25, 0.5, 0.75]).tolist()
        best = self.best(name) / self.best(to)
        return {"best": best, "median": each[1], "low": each[0], "high": each[2]}

    def to_json(self) -> dict[str, Any]:
        return {name: {"best": self.best(name), "median": self.median(name)} for name in self.seconds}


def clock() -> tuple[Callable[[], float], str]:
    """Return a function that reads the clock in seconds, and the name of the clock."""
    if torch.get_num_threads() == 1:
        return time.process_time, "processor time"
    return time.perf_counter, "wall time"


def take_turns(
    contestants: Mapping[str, Callable[[], object]], turns: int, progress: Progress = silent
) -> Turns:
    """Return the mean seconds of each contestant in each turn, after one turn of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    now, _ = clock()
    for turn in range(turns + 1):
        for name, run in contestants.items():
            started, runs = now(), 0
            while not runs or now() - started < TURN_SECONDS:
                run()
                runs += 1
            if turn:
                seconds[name].append((now() - started) / runs)
        progress("timing", turn, turns, unit="turn")
    return Turns({name: np.array(values) for name, values in seconds.items()})


Round = Callable[[], Tensor]
"""Executes one round and returns the rows after it."""


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """The size and settings of a private round."""

    agents: int = 30
    batch: int = 64
    inputs: int = 784
    hidden: int = 100
    classes: int = 10
    degree: int = 1  # rows of other agents in a mix
    rounds: int = 100  # of the plan
    clip: float = 7.0  # near the median norm of these examples, so that some are clipped and some are not
    noise_multiplier: float = 1.0
    alpha: float = 0.25
    learning_rate: float = 0.5

    @property
    def parameters(self) -> int:
        return (self.inputs + 1) * self.hidden + (self.hidden + 1) * self.classes

    def network(self) -> nn.Sequential:
        return mlp(self.inputs, self.hidden, self.classes)

    def __str__(self) -> str:
        shape = f"MLP {self.inputs}-{self.hidden}-{self.classes} ({self.parameters:,} parameters)"
        return f"{self.agents:,} agents, {shape}, batch {self.batch} each, float32"


@dataclass(frozen=True, eq=False)
class BenchData:
    """Random records, one batch per agent. Row i mixes with the rows source[i]."""

    rows: Tensor  # [n, d]
    inputs: Tensor  # [n, b, inputs]
    targets: Tensor  # [n, b]
    source: Tensor  # [n, degree]

    @staticmethod
    def of(job: BenchJob) -> BenchData:
        generator = torch.Generator().manual_seed(0)
        start = initial_row(job.network, 0)
        rows = torch.randn(job.agents, job.parameters, generator=generator).mul_(0.01).add_(start)
        inputs = torch.rand(job.agents, job.batch, job.inputs, generator=generator)
        targets = torch.randint(job.classes, (job.agents, job.batch), generator=generator)
        order = torch.randperm(job.agents, generator=generator)
        source = torch.stack([order.roll(k) for k in range(job.degree)], dim=1)
        return BenchData(rows, inputs, targets, source)


def mix(rows: Tensor, source: Tensor, alpha: float) -> Tensor:
    """Return α · the own row + (1 - α) · the mean of the rows in `source`, for each agent."""
    return rows[source].mean(1).mul_(1 - alpha).add_(rows, alpha=alpha)


def bench_plan(job: BenchJob, data: BenchData, noise: float) -> Plan:
    """Return a plan whose rounds do the work of `job`.

    Each estimate mixes its owner's row and the rows of other agents, and adds gradient and noise.
    """
    n, R = job.agents, job.rounds + 1
    own = np.arange(n)[:, None]
    share = (1 - job.alpha) / job.degree
    deviation = noise * job.clip / job.batch
    return Plan(
        agents=n,
        owner=own[:, 0],
        source=PerRound.same(np.concatenate([own, data.source.numpy()], axis=1), R),
        weight=PerRound.same(np.tile([job.alpha, *([share] * job.degree)], (n, 1)), R),
        carries=PerRound.same(np.ones(n, bool), R),
        rate=np.full(R, job.learning_rate),
        draw=PerRound.same(own if noise else np.full_like(own, NOBODY), R),
        std=PerRound.same(np.full((n, 1), deviation), R),
        scale=np.full(R, job.learning_rate),
        known_by=own,
        readers=PerRound.same(np.full((n, 1), NOBODY), R),
        protocol="bench",
        pruned=True,
    )


def bench_engine(job: BenchJob, data: BenchData, noise: float) -> Engine:
    """Return an engine that executes the plan on all records of each agent in every round."""
    count = job.batch
    shards = Shards(
        inputs=data.inputs,
        targets=data.targets,
        counts=(count,) * job.agents,
        classes=job.classes,
    )
    gradients = ClippedGradients(job.network(), job.clip)
    return Engine(bench_plan(job, data, noise), gradients, shards, [Full(count)] * job.agents, seed=0)


def topdp_round(job: BenchJob, data: BenchData, noise: float) -> Round:
    """Return a function that executes the next round with topdp. After the last round comes the first."""
    engine = bench_engine(job, data, noise)
    state = engine.resume(0, data.rows.clone())

    def run() -> Tensor:
        nonlocal state
        if state.releases == engine.plan.releases:
            state = state._replace(releases=0)
        state = engine.advance(state)
        return state.rows

    return run

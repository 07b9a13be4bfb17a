"""The plans of a stack of runs: runs that differ in nothing but their noise share one, scaled.

No torch: plans are written in processes of their own, which would wait for its import.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topdp.experiments.process_map import in_processes
from topdp.plan import Plan, prune
from topdp.runs import builders
from topdp.runs.config import RunConfig
from topdp.runs.planning import plan_writer
from topdp.topology import Topology

LITTLE_WORK = 1e6  # rounds times agents: plans that take less are not worth starting processes for


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """What a plan is written from, but for its noise."""

    config: RunConfig
    graph: Topology
    counts: tuple[int, ...]


def shared_plans(
    configs: list[RunConfig], graphs: list[Topology], counts: list[tuple[int, ...]], sigmas: list[float]
) -> list[Plan]:
    """The pruned plan of each run, with its noise: for the engine, not for accounting."""
    keys, distinct = [], {}
    for config, graph, held in zip(configs, graphs, counts, strict=True):
        schedule = builders.schedule(config, min(held))
        along = schedule.rate.tobytes(), schedule.noise.tobytes()
        made = builders.optimiser(config), builders.robust(config), builders.rounded(config)
        keys.append((config.seed, str(config.topology), builders.protocol(config), *made, *along))
        distinct[keys[-1]] = PlanInputs(config, graph, held)
    work = sum(inputs.config.rounds * inputs.graph.agents for inputs in distinct.values())
    written = dict(in_processes(_written, list(distinct.values()), work > LITTLE_WORK))
    return [
        written[distinct[key]].noise_scaled(sigma * config.privacy.clip)
        for key, config, sigma in zip(keys, configs, sigmas, strict=True)
    ]


def _written(inputs: PlanInputs) -> Plan:
    return prune(plan_writer(inputs.config, inputs.graph, inputs.counts)(np.ones(inputs.graph.agents)))

"""The plans of a stack of runs. Runs that differ only in the scale of their noise share one plan, scaled.

Does not import torch: plans are written in separate processes, which would wait for that import.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topdp.experiments.process_map import map_in_processes
from topdp.plan import Plan, prune
from topdp.runs import builders
from topdp.runs.config import RunConfig
from topdp.runs.planning import plan_writer
from topdp.topology import Topology

MIN_PARALLEL_AGENT_ROUNDS = 1e6  # below this, starting processes costs more than it saves


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """All inputs of a plan except the scale of its noise."""

    config: RunConfig
    graph: Topology
    counts: tuple[int, ...]


def shared_plans(
    configs: list[RunConfig], graphs: list[Topology], counts: list[tuple[int, ...]], sigmas: list[float]
) -> list[Plan]:
    """Return the pruned plan of each run with its noise. For the engine, not for accounting."""
    keys, distinct = [], {}
    for config, graph, own_counts in zip(configs, graphs, counts, strict=True):
        schedule = builders.schedule(config, min(own_counts))
        along = schedule.rate.tobytes(), schedule.noise.tobytes()
        rules = builders.optimiser(config), builders.robust(config), builders.rounded(config)
        keys.append((config.seed, str(config.topology), builders.protocol(config), *rules, *along))
        distinct[keys[-1]] = PlanInputs(config, graph, own_counts)
    work = sum(inputs.config.rounds * inputs.graph.agents for inputs in distinct.values())
    plans = dict(map_in_processes(_unit_plan, list(distinct.values()), work > MIN_PARALLEL_AGENT_ROUNDS))
    return [
        plans[distinct[key]].noise_scaled(sigma * config.privacy.clip)
        for key, config, sigma in zip(keys, configs, sigmas, strict=True)
    ]


def _unit_plan(inputs: PlanInputs) -> Plan:
    return prune(plan_writer(inputs.config, inputs.graph, inputs.counts)(np.ones(inputs.graph.agents)))

"""The plans of a stack of runs. No torch: plans are written in processes, which would wait for its import."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topdp.plan import Plan, prune
from topdp.reproduce.processes import in_processes
from topdp.runs.planning import plan_writer
from topdp.settings import build
from topdp.settings.config import RunConfig
from topdp.topology import Topology

LITTLE_WORK = 1e6  # rounds times agents: plans that take less are not worth starting processes for


@dataclass(frozen=True, eq=False)
class Unit:
    """What a plan is written from, but for its noise."""

    config: RunConfig
    graph: Topology
    counts: tuple[int, ...]


def shared_plans(
    configs: list[RunConfig], graphs: list[Topology], counts: list[tuple[int, ...]], sigmas: list[float]
) -> list[Plan]:
    """Pruned plans; runs that differ in nothing but their noise share one, scaled."""
    keys, units = [], {}
    for config, graph, held in zip(configs, graphs, counts, strict=True):
        schedule = build.schedule(config, min(held))
        along = schedule.rate.tobytes(), schedule.noise.tobytes()
        keys.append((config.seed, str(config.topology), build.protocol(config), *along))
        units[keys[-1]] = Unit(config, graph, held)
    work = sum(unit.config.rounds * unit.graph.agents for unit in units.values())
    written = dict(in_processes(_written, list(units.values()), work > LITTLE_WORK))
    return [
        written[units[key]].noise_scaled(sigma * config.privacy.clip)
        for key, config, sigma in zip(keys, configs, sigmas, strict=True)
    ]


def _written(unit: Unit) -> Plan:
    return prune(plan_writer(unit.config, unit.graph, unit.counts)(np.ones(unit.graph.agents)))

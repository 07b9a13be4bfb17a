"""The plans of a stack of runs: runs that differ in nothing but their noise share one, scaled.

No torch: plans are written in processes of their own, which would wait for its import.
"""

from __future__ import annotations

import numpy as np

from topdp.experiments.process_map import in_processes
from topdp.plan import Plan, prune
from topdp.runs.resolved_run import ResolvedRun

LITTLE_WORK = 1e6  # rounds times agents: plans that take less are not worth starting processes for


def shared_plans(runs: list[ResolvedRun], sigmas: list[float]) -> list[Plan]:
    """The pruned plan of each run, with its noise: for the engine, not for accounting."""
    keys, distinct = [], {}
    for run in runs:
        along = run.schedule.rate.tobytes(), run.schedule.noise.tobytes()
        rules = run.optimiser, run.robust, run.rounded
        keys.append((run.config.seed, str(run.config.topology), run.protocol, *rules, *along))
        distinct[keys[-1]] = run
    work = sum(run.config.rounds * run.graph.agents for run in distinct.values())
    written = dict(in_processes(_unit_plan, list(distinct.values()), work > LITTLE_WORK))
    return [
        written[distinct[key]].noise_scaled(sigma * run.config.privacy.clip)
        for key, run, sigma in zip(keys, runs, sigmas, strict=True)
    ]


def _unit_plan(run: ResolvedRun) -> Plan:
    return prune(run.write_plan(np.ones(run.graph.agents)))

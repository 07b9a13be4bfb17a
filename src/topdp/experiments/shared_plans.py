"""The plans of a stack of runs. Runs that differ only in the scale of their noise share one plan, scaled.

Does not import torch: plans are written in separate processes, which would wait for that import.
"""

from __future__ import annotations

import numpy as np

from topdp.experiments.process_map import map_in_processes
from topdp.plan import Plan, prune
from topdp.runs.resolved_run import ResolvedRun

MIN_PARALLEL_AGENT_ROUNDS = 1e6  # below this, starting processes costs more than it saves


def shared_plans(runs: list[ResolvedRun], sigmas: list[float]) -> list[Plan]:
    """Return the pruned plan of each run with its noise. For the engine, not for accounting."""
    keys, distinct = [], {}
    for run in runs:
        along = run.schedule.rate.tobytes(), run.schedule.noise.tobytes()
        rules = run.optimiser, run.robust, run.rounded
        keys.append((run.config.seed, str(run.config.topology), run.protocol, *rules, *along))
        distinct[keys[-1]] = run
    work = sum(run.config.rounds * run.graph.agents for run in distinct.values())
    plans = dict(map_in_processes(_unit_plan, list(distinct.values()), work > MIN_PARALLEL_AGENT_ROUNDS))
    return [
        plans[distinct[key]].noise_scaled(sigma * run.config.privacy.clip)
        for key, run, sigma in zip(keys, runs, sigmas, strict=True)
    ]


def _unit_plan(run: ResolvedRun) -> Plan:
    return prune(run.write_plan(np.ones(run.graph.agents)))

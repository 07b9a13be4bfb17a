"""Runs without a folder of their own: a stack of runs as one, or a single run.

For sweeps, on this machine (`sweep.py`) and on others (`cluster_tasks.py`). Not for `topdp run`, which has a
folder, checkpoints and callbacks (`run.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from topdp.base.progress import Progress, silent
from topdp.errors import InputError
from topdp.learning.gradients import DivergedError
from topdp.runs import best_estimates
from topdp.runs.config import RunConfig
from topdp.runs.finished_run import FinishedRun
from topdp.runs.planning import plan_and_account
from topdp.runs.result import Metrics, metrics_of
from topdp.runs.run import PlannedRun, execute, plan_run
from topdp.runs.run_stacks import Dealer, Stack


def run_stacked(configs: Sequence[RunConfig], dealer: Dealer, progress: Progress) -> list[FinishedRun]:
    """Compute stackable runs (`run_stacks.stackable`) as one. Raises DivergedError if one diverges."""
    started = time.perf_counter()
    runs = dealer.assemblies(configs)
    jobs = []
    for parts in runs:
        jobs.append(PlannedRun(parts, *plan_and_account(parts.run, progress)))
    first = runs[0]
    if first.shards.test_inputs is None:
        raise InputError("Expected runs with test records in a stack, got some without.")
    one = Stack.of(runs, [job.plan for job in jobs], len(first.shards.test_inputs))
    lines: list[list[Metrics]] = [[] for _ in runs]
    larger = {metric.name: metric.larger_is_better for metric in one.engine.metrics}
    kept = [best_estimates.BestSoFar(None, False, {}, larger) for _ in runs]
    estimates: list[torch.Tensor] = []
    for t, state, due in one.rounds():
        if due:
            estimates = one.reported(state)
            for own, evaluation, keeper, rows in zip(
                lines, one.evaluations(state), kept, estimates, strict=True
            ):
                own.append(metrics_of(t, evaluation))
                keeper.see(own[-1], rows.detach)
        progress("training", t, one.config.rounds, unit="round")
    share = (time.perf_counter() - started) / len(runs)
    return [
        FinishedRun.of(job, job.result(own, rows.detach().cpu().clone(), share, None, keeper.best))
        for job, own, keeper, rows in zip(jobs, lines, kept, estimates, strict=True)
    ]


def run_single(config: RunConfig, dealer: Dealer, progress: Progress = silent) -> FinishedRun:
    """Compute one run to its end, or until it diverges."""
    (parts,) = dealer.assemblies([config])
    job = plan_run(parts, progress)
    try:
        return FinishedRun.of(job, execute(job, None, progress))
    except DivergedError:
        return FinishedRun.of(job, None)

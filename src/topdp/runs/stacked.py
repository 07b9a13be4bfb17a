"""Runs made without folders: a stack of them together, or one alone. What they leave is `finished.py`'s.

For sweeps, here (`sweep.py`) and on other machines (`orders.py`). Not for single runs, which have a folder,
checkpoints and callbacks (`run.py`).
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
from topdp.runs.finished_run import Finished
from topdp.runs.planning import plan_and_account
from topdp.runs.result import Metrics, metrics_of
from topdp.runs.run import Job, execute, planned
from topdp.runs.run_stacks import Dealer, Stack


def together(configs: Sequence[RunConfig], dealer: Dealer, progress: Progress) -> list[Finished]:
    """Runs that can go together (`stacks.stackable`), as one; if one of them diverges, so do all."""
    started = time.perf_counter()
    runs = dealer.assemblies(configs)
    jobs = []
    for parts in runs:
        jobs.append(Job(parts, *plan_and_account(parts.run, progress)))
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
        Finished.of(job, job.result(own, rows.detach().cpu().clone(), share, None, keeper.best))
        for job, own, keeper, rows in zip(jobs, lines, kept, estimates, strict=True)
    ]


def alone(config: RunConfig, dealer: Dealer, progress: Progress = silent) -> Finished:
    """One run to its end, or until it diverges."""
    (parts,) = dealer.assemblies([config])
    job = planned(parts, progress)
    try:
        return Finished.of(job, execute(job, None, progress))
    except DivergedError:
        return Finished.of(job, None)

"""Runs of a sweep, computed alone or stacked, and written to run folders only when they are finished.

Sweeps compute them on this machine (`sweep.py`) or on others (`cluster_tasks.py`), which send back a
`FinishedRun`. A `FinishedRun` contains no records. `topdp run` uses `run.py` instead, which has a folder,
checkpoints and callbacks.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from topdp.base.files import FileError
from topdp.base.progress import Progress, silent
from topdp.errors import InputError
from topdp.learning.gradients import DivergedError
from topdp.plan import Plan
from topdp.plan.noise_key import NoiseKey
from topdp.runs import best_estimates
from topdp.runs.config import RunConfig
from topdp.runs.kept_keys import erase_key
from topdp.runs.model_export import notes_of
from topdp.runs.planning import plan_and_account, sealed
from topdp.runs.result import Metrics, Result, metrics_of
from topdp.runs.row_arrays import as_array
from topdp.runs.run import PlannedRun, begun_facts, begun_folder, end_folder, ended_facts, execute, plan_run
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import Dealer, Stack


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The plan, account and results of a run; without results if the run diverged."""

    config: RunConfig
    plan: Plan
    privacy: dict[str, Any]  # the content of privacy.json
    begun: dict[str, Any]  # the entries of run.json from the start on
    metrics: list[Metrics]
    notes: dict[str, str]
    estimates: NDArray[Any] | None
    best: best_estimates.Best | None
    ended: dict[str, Any] | None  # further entries of run.json at the end

    @classmethod
    def of(cls, job: PlannedRun, result: Result | None) -> FinishedRun:
        """Return the finished run of `job`. `result`: None if the run diverged."""
        return cls(
            config=job.parts.run.config,
            plan=job.plan,
            privacy=sealed(job.plan, job.privacy),
            begun=begun_facts(job),
            notes=notes_of(job.parts.flat),
            metrics=result.metrics if result else [],
            estimates=as_array(result.estimates) if result else None,
            best=result.best if result else None,
            ended=ended_facts(result, job.parts.device) if result else None,
        )

    def write(self, path: Path) -> None:
        """Write the run's folder with the files that `topdp run` would write. Replace an unfinished run."""
        if (path / "run.json").exists():
            erase_key(path)
            try:
                shutil.rmtree(path)
            except OSError as error:
                raise FileError(f"Could not replace the run in {path}: {error.strerror}.") from error
        folder = begun_folder(path, self.config, self.plan, self.privacy, self.begun)
        if self.estimates is None or self.ended is None:
            folder.end("diverged")
            return
        if self.best is not None:
            best_estimates.write(folder, self.best, self.notes)
        end_folder(folder, self.config, self.plan, self.metrics, self.estimates, self.notes, self.ended)


def run_stacked(
    runs: Sequence[RunOutline], keys: Sequence[NoiseKey], dealer: Dealer, progress: Progress
) -> list[FinishedRun] | None:
    """Compute stackable runs (`run_stacks.stackable`) as one. Return them, or None if one run diverges."""
    started = time.perf_counter()
    jobs = [
        PlannedRun(parts, *plan_and_account(parts.run, progress), key)
        for parts, key in zip(dealer.assemblies(runs), keys, strict=True)
    ]
    test_inputs = jobs[0].parts.shards.test_inputs
    if test_inputs is None:
        raise InputError("Expected test records for runs in a stack, got none. Run them one by one.")
    stack = Stack.of(
        [job.parts for job in jobs],
        [job.plan for job in jobs],
        [job.key for job in jobs],
        len(test_inputs),
    )
    histories: list[list[Metrics]] = [[] for _ in jobs]
    larger = {metric.name: metric.larger_is_better for metric in stack.engine.metrics}
    best = [best_estimates.BestSoFar(None, False, notes={}, larger=larger) for _ in jobs]
    estimates: list[torch.Tensor] = []
    try:
        for t, state, due in stack.rounds():
            if due:
                estimates = stack.reported(state)
                results = zip(histories, stack.evaluations(state), best, estimates, strict=True)
                for history, evaluation, best_so_far, rows in results:
                    history.append(metrics_of(t, evaluation))
                    best_so_far.see(history[-1], rows.detach)
            progress("training", t, stack.config.rounds, unit="round")
    except DivergedError:
        return None
    share = (time.perf_counter() - started) / len(jobs)
    return [
        FinishedRun.of(job, job.result(history, rows.detach().cpu().clone(), share, None, best_so_far.best))
        for job, history, best_so_far, rows in zip(jobs, histories, best, estimates, strict=True)
    ]


def run_single(run: RunOutline, key: NoiseKey, dealer: Dealer, progress: Progress = silent) -> FinishedRun:
    """Compute one run until it ends or diverges, and return it."""
    (parts,) = dealer.assemblies([run])
    job = plan_run(parts, progress, key)
    try:
        return FinishedRun.of(job, execute(job, None, progress))
    except DivergedError:
        return FinishedRun.of(job, None)

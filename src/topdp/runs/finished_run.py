"""A run that was computed without a folder of its own: all that its folder will hold, and how to write it.

For stacks, which write their folders at the end, and for runs on other machines, which send this back. Holds
no records. Not for runs that continue from checkpoints (`run.py`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from topdp.base.files import FileError
from topdp.plan import Plan
from topdp.runs import best_estimates
from topdp.runs.config import RunConfig
from topdp.runs.model_export import notes_of
from topdp.runs.planning import sealed
from topdp.runs.result import Metrics, Result
from topdp.runs.row_arrays import as_array, as_tensor
from topdp.runs.run import PlannedRun, begun_facts, begun_folder, end_folder, ended_facts


class BestArrays(NamedTuple):
    """The best evaluation, with the estimates of then."""

    round: int
    metric: str
    value: float
    estimates: NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The plan, account and results of a run; without estimates where it diverged."""

    config: RunConfig
    plan: Plan
    privacy: dict[str, Any]  # as privacy.json holds it
    begun: dict[str, Any]  # what run.json says from the start on
    metrics: list[Metrics]
    notes: dict[str, str]
    estimates: NDArray[Any] | None = None
    best: BestArrays | None = None
    ended: dict[str, Any] | None = None  # what run.json says at the end

    @classmethod
    def of(cls, job: PlannedRun, result: Result | None) -> FinishedRun:
        """`result`: None where the run diverged."""
        planned = cls(
            config=job.parts.run.config,
            plan=job.plan,
            privacy=sealed(job.plan, job.privacy),
            begun=begun_facts(job),
            metrics=[],
            notes=notes_of(job.parts.flat),
        )
        if result is None:
            return planned
        best = result.best
        return replace(
            planned,
            metrics=result.metrics,
            estimates=as_array(result.estimates),
            best=best and BestArrays(best.round, best.metric, best.value, as_array(best.estimates)),
            ended=ended_facts(result, job.parts.device),
        )

    def write(self, path: Path) -> None:
        """The folder of the run, as `topdp run` leaves it; in the place of one that was only begun."""
        if (path / "run.json").exists():
            try:
                shutil.rmtree(path)
            except OSError as error:
                raise FileError(f"Could not empty {path}: {error.strerror}.") from error
        folder = begun_folder(path, self.config, self.plan, self.privacy, self.begun)
        if self.estimates is None or self.ended is None:
            folder.mark("diverged")
            return
        if self.best is not None:
            # What came from elsewhere may be memory that must not be written to, which torch warns of.
            rows = as_tensor(self.best.estimates.copy())
            best_estimates.write(folder, best_estimates.Best(*self.best[:3], rows), self.notes)
        end_folder(folder, self.config, self.plan, self.metrics, self.estimates, self.notes, self.ended)

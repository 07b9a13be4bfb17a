"""A run that was made without a folder of its own: everything that its folder will hold, and how that is
written. For stacks, which leave their folders at the end, and for runs on other machines: this is what comes
back from there. Holds no records. Not for runs that continue from checkpoints (`run.py`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
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


@dataclass(frozen=True)
class FinishedRun:
    """What was planned, and what was found; without estimates where the run diverged."""

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
        privacy, notes = sealed(job.plan, job.privacy), notes_of(job.parts.flat)
        config, begun = job.parts.run.config, begun_facts(job)
        if result is None:
            return cls(config, job.plan, privacy, begun, [], notes)
        found = result.best
        kept = found and BestArrays(found.round, found.metric, found.value, as_array(found.estimates))
        ended = ended_facts(result, job.parts.device)
        return cls(
            config, job.plan, privacy, begun, result.metrics, notes, as_array(result.estimates), kept, ended
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

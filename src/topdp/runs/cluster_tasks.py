"""The part of a sweep that a machine of a cluster computes: one stack of runs, with records that it receives.

The machine needs topdp and the packages of users' own models. It neither reads nor writes a file of the user.
`ray_cluster.py` sends the tasks.

**Guarantees.** Plan, noise and account equal those of the same configuration on the machine that starts the
sweep.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from topdp.base.progress import silent
from topdp.errors import TopdpError, translate_memory_errors
from topdp.learning.models import MODELS
from topdp.plan.noise_key import NoiseKey
from topdp.runs.assembly import choose_device
from topdp.runs.finished_run import FinishedRun, run_single, run_stacked
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import Dealer, name_of_shards


@dataclass(frozen=True, kw_only=True)
class StackTask:
    """One run, or several to compute together. Records are sent apart, because several tasks share them."""

    runs: tuple[RunOutline, ...]
    keys: tuple[NoiseKey, ...]  # of the runs, from the machine that starts the sweep
    records: tuple[str, ...]  # the names of the sets of records, in the order in which `compute` gets them
    device: str
    threads: int

    @classmethod
    def of(cls, runs: Sequence[RunOutline], keys: Sequence[NoiseKey], device: str, threads: int) -> StackTask:
        names = dict.fromkeys(map(name_of_shards, runs))
        return cls(runs=tuple(runs), keys=tuple(keys), records=tuple(names), device=device, threads=threads)

    @property
    def user_modules(self) -> tuple[str, ...]:
        """The modules of users' own models, which the machine must have as well."""
        names = {run.config.model.name for run in self.runs} - set(MODELS)
        return tuple(sorted({name.partition(":")[0] for name in names if ":" in name}))


class StackResult(NamedTuple):
    """The finished runs of a task, or an error that would occur on every machine."""

    runs: list[FinishedRun]
    error: TopdpError | None
    where: str  # the machine that computed them


def compute(pickled: bytes, records: Sequence[bytes], where: str = "") -> StackResult:
    """Compute a pickled `StackTask` with its pickled records, on the machine named `where`."""
    try:
        with translate_memory_errors():
            return StackResult(_runs_of(pickle.loads(pickled), records), None, where)
    except TopdpError as error:
        return StackResult([], error, where)


def _runs_of(task: StackTask, records: Sequence[bytes]) -> list[FinishedRun]:
    torch.set_num_threads(task.threads)
    os.environ["TOPDP_CORES"] = str(task.threads)
    device = choose_device(task.device)
    shards = {name: pickle.loads(part).to(device) for name, part in zip(task.records, records, strict=True)}
    dealer = Dealer(device, dealt=shards)
    finished = run_stacked(task.runs, task.keys, dealer, silent) if len(task.runs) > 1 else None
    return finished or [run_single(*one, dealer) for one in zip(task.runs, task.keys, strict=True)]

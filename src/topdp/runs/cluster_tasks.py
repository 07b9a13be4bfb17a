"""What a machine of a cluster computes for a sweep: one stack of runs, from records that are sent along.

The machine needs topdp and the packages of users' own models. It reads no file of the user and writes none.
How tasks get there is for `ray_cluster.py`.

**Guarantees.** Plan, noise and account are those that the same configuration has on the driver's machine.
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
from topdp.runs.assembly import choose_device
from topdp.runs.config import RunConfig
from topdp.runs.finished_run import FinishedRun, run_single, run_stacked
from topdp.runs.run_stacks import Dealer, name_of_graph
from topdp.topology import Topology


@dataclass(frozen=True, kw_only=True)
class StackTask:
    """Runs to compute together, or one. Their records follow separately, because several tasks share them."""

    configs: tuple[RunConfig, ...]
    records: tuple[str, ...]  # the names of the sets of records, in their order
    graphs: dict[str, Topology]  # those that are in files
    device: str
    threads: int

    @classmethod
    def of(cls, configs: Sequence[RunConfig], dealer: Dealer, device: str, threads: int) -> StackTask:
        names = dict.fromkeys(dealer.name_of_shards(config) for config in configs)
        in_files = [config for config in configs if config.topology.kind == "file"]
        graphs = {name_of_graph(config): dealer.graph(config) for config in in_files}
        return cls(
            configs=tuple(configs), records=tuple(names), graphs=graphs, device=device, threads=threads
        )

    @property
    def user_modules(self) -> tuple[str, ...]:
        """The modules of users' own models, which the machine must have, too."""
        names = {config.model.name for config in self.configs} - set(MODELS)
        return tuple(sorted({name.partition(":")[0] for name in names if ":" in name}))


class StackResult(NamedTuple):
    """The runs of a task; or the error that ends them on any machine."""

    runs: list[FinishedRun]
    error: TopdpError | None
    where: str


def compute(pickled: bytes, records: Sequence[bytes], where: str = "") -> StackResult:
    """Compute a pickled task."""
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
    dealer = Dealer(device, dealt=shards, graphs=task.graphs)
    runs = run_stacked(task.configs, dealer, silent) if len(task.configs) > 1 else None
    return runs or [run_single(config, dealer) for config in task.configs]

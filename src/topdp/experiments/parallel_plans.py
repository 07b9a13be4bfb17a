"""Plans and accounts on all cores: a map over processes, and the plans of a stack of runs.

Runs that differ only in the scale of their noise share one plan, which is scaled for each of them. This
module does not import torch, because every process would wait for the import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

import numpy as np

from topdp.plan import Plan, prune
from topdp.runs.resolved_run import ResolvedRun

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], parallel: bool
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order of completion. If not `parallel`, use only this process."""
    workers = min(len(items), os.cpu_count() or 1)
    if workers < 2 or not parallel:
        yield from ((item, function(item)) for item in items)
        return
    # Processes are spawned, because a fork would copy locks that other threads hold.
    with _one_thread_each(), ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        tasks = {pool.submit(function, item): item for item in items}
        yield from ((tasks[task], task.result()) for task in as_completed(tasks))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit each process that starts inside the `with` statement to one core.

    Libraries for linear algebra read the environment variables when they are loaded.
    """
    before = dict(os.environ)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


MIN_PARALLEL_AGENT_ROUNDS = 1e6  # for less work, starting processes costs more than it saves


def shared_plans(runs: list[ResolvedRun], sigmas: list[float]) -> list[Plan]:
    """Return the pruned plan of each run, with its noise. The engine executes them; accountants do not."""
    keys, distinct = [], {}
    for run in runs:
        schedule = run.schedule.rate.tobytes(), run.schedule.noise.tobytes()
        rules = run.optimiser, run.robust, run.rounded
        keys.append((run.config.seed, str(run.config.topology), run.protocol, *rules, *schedule))
        distinct[keys[-1]] = run
    work = sum(run.config.rounds * run.graph.agents for run in distinct.values())
    plans = dict(map_in_processes(_unit_plan, list(distinct.values()), work > MIN_PARALLEL_AGENT_ROUNDS))
    return [
        plans[distinct[key]].noise_scaled(sigma * run.config.privacy.clip)
        for key, run, sigma in zip(keys, runs, sigmas, strict=True)
    ]


def _unit_plan(run: ResolvedRun) -> Plan:
    return prune(run.write_plan(np.ones(run.graph.agents)))

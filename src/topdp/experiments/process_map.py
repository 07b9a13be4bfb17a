"""Apply a function to many items on all cores. For plans and accounts, which run on CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], parallel: bool
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order of completion. Without `parallel`, use this process only."""
    workers = min(len(items), os.cpu_count() or 1)
    if workers < 2 or not parallel:
        yield from ((item, function(item)) for item in items)
        return
    # Spawn, because fork copies locks that other threads hold.
    with _one_thread_each(), ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        tasks = {pool.submit(function, item): item for item in items}
        yield from ((tasks[task], task.result()) for task in as_completed(tasks))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit processes started inside to one core each.

    Linear algebra libraries read these variables on load.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

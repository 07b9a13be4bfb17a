"""One function on many things, on all cores: for plans and accounts, which are the processor's work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], worthwhile: bool
) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, as they are done; in this process, where others are not worth it."""
    workers = min(len(items), os.cpu_count() or 1)
    if workers < 2 or not worthwhile:
        yield from ((item, function(item)) for item in items)
        return
    # Not fork: it copies locks that other threads hold.
    with _one_thread_each(), ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        tasks = {pool.submit(function, item): item for item in items}
        yield from ((tasks[task], task.result()) for task in as_completed(tasks))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside use one core each: linear algebra reads these variables when it is loaded."""
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

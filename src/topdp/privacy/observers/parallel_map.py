"""One function on many things, on all cores, by threads: for linear algebra, which lets other threads run.

Threads never run a user's script again, as new processes would, so a script needs no `__main__` guard.

**Guarantees.** Things do not know of each other and every core works by one thread: the results are the same,
to the last bit, however many cores there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """That this process may use: TOPDP_CORES of them at most, where others share the machine."""
    held = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(held, int(os.environ.get("TOPDP_CORES", held)))


def parallel_map(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int | None = None
) -> Iterator[Result]:
    """The results in the order of the items; `workers`: default all cores.

    >>> list(at_once(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    workers = min(len(items), cores() if workers is None else workers)
    # One thread each: the matrices are small, and threads that wait for each other spin where others work.
    with threadpool_limits(1, "blas"):
        if workers < 2:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(workers) as pool:
            try:
                yield from pool.map(function, items)
            finally:
                pool.shutdown(cancel_futures=True)

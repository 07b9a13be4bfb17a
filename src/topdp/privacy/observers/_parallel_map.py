"""A parallel map that uses threads, for linear algebra, which releases the interpreter lock.

New processes would run a user's script again, so the script would need a `__main__` guard. Threads do not.

**Guarantees.** Items are computed independently, and every core runs one thread. The results are therefore
the same to the last bit for any number of cores.
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
    """Return the number of cores that this process may use, at most the environment variable TOPDP_CORES."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, int(os.environ.get("TOPDP_CORES", available)))


def parallel_map(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int | None = None
) -> Iterator[Result]:
    """Yield `function(item)` in the order of the items. `workers`: the number of threads; None: all cores.

    >>> list(parallel_map(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    workers = min(len(items), cores() if workers is None else workers)
    # Each worker uses one BLAS thread. The matrices are small, and waiting threads would block other workers.
    with threadpool_limits(1, "blas"):
        if workers < 2:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(workers) as pool:
            try:
                yield from pool.map(function, items)
            finally:
                pool.shutdown(cancel_futures=True)

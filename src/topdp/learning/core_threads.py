"""Thread pools for many small computations on a CPU, each on one core."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from threading import Barrier

import torch


def single_threaded_pool(workers: int) -> ThreadPoolExecutor:
    """Return a pool of `workers` threads, each of which computes on one core.

    The calling thread may use `workers` cores afterwards.
    """
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    # Start all threads now. A thread that started later would change torch's setting for the other threads.
    all_started = Barrier(workers)
    try:
        list(pool.map(lambda _: all_started.wait(), range(workers)))
    except BaseException:  # a thread could not start, or an interrupt: release the threads that wait
        all_started.abort()
        raise
    torch.set_num_threads(workers)
    return pool


def run_in_parts(work: Callable[[slice], object], count: int) -> None:
    """Cut 0 .. count-1 into one part for each thread that torch may use, and run `work` on each part in a
    separate thread.

    When this function returns or raises an error, even after an interrupt, no part is still running. The
    caller may then write to the same memory again.
    """
    workers = min(torch.get_num_threads(), count)
    if workers < 2:
        work(slice(0, count))
        return
    bounds = [count * part // workers for part in range(workers + 1)]
    parts = [slice(*pair) for pair in pairwise(bounds)]
    pool = _process_pool(torch.get_num_threads(), os.getpid())
    futures: list[Future[object]] = []
    try:
        for part in parts:
            futures.append(pool.submit(work, part))
        for future in futures:
            future.result()
    finally:
        wait(futures)


@lru_cache(1)
def _process_pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Return the pool of this process, which is created on the first call.

    Threads do not survive a fork. The process number is a parameter so that it is part of the cache key.
    """
    return single_threaded_pool(workers)

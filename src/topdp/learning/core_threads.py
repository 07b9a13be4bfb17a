"""Threads for many small pieces of work on a processor, each with one core of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from threading import Barrier

import torch


def single_threaded_pool(workers: int) -> ThreadPoolExecutor:
    """Threads that each use one core: the setting of the calling thread stays as it is."""
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    # All of them now: one that begins later would change the setting of the others.
    everybody = Barrier(workers)
    try:
        list(pool.map(lambda _: everybody.wait(), range(workers)))
    except BaseException:  # no more threads, or an interrupt: nobody waits for who never comes
        everybody.abort()
        raise
    torch.set_num_threads(workers)
    return pool


def run_in_parts(work: Callable[[slice], object], count: int) -> None:
    """`work` on as many parts of 0 .. count-1 as torch may use threads, each by a thread.

    However it ends, by an error of one part or an interrupt too, no part is still being worked on then: what
    they write may be written anew by whoever tries again.
    """
    workers = min(torch.get_num_threads(), count)
    if workers < 2:
        work(slice(0, count))
        return
    bounds = [count * part // workers for part in range(workers + 1)]
    parts = [slice(*pair) for pair in pairwise(bounds)]
    pool = _process_pool(torch.get_num_threads(), os.getpid())
    begun: list[Future[object]] = []
    try:
        for part in parts:
            begun.append(pool.submit(work, part))
        for one in begun:
            one.result()
    finally:
        wait(begun)


@lru_cache(1)
def _process_pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Of one process: threads do not survive a fork."""
    return single_threaded_pool(workers)

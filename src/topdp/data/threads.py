"""Threads for many small pieces of work on a processor, each with one core of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch


def single_threaded_pool(workers: int) -> ThreadPoolExecutor:
    """Threads that each use one core: the setting of the calling thread stays as it is."""
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    list(pool.map(lambda _: None, range(workers)))
    torch.set_num_threads(workers)
    return pool

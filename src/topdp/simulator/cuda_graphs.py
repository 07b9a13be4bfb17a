"""Records what a function does on an NVIDIA GPU, as a CUDA graph: a replay is one launch for all of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, final

import torch

WARM_UPS = 2  # kernels are compiled and libraries set up before anything is recorded

_broken_off: list[Any] = []
"""Recordings that CUDA broke off. Allocators of torch may go on asking them whose memory is whose."""


@final
class CudaGraphs:
    """Recordings of one device that are forgotten together. They share the memory of what is in between: one
    is replayed at a time, and what outlives a replay must lie in tensors that were there before. When the
    last of them is forgotten so is that memory, and torch takes no more recordings into it: new ones need a
    new object.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, warm_up: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
        """Calls `warm_up`, which uses what `function` uses; records that one, and returns what replays it."""
        with torch.cuda.device(self._device):
            here, index = torch.cuda.current_stream(), torch.cuda.current_device()
            aside = _aside(index)
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    warm_up()
            here.wait_stream(aside)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            try:
                # torch's own stream for recordings is one of the device that recorded first.
                with torch.cuda.graph(graph, pool=self._pool, stream=aside):
                    function()
            except BaseException:
                if _ended(index, self._pool):
                    _broken_off.append(graph)
                raise
            finally:
                torch.cuda.set_stream(here)  # torch stays on the recording's where that fails
        return graph.replay


@cache
def _aside(index: int) -> Any:
    """One for each device: libraries keep memory for every stream that they were used on."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def _ended(index: int, pool: Any) -> bool:
    """Ends a recording that CUDA broke off. torch's allocator takes it to go on, and frees nothing any more:
    whoever asks it to, as `torch.cuda.empty_cache` does, gets an error. False: there was none to end."""
    with suppress(Exception):  # torch ends those in which Python fails itself, and says so
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
        return True
    return False

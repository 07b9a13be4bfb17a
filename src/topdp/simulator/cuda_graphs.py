"""Recordings of a function's operations on an NVIDIA GPU as a CUDA graph; a replay is one launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, final

import torch

WARM_UPS = 2  # kernels are compiled and libraries initialised before the recording

# Recordings that CUDA aborted; torch's allocators may still refer to them.
_aborted: list[Any] = []


@final
class CudaGraphs:
    """Recordings on one device that are dropped together.

    They share the memory of temporary tensors: only one is replayed at a time, and results must be written to
    tensors that existed before the recording. This memory is freed with the last recording, and torch adds no
    more recordings to it: then a new object is needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, warm_up: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
        """Call `warm_up`, which does the same as `function`; record `function`, and return the replay."""
        with torch.cuda.device(self._device):
            here, index = torch.cuda.current_stream(), torch.cuda.current_device()
            aside = _recording_stream(index)
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    warm_up()
            here.wait_stream(aside)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            try:
                # torch's built-in recording stream belongs to the device that recorded first.
                with torch.cuda.graph(graph, pool=self._pool, stream=aside):
                    function()
            except BaseException:
                if _end_recording(index, self._pool):
                    _aborted.append(graph)
                raise
            finally:
                torch.cuda.set_stream(here)  # torch stays on the recording stream if the recording fails
        return graph.replay


@cache
def _recording_stream(index: int) -> Any:
    """Return the recording stream of device `index`, always the same: libraries keep memory per stream."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def _end_recording(index: int, pool: Any) -> bool:
    """End a recording that CUDA aborted; return False if there was none.

    Otherwise torch's allocator assumes that it continues, and `torch.cuda.empty_cache` raises an error.
    """
    with suppress(Exception):  # torch itself ends recordings in which Python fails, and raises here
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
        return True
    return False

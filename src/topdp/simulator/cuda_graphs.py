"""Recordings of the operations of a function on an NVIDIA GPU as a CUDA graph; a replay is one launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, final

import torch

WARM_UP_RUNS = 2  # kernels are compiled and libraries initialised before the recording

# Recordings that CUDA aborted. They stay in memory, because torch's allocators may still refer to them.
_aborted: list[Any] = []


@final
class CudaGraphs:
    """Recordings on one device that are freed together.

    They share the memory of temporary tensors. So only one may be replayed at a time, and results must be
    written to tensors that existed before the recording. This memory is freed together with the last
    recording. torch then cannot add recordings to it, and a new object is needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, warm_up: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
        """Record `function`, and return the function that replays it.

        `warm_up`, which does the same as `function`, is called before.
        """
        with torch.cuda.device(self._device):
            current, index = torch.cuda.current_stream(), torch.cuda.current_device()
            recording = _recording_stream(index)
            recording.wait_stream(current)
            with torch.cuda.stream(recording):
                for _ in range(WARM_UP_RUNS):
                    warm_up()
            current.wait_stream(recording)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            try:
                # torch's built-in recording stream belongs to the first device that recorded, so use our own.
                with torch.cuda.graph(graph, pool=self._pool, stream=recording):
                    function()
            except BaseException:
                if _end_recording(index, self._pool):
                    _aborted.append(graph)
                raise
            finally:
                torch.cuda.set_stream(current)  # torch stays on the recording stream if the recording fails
        return graph.replay


@cache
def _recording_stream(index: int) -> Any:
    """Return the recording stream of device `index`, always the same, because libraries keep memory per
    stream.
    """
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def _end_recording(index: int, pool: Any) -> bool:
    """End a recording that CUDA aborted; return False if there was none.

    Without this call, torch's allocator would assume that the recording continues, and
    `torch.cuda.empty_cache` would raise an error.
    """
    with suppress(Exception):  # if Python code failed, torch has ended the recording, and this call raises
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
        return True
    return False

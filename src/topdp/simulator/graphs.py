"""Records what a function does on an NVIDIA GPU, as a CUDA graph: a replay is one launch for all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

WARM_UPS = 2  # kernels are compiled and libraries set up before anything is recorded


@final
class Graphs:
    """The recordings of one device. They share the memory of what is in between: one is replayed at a time,
    and what outlives a replay must lie in tensors that were there before.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, warm_up: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
        """Calls `warm_up`, which uses what `function` uses; records that one, and returns what replays it."""
        with torch.cuda.device(self._device):
            here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    warm_up()
            here.wait_stream(aside)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self._pool):
                    function()
            finally:
                torch.cuda.set_stream(here)  # torch stays on the recording's where that fails
        return graph.replay

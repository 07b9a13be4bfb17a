"""The order of CUDA calls around a recording, observed with a substitute for torch.cuda."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from topdp.simulator import cuda_graphs


@pytest.fixture
def events(monkeypatch):
    """The events on the substitute for torch.cuda, in order."""
    seen = []

    class Stream:
        def __init__(self, name=1):
            self.name = "aside" if name == 1 else name

        def wait_stream(self, other):
            seen.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def on(what):
        seen.append(f"begin {what}")
        yield
        seen.append(f"end {what}")

    class Graph:
        def replay(self):
            seen.append("replay")

    cuda = SimpleNamespace(
        device=lambda device: on(device),
        Stream=Stream,
        current_stream=lambda: Stream("here"),
        stream=lambda stream: on(stream.name),
        graph_pool_handle=lambda: seen.append("pool") or (0, 1),
        CUDAGraph=Graph,
        graph=lambda graph, pool, stream: on(f"recording {stream.name} in {pool}"),
        set_stream=lambda stream: seen.append(f"go on {stream.name}"),
        current_device=lambda: 1,
    )
    inside = SimpleNamespace(
        _cuda_endAllocateToPool=lambda *where: seen.append(f"end {where}"),
        _cuda_releasePool=lambda *where: seen.append(f"release {where}"),
    )
    monkeypatch.setattr(cuda_graphs, "torch", SimpleNamespace(cuda=cuda, device=torch.device, _C=inside))
    monkeypatch.setattr(cuda_graphs, "_aborted", [])
    cuda_graphs._recording_stream.cache_clear()
    yield seen
    cuda_graphs._recording_stream.cache_clear()


def test_a_function_is_warmed_up_and_recorded_on_a_side_stream(events):
    record = cuda_graphs.CudaGraphs("cuda:1")
    replay = record(lambda: events.append("warm up"), lambda: events.append("function"))
    assert events == [
        "begin cuda:1", "aside waits for here", "begin aside", "warm up", "warm up", "end aside",
        "here waits for aside", "pool", "begin recording aside in (0, 1)", "function",
        "end recording aside in (0, 1)", "go on here", "end cuda:1",
    ]  # fmt: skip
    replay()
    assert events[-1] == "replay"
    record(lambda: None, lambda: None)
    assert events.count("pool") == 1  # all recordings share one memory pool


def test_after_a_failed_recording_the_previous_stream_is_restored(events):
    def fails():
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        cuda_graphs.CudaGraphs("cuda:0")(lambda: None, fails)
    assert events[-3:] == ["end (1, (0, 1))", "release (1, (0, 1))", "go on here"]
    assert len(cuda_graphs._aborted) == 1


def test_a_recording_that_torch_has_ended_is_not_released(events, monkeypatch):
    """torch ends a recording in which Python fails, and raises an error if it is ended again."""

    def ended(*where):
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    monkeypatch.setattr(cuda_graphs.torch._C, "_cuda_endAllocateToPool", ended)
    with pytest.raises(ZeroDivisionError):
        cuda_graphs.CudaGraphs("cuda:0")(lambda: None, lambda: 1 / 0)
    assert events[-1] == "go on here" and not any(event.startswith("release") for event in events)
    assert not cuda_graphs._aborted  # the recording and its memory are freed

"""The order of CUDA calls around a recording, observed with a substitute for torch.cuda."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from topdp.simulator import cuda_graphs


@pytest.fixture
def events(monkeypatch):
    """What happens on the stand-in, in order."""
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


def test_what_is_recorded_was_warmed_up_aside(events):
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
    assert events.count("pool") == 1  # all recordings share their memory


def test_after_a_recording_that_fails_all_goes_on_where_it_was(events):
    def fails():
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        cuda_graphs.CudaGraphs("cuda:0")(lambda: None, fails)
    assert events[-3:] == ["end (1, (0, 1))", "release (1, (0, 1))", "go on here"]
    assert len(cuda_graphs._aborted) == 1


def test_a_recording_that_did_end_is_not_ended_twice(events, monkeypatch):
    """torch ends one in which Python failed, and says so to whoever ends it again."""

    def ended(*where):
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    monkeypatch.setattr(cuda_graphs.torch._C, "_cuda_endAllocateToPool", ended)
    with pytest.raises(ZeroDivisionError):
        cuda_graphs.CudaGraphs("cuda:0")(lambda: None, lambda: 1 / 0)
    assert events[-1] == "go on here" and not any(event.startswith("release") for event in events)
    assert not cuda_graphs._aborted  # what it had recorded, and its memory, are given back

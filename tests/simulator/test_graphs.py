"""In which order things are asked of CUDA where something is recorded: by a stand-in for it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from topdp.simulator import graphs


@pytest.fixture
def events(monkeypatch):
    """What happens on the stand-in, in order."""
    seen = []

    class Stream:
        def __init__(self, name="aside"):
            self.name = name

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
        graph=lambda graph, pool: on(f"recording in {pool}"),
        set_stream=lambda stream: seen.append(f"go on {stream.name}"),
    )
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=cuda, device=torch.device))
    return seen


def test_what_is_recorded_was_warmed_up_aside(events):
    record = graphs.Graphs("cuda:1")
    replay = record(lambda: events.append("warm up"), lambda: events.append("function"))
    assert events == [
        "begin cuda:1", "aside waits for here", "begin aside", "warm up", "warm up", "end aside",
        "here waits for aside", "pool", "begin recording in (0, 1)", "function", "end recording in (0, 1)",
        "go on here", "end cuda:1",
    ]  # fmt: skip
    replay()
    assert events[-1] == "replay"
    record(lambda: None, lambda: None)
    assert events.count("pool") == 1  # all recordings share their memory


def test_after_a_recording_that_fails_all_goes_on_where_it_was(events):
    def fails():
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        graphs.Graphs("cuda:0")(lambda: None, fails)
    assert events[-1] == "go on here"

"""benchmarks/gpu.py reports missing hardware, missed aims and failing parts."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

PLACE = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu():
    named = importlib.util.spec_from_file_location("gpu", PLACE)
    module = importlib.util.module_from_spec(named)
    named.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_gpu_it_prints_one_line_and_exits_with_2(gpu, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("gpu.py: Expected ") and err.count("\n") == 1


def test_aims_are_reported_as_reached_or_missed(gpu, capsys):
    found = {}
    gpu.say(found, "a round", 0.1, "ms", 0.15)
    gpu.say(found, "another", 0.2, "ms", 0.15)
    reached, missed = capsys.readouterr().out.splitlines()
    assert "reached" in reached and "MISSED" in missed
    assert found["another"] == {"value": 0.2, "unit": "ms", "aim": 0.15, "note": ""}


def test_a_part_that_dies_or_hangs_is_named_and_the_others_run(gpu):
    assert gpu.failure([sys.executable, "-c", ""], 60) is None
    assert (
        gpu.failure([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 60) == "ended with code -9"
    )
    assert gpu.failure([sys.executable, "-c", "import signal; signal.pause()"], 0.01) == "not done after 0 s"
    assert gpu.failure([sys.executable], -1) == "no time was left"


def test_results_are_kept_when_one_part_fails(gpu, monkeypatch, tmp_path, capsys):
    def small(quick, found, wrong):
        gpu.say(found, "a round", 0.1, "ms")
        raise RuntimeError("no")

    monkeypatch.setattr(gpu, "small", small)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    gpu.one("small", True, tmp_path / "gpu.json")
    monkeypatch.setattr(gpu, "full", lambda quick, found, wrong: gpu.say(found, "another", 0.2, "ms"))
    gpu.one("full", True, tmp_path / "gpu.json")
    found, wrong = gpu.read(tmp_path / "gpu.json")
    assert {"device", "torch", "a round", "another"} == found.keys() and wrong == ["small: RuntimeError: no"]
    assert all(callable(getattr(gpu, name)) for name in gpu.PARTS)
    assert capsys.readouterr().out.count("a card") == 1

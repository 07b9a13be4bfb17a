"""The one command for a machine with a GPU says clearly what it lacks elsewhere."""

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
def test_without_a_card_it_is_one_line_and_code_2(gpu, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("gpu.py: Expected ") and err.count("\n") == 1


def test_an_aim_is_reached_or_missed_and_kept(gpu, capsys):
    found = {}
    gpu.say(found, "a round", 0.1, "ms", 0.15)
    gpu.say(found, "another", 0.2, "ms", 0.15)
    reached, missed = capsys.readouterr().out.splitlines()
    assert "reached" in reached and "MISSED" in missed
    assert found["another"] == {"value": 0.2, "unit": "ms", "aim": 0.15, "note": ""}

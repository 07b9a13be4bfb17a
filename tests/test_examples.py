"""The programs in examples/ run, and docs/models.md states their gradient path and length."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import topdp
from topdp.data import Dataset

ROOT = Path(__file__).parents[1]
specification = importlib.util.spec_from_file_location("table", ROOT / "examples" / "table.py")
assert specification is not None and specification.loader is not None
table = importlib.util.module_from_spec(specification)
specification.loader.exec_module(table)

ROWS = {
    found[1]: found
    for found in re.finditer(
        r"^\| \[.*?\]\(\.\./examples/(\w+)\.py\) \| (\d+) \| (.*?) \| (.*?) \| (\w+) \|",
        (ROOT / "docs" / "models.md").read_text(encoding="utf-8"),
        re.M,
    )
}


def small(name: str) -> Dataset:
    """The fewest records that the examples need, in the shapes and types of the real data."""
    numbers = np.random.default_rng(0)
    records, tests = 200, 40
    if name in ("mnist", "fashion-mnist"):
        inputs = numbers.integers(0, 256, (records + tests, 1, 28, 28)).astype(np.uint8)
        targets, classes = np.arange(records + tests) % 10, 10
    elif name == "spam-assassin":
        inputs = numbers.integers(0, 4096, (records + tests, 128))
        targets, classes = np.arange(records + tests) % 2, 2
    elif name == "breast-cancer":
        inputs = numbers.normal(size=(records + tests, 30)).astype(np.float32)
        targets, classes = np.arange(records + tests) % 2, 2
    else:
        inputs = numbers.normal(size=(records + tests, 10)).astype(np.float32)
        targets, classes = inputs[:, 0].astype(np.float32), None
    scaling = {"mean": (0.5,), "deviation": (0.5,)} if inputs.dtype == np.uint8 else {}
    return Dataset(
        name=name,
        train_inputs=inputs[:records],
        train_targets=targets[:records],
        test_inputs=inputs[records:],
        test_targets=targets[records:],
        classes=classes,
        **scaling,
    )


def shorter(settings):
    return settings | {"rounds": 2, "evaluate_every": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", table.NAMES)
def test_an_example_runs_as_documented(name, monkeypatch):
    monkeypatch.setattr(topdp.data, "load", small)
    result, fast, _ = table.run(name, shorter)
    row = ROWS[name]
    assert ("fast" if fast else "slow") == row[5]
    assert table.lines_of(name) == int(row[2])
    assert result.privacy.epsilon["adaptive"] <= 2.0 * (1 + 1e-9)
    assert len(result.metrics) == 3


def test_every_example_is_in_the_docs_and_no_other():
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"table"}
    assert files == set(table.NAMES) == set(ROWS)

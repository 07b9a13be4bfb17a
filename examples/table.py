"""Run every example with ε = 2 and without noise, and print the table of docs/models.md.

python examples/table.py [NAME ...]
"""

from __future__ import annotations

import ast
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import topdp

FOLDER = Path(__file__).parent
# The task of each example, by file name.
NAMES = {
    "tabular": "tabular classification",
    "regression": "tabular regression",
    "multilabel": "several labels",
    "cnn": "CNN",
    "text_gru": "text, GRU",
    "text_transformer": "text, transformer",
    "backbone": "frozen backbone with BatchNorm, and a head",
    "adapters": "LoRA",
}


def lines_of(name: str) -> int:
    """Return the number of lines without docstring, comments and blank lines."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    docstring_lines = ast.parse(source).body[0].end_lineno or 0
    lines = [line.strip() for line in source.splitlines()[docstring_lines:]]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def run(name: str, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> tuple[Any, bool, float]:
    """Run an example with changed settings.

    Return the result, whether gradients took the fast path, and the seconds.
    """
    results: list[Any] = []
    train = topdp.train

    def train_with_changes(*parts: Any, **settings: Any) -> Any:
        results.append(train(*parts, **change(settings)))
        return results[0]

    torch.manual_seed(0)
    start = time.perf_counter()
    topdp.train = train_with_changes  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runpy.run_path(str(FOLDER / f"{name}.py"))
    finally:
        topdp.train = train
    is_slow = any("slow path" in str(warning.message) for warning in caught)
    return results[0], not is_slow, time.perf_counter() - start


def without_noise(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "epsilon"} | {"sigma": 0.0}


def row(name: str) -> str:
    """Return the line of the table for an example."""
    without, _, _ = run(name, without_noise)
    private, is_fast, seconds = run(name)
    metric = next(iter(private.scores))
    values = [result.scores[metric]["mean"] for result in (without, private)]
    cells = [f"R² {value:.2f}" if metric == "r2" else f"{100 * value:.1f}%" for value in values]
    link = f"[{NAMES[name]}](../examples/{name}.py)"
    path = "fast" if is_fast else "slow"
    return f"| {link} | {lines_of(name)} | {cells[0]} | {cells[1]} | {path} | {seconds:.0f} s |"


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        print(row(name), flush=True)

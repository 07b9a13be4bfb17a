"""Runs every example with ε = 2 and without noise, and prints the table of docs/models.md.

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
    """Lines of code: no docstring, no comments, nothing blank."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.parse(source).body[0].end_lineno or 0
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") for line in source.splitlines()[docstring:]
    )


def run(name: str, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> tuple[Any, bool, float]:
    """(result, whether gradients took the fast path, seconds) of an example whose settings are changed."""
    kept: list[Any] = []
    train = topdp.train

    def changed(*parts: Any, **settings: Any) -> Any:
        kept.append(train(*parts, **change(settings)))
        return kept[0]

    torch.manual_seed(0)
    started = time.perf_counter()
    topdp.train = changed  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            runpy.run_path(str(FOLDER / f"{name}.py"))
    finally:
        topdp.train = train
    slow = any("slow path" in str(one.message) for one in said)
    return kept[0], not slow, time.perf_counter() - started


def without_noise(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "epsilon"} | {"sigma": 0.0}


def row(name: str) -> str:
    free, _, _ = run(name, without_noise)
    private, fast, seconds = run(name)
    metric = next(iter(private.scores))
    values = [result.scores[metric]["mean"] for result in (free, private)]
    shown = [f"R² {value:.2f}" if metric == "r2" else f"{100 * value:.1f}%" for value in values]
    link = f"[{NAMES[name]}](../examples/{name}.py)"
    path = "fast" if fast else "slow"
    return f"| {link} | {lines_of(name)} | {shown[0]} | {shown[1]} | {path} | {seconds:.0f} s |"


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        print(row(chosen), flush=True)

"""The names of metrics in a line of metrics.jsonl, and the text of their values.

Needs no torch; `learning/metrics.py` computes the metrics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

NO_TEST_RECORDS = "no test records: nothing is evaluated"


def metric_names(line: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics in a line, in its order. The loss is included only if it is alone.

    >>> metric_names({"round": 3, "r2": {"mean": 0.5}, "loss": {"mean": 2.0}, "r2_per_agent": [0.5]})
    ['r2']
    """
    names = evaluated_names(line)
    return [name for name in names if name != "loss"] or names


def evaluated_names(line: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics in a line, with the loss: the keys that have a mean over agents."""
    return [name for name, value in line.items() if isinstance(value, Mapping) and "mean" in value]


def is_share(name: str) -> bool:
    """Return whether a metric is written in percent. Only accuracies are.

    >>> is_share("balanced-accuracy"), is_share("auroc")
    (True, False)
    """
    return name.endswith("accuracy")


def metric_text(name: str, value: Any) -> str:
    """Return a value as text. For a list with one value per class, return the smallest and the largest.

    >>> metric_text("accuracy", 0.88904), metric_text("mae", 1.23456), metric_text("r2", None)
    ('88.90%', '1.235', 'undefined')
    >>> metric_text("per-class-accuracy", [0.5, 0.25, None])
    '25.00% to 50.00%'
    """
    if isinstance(value, list):
        defined = [number for number in value if number is not None]
        limits = [min(defined), max(defined)] if defined else [None]
        return " to ".join(dict.fromkeys(metric_text(name, limit) for limit in limits))
    if value is None:
        return "undefined"
    return f"{value:.2%}" if is_share(name) else f"{value:.4g}"


def mean_over_classes(value: float | list[float | None] | None) -> float:
    """Return the value of a metric, or the mean of its defined values if it has one value per class.

    Return NaN if no value is defined.

    >>> mean_over_classes(0.5), mean_over_classes([0.25, None, 0.75]), mean_over_classes(None)
    (0.5, 0.5, nan)
    """
    numbers = [number for number in (value if isinstance(value, list) else [value]) if number is not None]
    return sum(numbers) / len(numbers) if numbers else math.nan


def between_agents(name: str, spread: Mapping[str, Any]) -> str:
    """Return the range of a metric over agents as text; empty if the metric has one value per class.

    >>> between_agents("accuracy", {"mean": 0.5, "min": 0.1, "max": 1.0})
    '10.0-100.0'
    """
    low, high = spread["min"], spread["max"]
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    return f"{100 * low:.1f}-{100 * high:.1f}" if is_share(name) else f"{low:.3g} to {high:.3g}"


def last_seen(line: Mapping[str, Any] | None) -> str:
    """Return the first metric of the last evaluation, `line`, as text; empty without an evaluation.

    The text names the round of the evaluation, because later rounds may not be evaluated yet.

    >>> last_seen({"round": 40, "accuracy": {"mean": 0.5}})
    'accuracy 50.00% after round 40'
    """
    names = metric_names(line) if line else []
    if line is None or not names:
        return ""
    return f"{names[0]} {metric_text(names[0], line[names[0]]['mean'])} after round {line['round']}"


def picture_name(name: str) -> str:
    """Return the name of the file with the learning curve of a metric.

    >>> picture_name("accuracy"), picture_name("top/5 of all")
    ('accuracy.png', 'top_5_of_all.png')
    """
    return re.sub(r"[^\w.-]", "_", name) + ".png"

"""What each agent gains over `alone`, the baseline in which it trains by itself, in a comparison of methods.

Differences are paired: both runs have the same seed, and so the same shards. With one seed, a difference
contains the noise of both runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from topdp.runs.methods import ALONE
from topdp.runs.metric_labels import is_share, metric_names
from topdp.runs.sweep_summary import spread_of, write_csv_lines

GAINS_FILE = "gains.csv"
ONE_SEED = "With one seed, these differences contain the noise of both runs. Use --seeds."

# The last evaluation of each run of a method, by seed.
Evaluations = Mapping[int, Mapping[str, Any]]


def gains_over_alone(evaluations: Mapping[str, Evaluations]) -> dict[str, Any] | None:
    """Return the gains of each method and agent for JSON; None without `alone` or without evaluations.

    `metric` is the first metric with one number per agent. Each method has lists over agents: the means over
    seeds `value` and `alone`, and `gain`, the mean and standard deviation over seeds of their difference. The
    one model of pooled records is compared with each agent's.

    >>> line = {"accuracy": {"mean": 0.5}, "accuracy_per_agent": [0.75, 0.25]}
    >>> pooled = {"accuracy": {"mean": 1.0}, "accuracy_per_agent": [1.0]}
    >>> found = gains_over_alone({"alone": {0: line}, "central": {0: pooled}})
    >>> [gain["mean"] for gain in found["methods"]["central"]["gain"]]
    [0.25, 0.75]
    """
    alone = evaluations.get(ALONE.name, {})
    metric = next((name for line in alone.values() for name in _metrics(line)), None)
    if metric is None:
        return None
    key, methods = f"{metric}_per_agent", dict[str, Any]()
    for name, lines in evaluations.items():
        if name == ALONE.name:
            continue
        pairs = [
            (_of_agents(lines[seed][key], len(line[key])), line[key])
            for seed, line in alone.items()
            if seed in lines
        ]
        if pairs:
            methods[name] = _gains(pairs)
    return {"metric": metric, "methods": methods}


def _metrics(line: Mapping[str, Any]) -> list[str]:
    return [name for name in metric_names(line) if not isinstance(line[name]["mean"], list)]


def _of_agents(values: Sequence[float | None], agents: int) -> list[float | None]:
    return [values[0]] * agents if len(values) == 1 else list(values)


def _gains(pairs: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> dict[str, Any]:
    """Return the values and gains of all agents. A value that is not finite is None, and left out."""
    value, alone, gain = [], [], []
    for agent in range(len(pairs[0][1])):
        both = [
            (own, by_itself)
            for together, single in pairs
            if (own := together[agent]) is not None and (by_itself := single[agent]) is not None
        ]
        value.append(fmean(own for own, _ in both) if both else None)
        alone.append(fmean(by_itself for _, by_itself in both) if both else None)
        gain.append(spread_of([own - by_itself for own, by_itself in both]))
    return {"value": value, "alone": alone, "gain": gain}


def write_gains(gains: Mapping[str, Any], place: Path) -> None:
    """Write gains.csv: a line for each method and agent."""
    lines: list[list[Any]] = [
        ["method", "agent", "n", gains["metric"], f"{gains['metric']}_alone", "gain", "gain_deviation"]
    ]
    for name, of in gains["methods"].items():
        for agent, (value, alone, gain) in enumerate(zip(of["value"], of["alone"], of["gain"], strict=True)):
            lines.append([name, agent, gain["n"], value, alone, gain["mean"], gain["deviation"]])
    write_csv_lines(place / GAINS_FILE, lines)


def gain_sentences(gains: Mapping[str, Any], larger_is_better: bool | None) -> list[str]:
    """Return for each method how many agents it serves better than training alone."""
    sentences = [
        f"{name}: {_sentence(gains['metric'], of['gain'], larger_is_better)}"
        for name, of in gains["methods"].items()
    ]
    if all(gain["n"] < 2 for of in gains["methods"].values() for gain in of["gain"]):
        sentences.append(ONE_SEED)
    return sentences


def _sentence(metric: str, gains: Sequence[Mapping[str, Any]], larger_is_better: bool | None) -> str:
    sign = -1 if larger_is_better is False else 1
    defined = [(sign * gain["mean"], agent) for agent, gain in enumerate(gains) if gain["mean"] is not None]
    if not defined:
        return f"{metric} is undefined."
    ends = " to ".join(
        f"{_difference(metric, sign * gain)} (agent {agent})" for gain, agent in (min(defined), max(defined))
    )
    if larger_is_better is None:
        return f"{metric} differs from that of training alone by {ends}."
    better = sum(gain > 0 for gain, _ in defined)
    return f"better than training alone for {better} of {len(defined)} agents; {metric} {ends}."


def _difference(metric: str, value: float) -> str:
    return f"{100 * value:+.2f} points" if is_share(metric) else f"{value:+.3g}"

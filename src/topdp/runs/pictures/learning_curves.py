"""Learning curves: a metric along the rounds, one line a run, a band from the least agent to the largest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from topdp.runs.config import RunConfig
from topdp.runs.methods import METHODS
from topdp.runs.metric_labels import is_share, mean_over_classes, metric_names
from topdp.runs.pictures.chart_style import LETTERS, data_title, house_style, look, percent_axis, save
from topdp.runs.pictures.chart_text import wrapped
from topdp.runs.pictures.coinciding_lines import coinciding, joined_label


def curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, title: str, metric: str | None = None
) -> Path:
    """Draw one metric of each run (label -> lines of metrics.jsonl) in one picture; None: the first."""
    metric = metric or next(metric_names(lines[-1])[0] for lines in runs.values() if lines)
    lines = {label: _line(metrics, metric) for label, metrics in runs.items()}
    band = "worst to best agent" if is_share(metric) else "all agents"
    return draw_curves(lines, metric, f"test {metric} (mean,\nband: {band})", path, title)


def draw_curves(
    lines: Mapping[str, tuple[list[float], ...]], metric: str, ylabel: str, path: str | Path, title: str
) -> Path:
    """Draw lines in one picture: label -> rounds, lower edge of the band, mean, upper edge."""
    with house_style():
        figure = Figure()
        axes = figure.subplots()
        for label, same in coinciding(lines).items():
            rounds, low, mean, high = lines[label]
            drawn = look(label)
            axes.fill_between(rounds, low, high, color=drawn["color"], alpha=0.15, lw=0)
            axes.plot(
                rounds, mean, label=joined_label(same) or "all", markevery=max(1, len(rounds) // 8), **drawn
            )
        axes.set(xlabel="rounds", ylabel=ylabel, title=wrapped(title, LETTERS))
        if is_share(metric):
            percent_axis(axes)
        axes.margins(x=0.02)
        axes.legend(loc="best")
        return save(figure, path)


def _line(metrics: Sequence[Mapping[str, Any]], metric: str) -> tuple[list[float], ...]:
    """Return rounds, and the minimum, mean and maximum over agents after each; NaN where undefined."""
    rounds = [float(line["round"]) for line in metrics]
    spreads = [line.get(metric, {}) for line in metrics]
    return rounds, *(
        [mean_over_classes(spread.get(key)) for spread in spreads] for key in ("min", "mean", "max")
    )


def heading(configs: Sequence[RunConfig], agents: int) -> str:
    """The title of runs that differ only in their method: data, agents, mode, and ε with its guarantee.

    >>> from topdp.runs.config import RunConfig
    >>> heading([RunConfig()], agents=30)
    'MNIST, 30 agents, sync, ε = 1 (adaptive, δ = 1e-5)'
    """
    first, noisy = configs[0], [config for config in configs if METHODS[config.method.name].noisy]
    noise = noise_words(noisy[0]) if noisy else "no noise"
    return ", ".join((data_title(first.data.name), f"{agents} agents", first.method.mode, noise))


def noise_words(config: RunConfig) -> str:
    """The noise where it is given, else the budget from which it follows."""
    privacy = config.privacy
    if privacy.sigma is not None:
        return f"σ = {_range(privacy.sigma)}"
    delta = f"{privacy.delta:g}".replace("e-0", "e-")
    return f"ε = {_range(privacy.epsilon)} ({privacy.guarantee}, δ = {delta})"


def _range(value: float | Sequence[float]) -> str:
    """Return the common number of all agents as text, or the smallest and the largest."""
    return " to ".join(dict.fromkeys(f"{end:g}" for end in (np.min(value), np.max(value))))

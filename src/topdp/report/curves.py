"""Learning curves: accuracy along the rounds, one line a run, a band from the worst agent to the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from topdp.report.style import house_style, look, percent_axis, save


def curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, title: str) -> Path:
    """Draws the metrics of each run (label -> lines of metrics.jsonl) into one picture."""
    with house_style():
        figure = Figure()
        axes = figure.subplots()
        for label, metrics in runs.items():
            rounds = [line["round"] for line in metrics]
            accuracy = {key: [line["accuracy"][key] for line in metrics] for key in ("mean", "min", "max")}
            drawn = look(label)
            axes.fill_between(
                rounds, accuracy["min"], accuracy["max"], color=drawn["color"], alpha=0.15, lw=0
            )
            axes.plot(rounds, accuracy["mean"], label=label, markevery=max(1, len(rounds) // 8), **drawn)
        axes.set(xlabel="rounds", ylabel="test accuracy (mean, worst to best agent)", title=title)
        percent_axis(axes)
        axes.margins(x=0.02)
        axes.legend(loc="best")
        return save(figure, path)

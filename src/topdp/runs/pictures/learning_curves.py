"""Learning curves: a metric over the rounds, with a line for each run and a band for the range over agents.

Lines that coincide are drawn as one line with a common label, because a line under another line would seem to
be missing. Tables and CSV files still have every line.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from topdp.runs.config import RunConfig
from topdp.runs.epsilon_text import delta_text
from topdp.runs.metric_labels import is_share, mean_over_classes, metric_names
from topdp.runs.pictures.chart_style import TITLE_LETTERS, data_title, house_style, look, percent_axis, save
from topdp.runs.pictures.chart_text import wrapped
from topdp.runs.run_outline import method_of

# The distance below which lines coincide, as a fraction of the range of a picture. A drawn line is several
# times as wide.
MIN_LINE_DISTANCE = 1e-3


def curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, title: str, metric: str | None = None
) -> Path:
    """Draw one metric of each run in one picture, and return its path.

    `runs`: label -> lines of metrics.jsonl. `metric`: None: the first metric.
    """
    with house_style():
        return save(learning_curve(runs, title, metric), path)


@final
class CurveFigure(Figure):
    """A figure that notebooks show as PNG, although no display of matplotlib made it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with house_style():
            self.savefig(buffer, format="png")
        return buffer.getvalue()


def learning_curve(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], title: str, metric: str | None = None
) -> CurveFigure:
    """Return the picture that `curves` draws."""
    metric = metric or next(metric_names(lines[-1])[0] for lines in runs.values() if lines)
    lines = {label: _line(metrics, metric) for label, metrics in runs.items()}
    band = "worst to best agent" if is_share(metric) else "all agents"
    return _draw(lines, metric, f"test {metric} (mean,\nband: {band})", title)


def draw_curves(
    lines: Mapping[str, tuple[list[float], ...]], metric: str, ylabel: str, path: str | Path, title: str
) -> Path:
    """Draw lines in one picture, and return its path.

    `lines`: label -> rounds, lower limits of the band, means, upper limits.
    """
    with house_style():
        return save(_draw(lines, metric, ylabel, title), path)


def _draw(lines: Mapping[str, tuple[list[float], ...]], metric: str, ylabel: str, title: str) -> CurveFigure:
    with house_style():
        figure = CurveFigure()
        axes = figure.subplots()
        for label, same in coinciding(lines).items():
            rounds, low, mean, high = lines[label]
            style = look(label)
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, lw=0)
            axes.plot(
                rounds, mean, label=joined_label(same) or "all", markevery=max(1, len(rounds) // 8), **style
            )
        axes.set(xlabel="rounds", ylabel=ylabel, title=wrapped(title, TITLE_LETTERS))
        if is_share(metric):
            percent_axis(axes)
        axes.margins(x=0.02)
        axes.legend(loc="best")
        return figure


def coinciding(lines: Mapping[str, Sequence[ArrayLike]]) -> dict[str, list[str]]:
    """Return label -> the labels of all lines that coincide with the line of this label, which is drawn.

    `lines`: label -> positions on the horizontal axis, followed by arrays of values at these positions. Lines
    coincide if they have the same positions, and if no values differ by more than `MIN_LINE_DISTANCE` of the
    range.

    >>> better, worse = ([0, 1], [0.1, 0.9]), ([0, 1], [0.1, 0.5])
    >>> coinciding({"top": better, "plain": worse, "top-dp": better})
    {'top': ['top', 'top-dp'], 'plain': ['plain']}
    """
    arrays = {label: [np.asarray(part, np.float64) for part in line] for label, line in lines.items()}
    finite = [part[np.isfinite(part)] for line in arrays.values() for part in line[1:]]
    values = np.concatenate([np.empty(0), *finite])
    tolerance = MIN_LINE_DISTANCE * float(np.ptp(values)) if values.size else 0.0
    groups: dict[str, list[str]] = {}
    for label, line in arrays.items():
        first = next((other for other in groups if _coincide(line, arrays[other], tolerance)), label)
        groups.setdefault(first, []).append(label)
    return groups


def _coincide(line: Sequence[np.ndarray], other: Sequence[np.ndarray], tolerance: float) -> bool:
    return len(line) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=tolerance if number else 0.0, equal_nan=True)
        for number, (a, b) in enumerate(zip(line, other, strict=True))
    )


def joined_label(labels: Sequence[str]) -> str:
    """Return one label for lines that are drawn as one.

    >>> joined_label(["top"]), joined_label(["top", "top-dp"])
    ('top', 'top = top-dp')
    """
    return " = ".join(labels)


def _line(metrics: Sequence[Mapping[str, Any]], metric: str) -> tuple[list[float], ...]:
    """Return the rounds, and the minimum, mean and maximum over agents after each round; NaN if undefined."""
    rounds = [float(line["round"]) for line in metrics]
    spreads = [line.get(metric, {}) for line in metrics]
    return rounds, *(
        [mean_over_classes(spread.get(key)) for spread in spreads] for key in ("min", "mean", "max")
    )


def heading(configs: Sequence[RunConfig], agents: Sequence[int]) -> str:
    """Return a title that names what all runs have in common of data, agents, mode, and ε with its guarantee.

    >>> from topdp.runs.config import RunConfig
    >>> heading([RunConfig()], agents=[30])
    'MNIST, 30 agents, sync, ε = 1 (adaptive, δ = 1e-5)'
    """
    noisy = [config for config in configs if method_of(config).noisy]
    parts = (
        {data_title(config.data.name) for config in configs},
        {f"{count} agents" for count in agents},
        {config.method.mode for config in configs},
        _noise_of(noisy),
    )
    return ", ".join(part.pop() for part in parts if len(part) == 1) or "sweep"


def _noise_of(noisy: Sequence[RunConfig]) -> set[str]:
    """Return descriptions of the noise. Different budgets with one guarantee and δ become one range."""
    texts = {noise_words(config) for config in noisy} or {"no noise"}
    kinds = {(config.privacy.guarantee, delta_text(config.privacy.delta)) for config in noisy}
    if len(texts) == 1 or len(kinds) > 1 or any(config.privacy.sigma is not None for config in noisy):
        return texts
    budgets = np.concatenate([np.atleast_1d(config.privacy.epsilon) for config in noisy])
    wide = noisy[0].privacy.model_copy(update={"epsilon": budgets.tolist()})
    return {noise_words(noisy[0].model_copy(update={"privacy": wide}))}


def noise_words(config: RunConfig) -> str:
    """Return the configured σ as text, or else the budget from which σ follows."""
    privacy = config.privacy
    if privacy.sigma is not None:
        return f"σ = {_range(privacy.sigma)}"
    delta = delta_text(privacy.delta).replace("e-0", "e-")
    return f"ε = {_range(privacy.epsilon)} ({privacy.guarantee}, δ = {delta})"


def _range(value: float | Sequence[float]) -> str:
    """Return the common number of all agents as text, or the smallest and the largest."""
    return " to ".join(dict.fromkeys(f"{end:g}" for end in (np.min(value), np.max(value))))

"""Draw a sweep: a metric against a configuration key, or along the rounds, with its spread over seeds.

`runs/sweep_summary.py` computes the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from topdp.runs.metric_labels import is_share
from topdp.runs.pictures import chart_style
from topdp.runs.pictures.chart_text import wrapped
from topdp.runs.pictures.learning_curves import coinciding, draw_curves, joined_label
from topdp.runs.sweep_summary import Spread, as_number, label_of, metric_names, spread_of

MAX_PICTURE_LINES = 8  # more combinations are drawn as points in a column
MAX_TICK_LABELS = 10  # up to here every value of a key gets a tick label
LINE_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


def picture(spreads: Sequence[Spread], path: Path, title: str) -> Path | None:
    """Draw the first metric against the first numeric key of a sweep; return the path of the picture.

    Each combination of the other keys is one line. If no key is numeric, or if there are too many lines, draw
    all combinations as points in a column. If there is no metric, draw nothing and return None.
    """
    metric = next(iter(metric_names(spreads)), None)
    if metric is None:
        return None
    along = _axis(spreads)
    with chart_style.house_style():
        figure = Figure(figsize=(5.6, 3.8) if along else (5.6, 1.2 + 0.3 * len(spreads)))
        axes = figure.subplots()
        label = f"{metric} (mean ± standard deviation over seeds)"
        if along is None:
            _column(axes, spreads, metric)
            axes.set(xlabel=label, title=wrapped(title, chart_style.TITLE_LETTERS))
            if is_share(metric):
                axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
        else:
            _lines(axes, spreads, metric, along)
            axes.set(
                xlabel=along,
                ylabel=label.replace("(mean ", "(mean\n"),
                title=wrapped(title, chart_style.TITLE_LETTERS),
            )
            if is_share(metric):
                chart_style.percent_axis(axes)
        return chart_style.save(figure, path)


def curves(runs: Mapping[str, Spread], path: Path, title: str) -> Path | None:
    """Draw the first metric along the rounds; return the path of the picture.

    Each label has one line, with a band of ± one standard deviation over seeds. If there is no metric, draw
    nothing and return None.
    """
    metric = next(iter(metric_names(list(runs.values()))), None)
    if metric is None:
        return None
    lines = {label: _along_rounds(seeds, metric) for label, seeds in runs.items()}
    return draw_curves(lines, metric, f"{metric} (mean,\nband: ± standard deviation over seeds)", path, title)


def _along_rounds(seeds: Spread, metric: str) -> tuple[list[float], ...]:
    """Return (rounds, lower edge, mean, upper edge). The edges are one standard deviation from the mean."""
    by_round: dict[int, list[float]] = {}
    for run in seeds.done:
        for line in run["history"]:
            if line[metric]["mean"] is not None:
                by_round.setdefault(line["round"], []).append(line[metric]["mean"])
    statistics = [spread_of(values) for values in by_round.values()]
    mean = [_number(spread["mean"]) for spread in statistics]
    deviation = [_number(spread["deviation"]) for spread in statistics]
    low, high = ([m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
    return [float(round) for round in by_round], low, mean, high


def _axis(spreads: Sequence[Spread]) -> str | None:
    """Return the key of the horizontal axis: the first key with several values, all of them numeric.

    Return None if no key has such values, or if there would be too many lines.
    """
    for key in spreads[0].chosen:
        values = {spread.chosen[key] for spread in spreads}
        if len(values) > 1 and all(as_number(value) is not None for value in values):
            return key if len(spreads) <= MAX_PICTURE_LINES * len(values) else None
    return None


def _lines(axes: Any, spreads: Sequence[Spread], metric: str, along: str) -> None:
    lines: dict[str, list[Spread]] = {}
    for spread in spreads:
        others = {key: value for key, value in spread.chosen.items() if key != along}
        lines.setdefault(label_of(others), []).append(spread)
    drawn: dict[str, tuple[list[float], ...]] = {}
    for label, line in lines.items():
        line = [spread for spread in line if spread.values(metric)]
        line.sort(key=lambda spread: float(spread.chosen[along]))
        x = [float(spread.chosen[along]) for spread in line]
        points = [spread.of(metric) for spread in line]
        drawn[label] = x, *([_number(point[key]) for point in points] for key in ("mean", "deviation"))
    for number, (label, same) in enumerate(coinciding(drawn).items()):
        default = {"marker": LINE_MARKERS[number % len(LINE_MARKERS)]}  # in the next colour of the figure
        style = chart_style.look(label) if label in chart_style.METHOD_LOOKS else default
        axes.errorbar(*drawn[label], label=joined_label(same) or None, capsize=3, **style)
    numbers = [float(spread.chosen[along]) for spread in spreads]
    if min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
        axes.set_xscale("log")
    values = dict(zip(numbers, (spread.chosen[along] for spread in spreads), strict=True))
    if len(values) <= MAX_TICK_LABELS:
        axes.set_xticks(list(values), list(values.values()))
        axes.minorticks_off()
    if len(lines) > 1:
        axes.legend(loc="best")


def _column(axes: Any, spreads: Sequence[Spread], metric: str) -> None:
    measured = [spread for spread in spreads if spread.values(metric)]
    points = [spread.of(metric) for spread in measured]
    axes.errorbar(
        [point["mean"] for point in points], range(len(measured)),
        xerr=[_number(point["deviation"]) for point in points],
        fmt="o", color=chart_style.BLUE, capsize=3,
    )  # fmt: skip
    axes.set_yticks(range(len(measured)), [spread.label or "all" for spread in measured])
    axes.invert_yaxis()


def _number(value: float | int | None) -> float:
    return 0.0 if value is None else float(value)

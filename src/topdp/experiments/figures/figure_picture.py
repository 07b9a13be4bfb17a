"""Draw a figure from its numbers: one panel beside the other, with means over seeds as lines and bands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture

from topdp.base.array_types import Floats
from topdp.experiments.figures.paper_figure import FigureNumbers, Panel
from topdp.experiments.lenses import LENS_GUARANTEES, LENSES
from topdp.runs.pictures.chart_style import data_title, house_style, look, percent_axis, save
from topdp.runs.pictures.chart_text import wrapped
from topdp.runs.pictures.learning_curves import coinciding, joined_label
from topdp.runs.run_outline import method_of
from topdp.views.pages.plain_words import small

PICTURE_SUFFIXES = (".png", ".svg")
LETTERS_PER_INCH = 13


def draw(numbers: FigureNumbers, title: str, epochs: int, stem: Path) -> None:
    """Draw all panels of one lens in one picture, and save it as each of `PICTURE_SUFFIXES`."""
    count = len(numbers.panels)
    columns = min(4, count)
    rows = -(-count // columns)
    with house_style():
        picture = Picture(figsize=(3.1 * columns + 0.6, 2.9 * rows + 1.3))
        axes = picture.subplots(rows, columns, squeeze=False, sharey=True)
        groups = _coinciding_labels(numbers, epochs)
        for panel, axis in zip(numbers.panels, axes.flat, strict=False):
            for label, same in groups.items():
                if label not in panel.lines:
                    continue
                style = look({"every baseline": "plain"}.get(label, label)) | {
                    "markersize": 4,
                    "linewidth": 1.4,
                }
                x, y = _line(numbers, panel, label, epochs)
                axis.fill_between(x, y.min(0), y.max(0), color=style["color"], alpha=0.18, lw=0)
                every = max(1, len(x) // 6)
                axis.plot(x, y.mean(0), label=joined_label(same), markevery=(every - 1, every), **style)
            axis.set(title=panel.title, xlabel=panel.xlabel)
            percent_axis(axis)
        for axis in axes.flat[count:]:
            axis.set_visible(False)
        for axis in axes[:, 0]:
            axis.set_ylabel("mean test accuracy")
        legend: dict[str, Any] = {}
        for axis in axes.flat:
            handles, labels = axis.get_legend_handles_labels()
            legend |= dict(zip(labels, handles, strict=True))
        picture.legend(legend.values(), legend, loc="outside lower center", ncols=min(7, len(legend)))
        heading = f"{title}\n{caption(numbers)}\n{LENSES[numbers.lens]}{bands(numbers)}"
        heading = wrapped(heading, int(LETTERS_PER_INCH * picture.get_figwidth()))
        picture.suptitle(heading, x=0.01, ha="left", fontsize=10)
        for suffix in PICTURE_SUFFIXES:
            save(picture, stem.with_name(stem.name + suffix))


def caption(numbers: FigureNumbers) -> str:
    """Return the caption of a picture: data, ε with its guarantee, size of the runs, number of seeds."""
    configs = [config for panel in numbers.panels for config in panel.configs()]
    noisy = [config for config in configs if method_of(config).noisy]
    data = " and ".join(dict.fromkeys(data_title(config.data.name) for config in configs))
    budgets = sorted({float(np.max(config.privacy.epsilon)) for config in noisy})
    epsilon = f"ε = {budgets[0]:g}" if len(budgets) == 1 else f"ε from {budgets[0]:g} to {budgets[-1]:g}"
    delta = " and ".join(dict.fromkeys(small(config.privacy.delta) for config in noisy))
    seeds = len({config.seed for config in configs})
    return (
        f"{data}, {epsilon} ({LENS_GUARANTEES[numbers.lens]}, δ = {delta}), "
        f"{_values(config.topology.agents for config in configs)} agents, "
        f"{_values(config.rounds for config in configs)} rounds, {seeds} seed{'s' * (seeds > 1)}"
    )


def bands(numbers: FigureNumbers) -> str:
    """Return an explanation of the bands, or an empty text if the picture has none."""
    seeds = {config.seed for panel in numbers.panels for config in panel.configs()}
    return "; bands: least to largest seed" if len(seeds) > 1 else ""


def _coinciding_labels(numbers: FigureNumbers, epochs: int) -> dict[str, list[str]]:
    """Group the labels whose lines coincide in every panel, so that one legend serves all panels."""
    lines: dict[str, list[list[Floats]]] = {}
    for panel in numbers.panels:
        for label in panel.lines:
            x, y = _line(numbers, panel, label, epochs)
            lines.setdefault(label, []).append([x, y.mean(0), y.min(0), y.max(0)])
    whole = {
        label: [np.concatenate(parts) for parts in zip(*of_panels, strict=True)]
        for label, of_panels in lines.items()
    }
    return coinciding(whole)


def _values(several: Iterable[float]) -> str:
    *others, last = [small(value) for value in sorted(set(several))]
    return f"{', '.join(others)} and {last}" if others else last


def _line(numbers: FigureNumbers, panel: Panel, label: str, epochs: int) -> tuple[Floats, Floats]:
    if panel.x is None:
        done, accuracy = numbers.curve(panel, label)
        return done * epochs, accuracy
    finals = [numbers.final(panel, label, at) for at in range(len(panel.x))]
    return np.array(panel.x), np.array(finals).T

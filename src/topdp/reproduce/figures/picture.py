"""How a figure is drawn from its numbers: panels side by side, lines means over seeds, bands their spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Picture

from topdp.plan.arrays import Floats
from topdp.report.style import data_title, house_style, look, percent_axis, save
from topdp.reproduce.figures.figure import FigureNumbers, Panel
from topdp.reproduce.lenses import GUARANTEES, LENSES
from topdp.settings import build
from topdp.settings.config import RunConfig

ENDINGS = (".png", ".svg")


def draw(numbers: FigureNumbers, title: str, epochs: int, stem: Path) -> None:
    """All panels of one lens in one picture, written with each of `ENDINGS`."""
    count = len(numbers.panels)
    columns = min(4, count)
    rows = -(-count // columns)
    with house_style():
        picture = Picture(figsize=(3.1 * columns + 0.6, 2.6 * rows + 1.3))
        axes = picture.subplots(rows, columns, squeeze=False, sharey=True)
        for panel, axis in zip(numbers.panels, axes.flat, strict=False):
            for label in panel.lines:
                style = look({"every baseline": "plain"}.get(label, label)) | {
                    "markersize": 4,
                    "linewidth": 1.4,
                }
                x, y = _line(numbers, panel, label, epochs)
                axis.fill_between(x, y.min(0), y.max(0), color=style["color"], alpha=0.18, lw=0)
                every = max(1, len(x) // 6)  # on long lines none at the start, which the edge cuts
                axis.plot(x, y.mean(0), label=label, markevery=(every - 1, every), **style)
            axis.set(title=panel.title, xlabel=panel.xlabel)
            percent_axis(axis)
        axes[0, 0].set_ylim(bottom=_floor(numbers, epochs))
        for axis in axes.flat[count:]:
            axis.set_visible(False)
        for axis in axes[:, 0]:
            axis.set_ylabel("mean test accuracy")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)))
        above = f"{title}\n{caption(numbers)}\n{LENSES[numbers.lens]}"
        picture.suptitle(above, x=0.01, ha="left", fontsize=10)
        for ending in ENDINGS:
            save(picture, stem.with_name(stem.name + ending))


def caption(numbers: FigureNumbers) -> str:
    """What every picture must say of itself: data, ε and its guarantee, how large the runs are."""
    configs = [config for panel in numbers.panels for config in panel.configs()]
    noisy = [config for config in configs if build.method(config).noisy]
    data = " and ".join(dict.fromkeys(data_title(config.data.name) for config in configs))
    budgets = sorted({float(np.max(config.privacy.epsilon)) for config in noisy})
    epsilon = f"ε = {budgets[0]:g}" if len(budgets) == 1 else f"ε from {budgets[0]:g} to {budgets[-1]:g}"
    delta = _values(config.privacy.delta for config in noisy)
    return (
        f"{data}, {epsilon} ({GUARANTEES[numbers.lens]}, δ = {delta}), "
        f"{_values(config.topology.agents for config in configs)} agents, "
        f"{_values(config.rounds for config in configs)} rounds, {_seeds(configs)}"
    )


def _values(several: Iterable[float]) -> str:
    return " and ".join(f"{value:g}".replace("e-0", "e-") for value in sorted(set(several)))


def _seeds(configs: Sequence[RunConfig]) -> str:
    count = len({config.seed for config in configs})
    return "1 seed" if count == 1 else f"{count} seeds"


def _floor(numbers: FigureNumbers, epochs: int) -> float:
    """Where the picture begins: below all that it shows, but for the first tenth of runs, near chance."""
    least = 1.0
    for panel in numbers.panels:
        for label in panel.lines:
            x, y = _line(numbers, panel, label, epochs)
            settled = x >= x[0] + (x[-1] - x[0]) / 10 if panel.x is None else slice(None)
            least = min(least, float(y[:, settled].min()))
    return max(0.0, least - 0.03)


def _line(numbers: FigureNumbers, panel: Panel, label: str, epochs: int) -> tuple[Floats, Floats]:
    if panel.x is None:
        done, accuracy = numbers.curve(panel, label)
        return done * epochs, accuracy
    finals = [numbers.final(panel, label, at) for at in range(len(panel.x))]
    return np.array(panel.x), np.array(finals).T

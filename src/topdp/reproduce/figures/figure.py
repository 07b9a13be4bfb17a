"""What a figure of the paper is: panels of lines, claims about them, and how both are drawn and judged."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Picture

from topdp.plan.arrays import Floats
from topdp.report.style import house_style, look, percent_axis, save
from topdp.reproduce.runner import Runs
from topdp.reproduce.settings import LENSES, Scale
from topdp.settings.config import RunConfig


@dataclass(frozen=True)
class Panel:
    """Lines of runs: label -> for each x, the runs of all seeds. Without `x`, accuracy along the epochs."""

    title: str
    lines: Mapping[str, Sequence[Sequence[RunConfig]]]
    x: tuple[float, ...] | None = None
    xlabel: str = "epoch"

    def configs(self) -> Iterator[RunConfig]:
        for points in self.lines.values():
            for seeds in points:
                yield from seeds


@dataclass(frozen=True)
class Measured:
    """The results of one figure under one lens."""

    lens: str
    panels: Sequence[Panel]
    runs: Runs

    def __getitem__(self, title: str) -> Panel:
        return next(panel for panel in self.panels if panel.title == title)

    def final(self, panel: Panel, label: str, at: int = 0) -> Floats:
        """[seeds]: mean accuracy of the agents at the end."""
        return np.array([self.runs[c][-1]["mean"] for c in panel.lines[label][at]])

    def curve(self, panel: Panel, label: str) -> tuple[Floats, Floats]:
        """(share of the run done [k], accuracy [seeds, k])."""
        curves = [self.runs[c] for c in panel.lines[label][0]]
        done = np.array([point["round"] for point in curves[0]]) / max(1, curves[0][-1]["round"])
        return done, np.array([[point["mean"] for point in curve] for curve in curves])

    def baselines(self, panel: Panel) -> list[str]:
        return [label for label in panel.lines if label not in ("no-noise", "top", "top-dp")]


Check = Callable[[Measured], list[tuple[bool, str]]]
"""Cases of a claim: whether it held, and what was measured."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, in our words, and how it is checked."""

    sentence: str
    check: Check
    lenses: tuple[str, ...] = tuple(LENSES)

    def verdict(self, measured: Measured) -> tuple[str, str]:
        """(holds / partly / does not hold, what was measured)."""
        cases = self.check(measured)
        held = sum(case for case, _ in cases)
        word = "holds" if held == len(cases) else "partly" if held else "does not hold"
        count = "" if held in (0, len(cases)) else f"in {held} of {len(cases)} cases; "
        return word, count + "; ".join(text for _, text in cases)


@dataclass(frozen=True)
class PaperFigure:
    """`panels(scale, lens)` says which runs it needs."""

    number: str
    title: str
    panels: Callable[[Scale, str], list[Panel]]
    claims: tuple[Claim, ...]


def draw(measured: Measured, title: str, epochs: int, path: Path) -> Path:
    """All panels of one lens in one picture; lines are means over seeds, bands their spread."""
    count = len(measured.panels)
    columns = min(4, count)
    rows = -(-count // columns)
    with house_style():
        picture = Picture(figsize=(3.1 * columns + 0.6, 2.6 * rows + 1.1))
        axes = picture.subplots(rows, columns, squeeze=False, sharey=True)
        for panel, axis in zip(measured.panels, axes.flat, strict=False):
            for label in panel.lines:
                style = look({"every baseline": "plain"}.get(label, label)) | {
                    "markersize": 4,
                    "linewidth": 1.4,
                }
                x, y = _line(measured, panel, label, epochs)
                axis.fill_between(x, y.min(0), y.max(0), color=style["color"], alpha=0.18, lw=0)
                every = max(1, len(x) // 6)  # on long lines none at the start, which the edge cuts
                axis.plot(x, y.mean(0), label=label, markevery=(every - 1, every), **style)
            axis.set(title=panel.title, xlabel=panel.xlabel)
            percent_axis(axis)
        axes[0, 0].set_ylim(bottom=_floor(measured, epochs))
        for axis in axes.flat[count:]:
            axis.set_visible(False)
        for axis in axes[:, 0]:
            axis.set_ylabel("mean test accuracy")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)))
        picture.suptitle(f"{title}\n{LENSES[measured.lens]}", x=0.01, ha="left", fontsize=10)
        return save(picture, path)


def _floor(measured: Measured, epochs: int) -> float:
    """Where the picture begins: below all that it shows, but for the first tenth of runs, near chance."""
    least = 1.0
    for panel in measured.panels:
        for label in panel.lines:
            x, y = _line(measured, panel, label, epochs)
            settled = x >= x[0] + (x[-1] - x[0]) / 10 if panel.x is None else slice(None)
            least = min(least, float(y[:, settled].min()))
    return max(0.0, least - 0.03)


def _line(measured: Measured, panel: Panel, label: str, epochs: int) -> tuple[Floats, Floats]:
    if panel.x is None:
        done, accuracy = measured.curve(panel, label)
        return done * epochs, accuracy
    finals = [measured.final(panel, label, at) for at in range(len(panel.x))]
    return np.array(panel.x), np.array(finals).T


def write_csv(measured: Measured, path: Path) -> None:
    """Every number of the picture: one line per panel, line, x, seed and evaluation."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["panel", "line", "x", "seed", "sigma", "round", "mean", "min", "max"])
        for panel in measured.panels:
            for label, points in panel.lines.items():
                for at, seeds in enumerate(points):
                    x = "" if panel.x is None else panel.x[at]
                    for config in seeds:
                        sigma = measured.runs.calibrations.sigma(config)
                        curve = measured.runs[config]
                        for point in curve if panel.x is None else curve[-1:]:
                            values = [point[key] for key in ("round", "mean", "min", "max")]
                            rows.writerow([panel.title, label, x, config.seed, f"{sigma:.6g}", *values])


def percent(value: float) -> str:
    return f"{100 * value:.1f}"

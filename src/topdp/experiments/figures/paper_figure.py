"""A figure of the paper as data: panels of lines, their numbers, and claims with the checks that test them.

The numbers are stored as CSV. There is one row for each panel, line, x, seed and statistic over agents (mean,
min, max), and one column for each evaluated round. Panels with x have only the last round. Pictures and
verdicts depend on this file alone, so that they can be made again without the runs. `figure_picture` draws
figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.experiments.figure_runner import FigureRuns
from topdp.experiments.lenses import Scale
from topdp.experiments.run_store import REDRAW_REMEDY, Curve, csv_rows
from topdp.runs.config import RunConfig
from topdp.runs.sweep_summary import write_csv_lines


@dataclass(frozen=True)
class Panel:
    """The lines of a panel. `lines` maps each label to the runs: for each x, the runs of all seeds.

    If `x` is None, the horizontal axis is the epoch, and each label has one list of runs.
    """

    title: str
    lines: Mapping[str, Sequence[Sequence[RunConfig]]]
    x: tuple[float, ...] | None = None
    xlabel: str = "epoch"

    def configs(self) -> list[RunConfig]:
        return [config for points in self.lines.values() for seeds in points for config in seeds]


CurveKey = tuple[str, str, float | None, int]
"""What identifies a curve in a figure: panel title, line label, x or None, seed."""


@dataclass(frozen=True)
class FigureNumbers:
    """The measurements for one figure under one lens. Panels with x have only final accuracies.

    In methods, `at` is the index of x in a panel with x.
    """

    lens: str
    panels: Sequence[Panel]
    curves: Mapping[CurveKey, Curve]

    def __getitem__(self, title: str) -> Panel:
        return next(panel for panel in self.panels if panel.title == title)

    def final(self, panel: Panel, label: str, at: int = 0) -> Floats:
        """Return the final mean accuracy over agents, [seeds]."""
        return np.array([curve[-1]["mean"] for curve in self._of_seeds(panel, label, at)])

    def end(self, panel: Panel, label: str, at: int = 0) -> float:
        """Return the mean of `final` over the seeds."""
        return float(self.final(panel, label, at).mean())

    def curve(self, panel: Panel, label: str) -> tuple[Floats, Floats]:
        """Return (completed share of the run [k], mean accuracy over agents [seeds, k])."""
        curves = self._of_seeds(panel, label, 0)
        done = np.array([point["round"] for point in curves[0]]) / max(1, curves[0][-1]["round"])
        return done, np.array([[point["mean"] for point in curve] for curve in curves])

    def baselines(self, panel: Panel) -> list[str]:
        return [label for label in panel.lines if label not in ("no-noise", "top", "top-dp")]

    def _of_seeds(self, panel: Panel, label: str, at: int) -> list[Curve]:
        x = None if panel.x is None else panel.x[at]
        return [self.curves[panel.title, label, x, config.seed] for config in panel.lines[label][at]]


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict:
    """The verdict on one claim under one lens."""

    figure: str
    lens: str
    claim: str
    verdict: str  # "holds", "partly" or "does not hold"
    measured: str


Cases = Iterable[tuple[bool, str]]
"""The cases of a claim: (whether it held, the measured values as text)."""

Check = Callable[[FigureNumbers], Cases]


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper. `panels(scale, lens)` returns its panels with the runs that they need.

    `claims` maps sentences of the paper, paraphrased, to their checks. If a check has no cases under a lens,
    the claim gets no verdict.
    """

    title: str
    panels: Callable[[Scale, str], list[Panel]]
    claims: Mapping[str, Check]

    def configs(self, scale: Scale, lens: str) -> list[RunConfig]:
        return [config for panel in self.panels(scale, lens) for config in panel.configs()]

    def verdicts(self, name: str, numbers: FigureNumbers) -> Iterator[ClaimVerdict]:
        """Yield the verdicts on the claims of this figure, which is called `name`."""
        for sentence, check in self.claims.items():
            if cases := list(check(numbers)):
                passed = sum(case for case, _ in cases)
                word = "holds" if passed == len(cases) else "partly" if passed else "does not hold"
                count = "" if passed in (0, len(cases)) else f"in {passed} of {len(cases)} cases; "
                measured = count + "; ".join(text for _, text in cases)
                yield ClaimVerdict(
                    figure=name, lens=numbers.lens, claim=sentence, verdict=word, measured=measured
                )


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


KEY_COLUMNS = ["panel", "line", "x", "seed", "sigma", "over_agents"]
OVER_AGENTS = ("mean", "min", "max")


def write_numbers(panels: Sequence[Panel], runs: FigureRuns, path: Path) -> None:
    """Write all numbers of a figure under one lens to `path`, with the σ of each run."""
    lines = []
    for key, config in _keyed_runs(panels):
        curve = runs[config]
        lines.append((key, runs.noise.sigma(config), curve if key[2] is None else curve[-1:]))
    rounds = sorted({point["round"] for _, _, curve in lines for point in curve})
    table: list[list[object]] = [[*KEY_COLUMNS, *rounds]]
    for (title, label, x, seed), sigma, curve in lines:
        point_at = {point["round"]: point for point in curve}
        for over in OVER_AGENTS:
            values = [point_at[t][over] if t in point_at else "" for t in rounds]
            table.append([title, label, "" if x is None else x, seed, f"{sigma:.6g}", over, *values])
    write_csv_lines(path, table)


def read_numbers(lens: str, panels: Sequence[Panel], path: Path) -> FigureNumbers:
    """Return what `write_numbers` wrote; raise InputError if the file is damaged or incomplete."""
    curves: dict[CurveKey, Curve] = {}
    with csv_rows(path, "the numbers of a figure") as table:
        if (table.fieldnames or [])[: len(KEY_COLUMNS)] != KEY_COLUMNS:
            raise ValueError(f"its columns must begin with {', '.join(KEY_COLUMNS)}")
        for row in table:
            x = float(row["x"]) if row["x"] else None
            key = row["panel"], row["line"], x, int(row["seed"])
            values = {int(t): float(value) for t, value in row.items() if t not in KEY_COLUMNS and value}
            curve = curves.setdefault(key, [{"round": t} for t in values])
            for point, value in zip(curve, values.values(), strict=True):
                point[row["over_agents"]] = value
    for key, _ in _keyed_runs(panels):
        if not all("mean" in point for point in curves.get(key, [{}])):
            raise InputError(
                f"Expected the line {key} in {path}, but the file comes from other settings.{REDRAW_REMEDY}"
            )
    return FigureNumbers(lens, panels, curves)


def _keyed_runs(panels: Sequence[Panel]) -> list[tuple[CurveKey, RunConfig]]:
    return [
        ((panel.title, label, None if panel.x is None else panel.x[index], config.seed), config)
        for panel in panels
        for label, points in panel.lines.items()
        for index, seeds in enumerate(points)
        for config in seeds
    ]

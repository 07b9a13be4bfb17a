"""A figure of the paper as data: panels of lines, and claims about them with the checks that test them.

`figure_picture` draws figures, `figure_numbers` stores their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topdp.base.array_types import Floats
from topdp.experiments.lenses import Scale
from topdp.experiments.run_store import Curve
from topdp.runs.config import RunConfig


@dataclass(frozen=True)
class Panel:
    """Lines of runs. `lines`: label -> for each x, the runs of all seeds. Without `x`, x is the epoch."""

    title: str
    lines: Mapping[str, Sequence[Sequence[RunConfig]]]
    x: tuple[float, ...] | None = None
    xlabel: str = "epoch"

    def configs(self) -> Iterator[RunConfig]:
        for points in self.lines.values():
            for seeds in points:
                yield from seeds


Place = tuple[str, str, float | None, int]
"""The position of a curve in a figure: panel title, line label, x if the panel has one, seed."""


@dataclass(frozen=True)
class FigureNumbers:
    """The measurements for one figure under one lens. Panels with x have only final accuracies."""

    lens: str
    panels: Sequence[Panel]
    curves: Mapping[Place, Curve]

    def __getitem__(self, title: str) -> Panel:
        return next(panel for panel in self.panels if panel.title == title)

    def final(self, panel: Panel, label: str, at: int = 0) -> Floats:
        """Return the final mean accuracy over agents, [seeds]."""
        return np.array([curve[-1]["mean"] for curve in self._of_seeds(panel, label, at)])

    def end(self, panel: Panel, label: str, at: int = 0) -> float:
        """Return the mean of `final` over the seeds."""
        return float(self.final(panel, label, at).mean())

    def curve(self, panel: Panel, label: str) -> tuple[Floats, Floats]:
        """Return (completed share of the run [k], accuracy [seeds, k])."""
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


Cases = list[tuple[bool, str]]
"""The cases of a claim: (whether it held, the measured values as text)."""

Check = Callable[[FigureNumbers], Cases]


@dataclass(frozen=True)
class PaperFigure:
    """A figure. `panels(scale, lens)` returns its panels with the runs they need.

    `claims`: sentences of the paper, paraphrased, with the check of each. A check without cases under a lens
    gives no verdict.
    """

    number: str
    title: str
    panels: Callable[[Scale, str], list[Panel]]
    claims: Mapping[str, Check]

    def configs(self, scale: Scale, lens: str) -> list[RunConfig]:
        return [config for panel in self.panels(scale, lens) for config in panel.configs()]

    def verdicts(self, numbers: FigureNumbers) -> list[ClaimVerdict]:
        verdicts = []
        for sentence, check in self.claims.items():
            if cases := check(numbers):
                passed = sum(case for case, _ in cases)
                word = "holds" if passed == len(cases) else "partly" if passed else "does not hold"
                count = "" if passed in (0, len(cases)) else f"in {passed} of {len(cases)} cases; "
                measured = count + "; ".join(text for _, text in cases)
                verdicts.append(
                    ClaimVerdict(
                        figure=self.number, lens=numbers.lens, claim=sentence, verdict=word, measured=measured
                    )
                )
        return verdicts


def percent(value: float) -> str:
    return f"{100 * value:.1f}"

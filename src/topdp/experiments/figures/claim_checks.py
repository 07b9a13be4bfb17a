"""Checks that several figures share: is the proposed method above, does the gap grow, does nothing change?"""

from __future__ import annotations

import numpy as np

from topdp.experiments.figures.paper_figure import Check, FigureNumbers, Panel, percent
from topdp.experiments.lenses import PROPOSED


def gap(numbers: FigureNumbers, panel: Panel, at: int = 0) -> float:
    """Proposed minus the best baseline, means over seeds."""
    best = max(numbers.final(panel, label, at).mean() for label in numbers.baselines(panel))
    return float(numbers.final(panel, PROPOSED, at).mean() - best)


def above_every_baseline(numbers: FigureNumbers) -> list[tuple[bool, str]]:
    """In every panel, and at every x."""
    cases = []
    for panel in numbers.panels:
        for at in range(len(panel.x or (0,))):
            own = numbers.final(panel, PROPOSED, at).mean()
            over = gap(numbers, panel, at)
            where = panel.title if panel.x is None else f"{panel.title}, {panel.x[at]:g}"
            cases.append((over > 0, f"{where}: {percent(own)} against {percent(own - over)}"))
    return cases


def gap_grows(groups: dict[str, list[str]]) -> Check:
    """Along the panels of each group, in their order; an advantage below zero is none."""

    def check(numbers: FigureNumbers) -> list[tuple[bool, str]]:
        cases = []
        for group, titles in groups.items():
            gaps = [gap(numbers, numbers[title]) for title in titles]
            text = ", ".join(f"{100 * value:+.1f}" for value in gaps)
            grows = bool(np.all(np.diff(gaps) > 0)) and min(gaps) > 0
            cases.append((grows, f"{group}: {text} points"))
        return cases

    return check


def ordered(better: str, worse: str) -> Check:
    """One line above another, panel by panel."""

    def check(numbers: FigureNumbers) -> list[tuple[bool, str]]:
        cases = []
        for panel in numbers.panels:
            for at in range(len(panel.x or (0,))):
                a, b = (numbers.final(panel, label, at).mean() for label in (better, worse))
                cases.append((bool(a > b), f"{panel.title}: {percent(a)} against {percent(b)}"))
        return cases

    return check


def changes_little(points: float) -> Check:
    """The proposed method's accuracy differs by at most so many percentage points between the panels or x."""

    def check(numbers: FigureNumbers) -> list[tuple[bool, str]]:
        finals = [
            (
                panel.title if panel.x is None else f"{panel.x[at]:g}",
                numbers.final(panel, PROPOSED, at).mean(),
            )
            for panel in numbers.panels
            for at in range(len(panel.x or (0,)))
        ]
        values = [value for _, value in finals]
        text = ", ".join(f"{where} {percent(value)}" for where, value in finals)
        return [(max(values) - min(values) <= points / 100, text)]

    return check

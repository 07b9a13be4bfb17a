"""Checks of claims that several figures share, such as "the proposed method beats every baseline"."""

from __future__ import annotations

import numpy as np

from topdp.experiments.figures.paper_figure import Cases, Check, FigureNumbers, Panel, percent
from topdp.experiments.lenses import PROPOSED


def gap(numbers: FigureNumbers, panel: Panel, at: int = 0) -> float:
    """Return the proposed method's accuracy minus the best baseline's, as a fraction; means over seeds.

    `at`: the index of x in a panel with x.
    """
    best = max(numbers.final(panel, label, at).mean() for label in numbers.baselines(panel))
    return float(numbers.final(panel, PROPOSED, at).mean() - best)


def above_every_baseline(numbers: FigureNumbers) -> Cases:
    """Check that the proposed method beats every baseline: one case per panel and x."""
    cases = []
    for panel in numbers.panels:
        for at in range(len(panel.x or (0,))):
            own = numbers.final(panel, PROPOSED, at).mean()
            advantage = gap(numbers, panel, at)
            where = panel.title if panel.x is None else f"{panel.title}, {panel.x[at]:g}"
            cases.append((advantage > 0, f"{where}: {percent(own)} against {percent(own - advantage)}"))
    return cases


def gap_grows(groups: dict[str, list[str]]) -> Check:
    """Return a check that the gap is positive and grows along the panels of each group, in order."""

    def check(numbers: FigureNumbers) -> Cases:
        cases = []
        for group, titles in groups.items():
            gaps = [gap(numbers, numbers[title]) for title in titles]
            text = ", ".join(f"{100 * value:+.1f}" for value in gaps)
            grows = bool(np.all(np.diff(gaps) > 0)) and min(gaps) > 0
            cases.append((grows, f"{group}: {text} points"))
        return cases

    return check


def ordered(better: str, worse: str) -> Check:
    """Return a check that the line `better` lies above `worse`: one case per panel and x."""

    def check(numbers: FigureNumbers) -> Cases:
        cases = []
        for panel in numbers.panels:
            for at in range(len(panel.x or (0,))):
                a, b = (numbers.final(panel, label, at).mean() for label in (better, worse))
                cases.append((bool(a > b), f"{panel.title}: {percent(a)} against {percent(b)}"))
        return cases

    return check


def changes_little(points: float) -> Check:
    """Return a check that the proposed method's accuracy varies by at most `points` percentage points."""

    def check(numbers: FigureNumbers) -> Cases:
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

"""Checks of claims that several figures share, such as "the proposed method beats every baseline"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from topdp.experiments.figures.paper_figure import Cases, Check, FigureNumbers, Panel, percent
from topdp.experiments.lenses import PROPOSED


def in_each_panel(case: Callable[[FigureNumbers, Panel], tuple[bool, str]]) -> Check:
    """Return a check with one case per panel."""
    return lambda numbers: [case(numbers, panel) for panel in numbers.panels]


def gap(numbers: FigureNumbers, panel: Panel, at: int = 0) -> float:
    """Return the proposed method's accuracy minus the best baseline's, as a fraction; means over seeds.

    `at`: the index of x in a panel with x.
    """
    best = max(numbers.final(panel, label, at).mean() for label in numbers.baselines(panel))
    return float(numbers.final(panel, PROPOSED, at).mean() - best)


def grow(gaps: Sequence[float]) -> bool:
    """Return whether the gaps are positive, and each is larger than the one before."""
    return bool(np.all(np.diff(gaps) > 0)) and min(gaps) > 0


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

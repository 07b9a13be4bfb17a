"""Figure 2: accuracy against the privacy budget, synchronous and asynchronous, α = .25."""

from __future__ import annotations

import numpy as np

from topdp.experiments.figures.claim_checks import above_every_baseline, gap
from topdp.experiments.figures.paper_figure import Cases, Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import MODES, PROPOSED, Scale, method_lines

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(
            mode,
            method_lines(scale, lens, *({"mode": mode, "epsilon": epsilon} for epsilon in EPSILONS)),
            EPSILONS,
            "privacy budget ε",
        )
        for mode in MODES
    ]


def falls_with_the_budget(numbers: FigureNumbers) -> Cases:
    cases = []
    for panel in numbers.panels:
        ends = [numbers.final(panel, PROPOSED, at).mean() for at in range(len(EPSILONS))]
        cases.append((bool(np.all(np.diff(ends) > 0)), f"{panel.title}: " + " ".join(map(percent, ends))))
    return cases


def advantage_grows(numbers: FigureNumbers) -> Cases:
    cases = []
    for panel in numbers.panels:
        gaps = [gap(numbers, panel, at) for at in range(len(EPSILONS))]
        text = " ".join(f"{100 * value:+.1f}" for value in gaps)
        grows = bool(np.all(np.diff(gaps) < 0)) and min(gaps) > 0
        cases.append((grows, f"{panel.title}, from small to large ε: {text}"))
    return cases


BUDGET_FIGURE = PaperFigure(
    "2",
    "Accuracy against the privacy budget",
    panels,
    (
        Claim("The proposed method is above every baseline at every budget.", above_every_baseline),
        Claim("Less budget, less accuracy.", falls_with_the_budget),
        Claim("The advantage grows as the budget falls.", advantage_grows),
    ),
)

"""Figure 2: accuracy against the privacy budget, synchronous and asynchronous, α = .25."""

from __future__ import annotations

import numpy as np

from topdp.experiments.figures.claim_checks import above_every_baseline, gap, grow, in_each_panel
from topdp.experiments.figures.paper_figure import Claim, FigureNumbers, Panel, PaperFigure, percent
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


@in_each_panel
def falls_with_the_budget(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    ends = [numbers.final(panel, PROPOSED, at).mean() for at in range(len(EPSILONS))]
    return bool(np.all(np.diff(ends) > 0)), f"{panel.title}: " + " ".join(map(percent, ends))


@in_each_panel
def grows_as_the_budget_falls(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    gaps = [gap(numbers, panel, at) for at in range(len(EPSILONS))]
    text = " ".join(f"{100 * value:+.1f}" for value in gaps)
    return grow(gaps[::-1]), f"{panel.title}, from small to large ε: {text}"


BUDGET_FIGURE = PaperFigure(
    "2",
    "Accuracy against the privacy budget",
    panels,
    (
        Claim("The proposed method is above every baseline at every budget.", above_every_baseline),
        Claim("Less budget, less accuracy.", falls_with_the_budget),
        Claim("The advantage grows as the budget falls.", grows_as_the_budget_falls),
    ),
)

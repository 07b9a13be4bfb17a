"""Figure 7: noise reduction alone (top) and with decay (top-dp), α .5 and .25, both modes."""

from __future__ import annotations

import numpy as np

from topdp.experiments.figures.claim_checks import in_each_panel
from topdp.experiments.figures.paper_figure import Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import MODES, Scale, method_lines, methods_by_label


def panels(scale: Scale, lens: str) -> list[Panel]:
    methods = {**methods_by_label(lens), "top": "top"}
    return [
        Panel(
            f"{mode}, α = {alpha:g}",
            method_lines(scale, lens, {"mode": mode, "alpha": alpha}, methods=methods),
        )
        for mode in MODES
        for alpha in (0.5, 0.25)
    ]


@in_each_panel
def alike_at_first(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    done, with_decay = numbers.curve(panel, "top-dp")
    _, without = numbers.curve(panel, "top")
    early = done <= 1 / 3
    largest = float(np.abs(with_decay.mean(0) - without.mean(0))[early].max())
    return largest <= 0.02, f"{panel.title}: at most {100 * largest:.1f} points apart"


@in_each_panel
def a_little_better_later(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    a, b = (numbers.final(panel, label).mean() for label in ("top-dp", "top"))
    return bool(a >= b), f"{panel.title}: {percent(a)} with, {percent(b)} without"


STRATEGIES_FIGURE = PaperFigure(
    "7",
    "Noise reduction with and without decay",
    panels,
    (
        Claim(
            "In the first third of the epochs decay makes no difference (within 2 points).", alike_at_first
        ),
        Claim("In the end decay is a little better, or nothing.", a_little_better_later),
    ),
)

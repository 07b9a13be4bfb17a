"""Figure 7: noise reduction alone (top) and with decay (top-dp), α .5 and .25, both modes."""

from __future__ import annotations

import numpy as np

from topdp.experiments.figures.paper_figure import Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import Scale, figure_run, methods_by_label

TITLES = [(mode, alpha) for mode in ("sync", "async") for alpha in (0.5, 0.25)]


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(
            f"{mode}, α = {alpha:g}",
            {
                label: [
                    [figure_run(scale, lens, method, seed, mode=mode, alpha=alpha) for seed in scale.seeds]
                ]
                for label, method in {**methods_by_label(lens), "top": "top"}.items()
            },
        )
        for mode, alpha in TITLES
    ]


def alike_at_first(numbers: FigureNumbers) -> list[tuple[bool, str]]:
    cases = []
    for panel in numbers.panels:
        done, with_decay = numbers.curve(panel, "top-dp")
        _, without = numbers.curve(panel, "top")
        early = done <= 1 / 3
        largest = float(np.abs(with_decay.mean(0) - without.mean(0))[early].max())
        cases.append((largest <= 0.02, f"{panel.title}: at most {100 * largest:.1f} points apart"))
    return cases


def a_little_better_later(numbers: FigureNumbers) -> list[tuple[bool, str]]:
    cases = []
    for panel in numbers.panels:
        a, b = (numbers.final(panel, label).mean() for label in ("top-dp", "top"))
        cases.append((bool(a >= b), f"{panel.title}: {percent(a)} with, {percent(b)} without"))
    return cases


FIGURE = PaperFigure(
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

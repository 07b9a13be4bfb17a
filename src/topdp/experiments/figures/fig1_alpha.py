"""Figure 1: accuracy along the epochs, α in .75 .5 .25 .125, synchronous and asynchronous."""

from __future__ import annotations

import numpy as np

from topdp.experiments.figures.claim_checks import above_every_baseline, gap, grow, in_each_panel
from topdp.experiments.figures.paper_figure import (
    Cases,
    Check,
    Claim,
    FigureNumbers,
    Panel,
    PaperFigure,
    percent,
)
from topdp.experiments.lenses import MODES, PROPOSED, Scale, method_lines

ALPHAS = (0.75, 0.5, 0.25, 0.125)


def title(mode: str, alpha: float) -> str:
    return f"{mode}, α = {alpha:g}"


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(title(mode, alpha), method_lines(scale, lens, {"mode": mode, "alpha": alpha}))
        for mode in MODES
        for alpha in ALPHAS
    ]


def advantage_grows(numbers: FigureNumbers) -> Cases:
    cases = []
    for mode in MODES:
        gaps = [gap(numbers, numbers[title(mode, alpha)]) for alpha in ALPHAS]
        text = ", ".join(f"{100 * value:+.1f}" for value in gaps)
        cases.append((grow(gaps), f"{mode}: {text} points"))
    return cases


def ordered(better: str, worse: str) -> Check:
    """Return a check that the line `better` ends above `worse`: one case per panel."""

    def case(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
        a, b = (numbers.final(panel, label).mean() for label in (better, worse))
        return bool(a > b), f"{panel.title}: {percent(a)} against {percent(b)}"

    return in_each_panel(case)


def baselines_fall(numbers: FigureNumbers) -> Cases:
    cases = []
    for mode in MODES:
        for label in numbers.baselines(numbers.panels[0]):
            ends = [numbers.final(numbers[title(mode, alpha)], label).mean() for alpha in ALPHAS]
            cases.append((ends[-1] < ends[0] - 0.01, f"{mode} {label}: " + " ".join(map(percent, ends))))
    return cases


def sync_is_faster(numbers: FigureNumbers) -> Cases:
    cases = []
    for alpha in ALPHAS:
        early = []
        for mode in MODES:
            done, accuracy = numbers.curve(numbers[title(mode, alpha)], PROPOSED)
            at = int(np.searchsorted(done, 1 / 6))
            early.append(float(accuracy.mean(0)[at]))
        text = f"α = {alpha:g}, after {done[at]:.0%}: {percent(early[0])} sync, {percent(early[1])} async"
        cases.append((early[0] > early[1], text))
    return cases


ALPHA_FIGURE = PaperFigure(
    "1",
    "Accuracy along the epochs for four values of α",
    panels,
    (
        Claim("The proposed method is above every baseline at every α, in both modes.", above_every_baseline),
        Claim("Its advantage grows as α falls.", advantage_grows),
        Claim(
            "The moments accountant helps: li18-ma is above li18.", ordered("li18-ma", "li18"), ("printed",)
        ),
        Claim("optimal is above udp.", ordered("optimal", "udp"), ("printed",)),
        Claim("Every baseline loses accuracy as α falls.", baselines_fall),
        Claim("The proposed method is a little faster when synchronous.", sync_is_faster),
    ),
)

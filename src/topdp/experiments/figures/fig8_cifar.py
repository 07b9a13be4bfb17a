"""Figure 8: CIFAR-10 with a small convolutional network, synchronous and asynchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline, in_each_panel
from topdp.experiments.figures.paper_figure import Cases, Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import MODES, PROPOSED, Scale, method_lines


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [Panel(mode, method_lines(scale, lens, {"mode": mode, "data": "cifar10"})) for mode in MODES]


@in_each_panel
def near_no_noise(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    own, ceiling = (numbers.final(panel, label).mean() for label in (PROPOSED, "no-noise"))
    return ceiling - own <= 0.05, f"{panel.title}: {percent(own)} against {percent(ceiling)} without noise"


def baselines_do_not_converge(numbers: FigureNumbers) -> Cases:
    cases = []
    for panel in numbers.panels:
        for label in numbers.baselines(panel):
            end = numbers.final(panel, label).mean()
            cases.append((end < 0.15, f"{panel.title} {label}: {percent(end)}"))
    return cases


CIFAR_FIGURE = PaperFigure(
    "8",
    "CIFAR-10",
    panels,
    (
        Claim("The proposed method is above every baseline in both modes.", above_every_baseline),
        Claim("It comes near to training without noise (within 5 points).", near_no_noise),
        Claim("The baselines do not converge (stay below 15%).", baselines_do_not_converge),
    ),
)

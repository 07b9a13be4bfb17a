"""Figure 8: CIFAR-10 with a small convolutional network, synchronous and asynchronous, α = .25."""

from __future__ import annotations

from topdp.reproduce.figures.checks import above_every_baseline
from topdp.reproduce.figures.figure import Claim, Measured, Panel, PaperFigure, percent
from topdp.reproduce.settings import PROPOSED, Scale, methods, setting


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(
            mode,
            {
                label: [
                    [setting(scale, lens, method, seed, mode=mode, data="cifar10") for seed in scale.seeds]
                ]
                for label, method in methods(lens).items()
            },
        )
        for mode in ("sync", "async")
    ]


def near_no_noise(measured: Measured) -> list[tuple[bool, str]]:
    cases = []
    for panel in measured.panels:
        own, ceiling = (measured.final(panel, label).mean() for label in (PROPOSED, "no-noise"))
        cases.append(
            (ceiling - own <= 0.05, f"{panel.title}: {percent(own)} against {percent(ceiling)} without noise")
        )
    return cases


def baselines_do_not_converge(measured: Measured) -> list[tuple[bool, str]]:
    cases = []
    for panel in measured.panels:
        for label in measured.baselines(panel):
            end = measured.final(panel, label).mean()
            cases.append((end < 0.15, f"{panel.title} {label}: {percent(end)}"))
    return cases


FIGURE = PaperFigure(
    "8",
    "CIFAR-10",
    panels,
    (
        Claim("The proposed method is above every baseline in both modes.", above_every_baseline),
        Claim("It comes near to training without noise (within 5 points).", near_no_noise),
        Claim("The baselines do not converge (stay below 15%).", baselines_do_not_converge),
    ),
)

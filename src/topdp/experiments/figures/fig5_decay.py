"""Figure 5: decay factor γ from 0.7 to 1.0, and period from 8 to 12 epochs; synchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.paper_figure import Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import PROPOSED, Scale, figure_run

FACTORS = (0.7, 0.8, 0.9, 1.0)
PERIODS = (8.0, 9.0, 10.0, 11.0, 12.0)


def panels(scale: Scale, lens: str) -> list[Panel]:
    def line(decays: list[tuple[float, float]]) -> dict[str, list[list[object]]]:
        return {
            PROPOSED: [
                [figure_run(scale, lens, PROPOSED, seed, decay=decay) for seed in scale.seeds]
                for decay in decays
            ]
        }

    return [
        Panel("impact of γ", line([(factor, 10.0) for factor in FACTORS]), FACTORS, "γ"),  # type: ignore[arg-type]
        Panel("impact of the period", line([(0.9, p) for p in PERIODS]), PERIODS, "period (epochs)"),  # type: ignore[arg-type]
    ]


def limited_impact(numbers: FigureNumbers) -> list[tuple[bool, str]]:
    cases = []
    for panel in numbers.panels:
        ends = [numbers.final(panel, PROPOSED, at).mean() for at in range(len(panel.x or ()))]
        cases.append((max(ends) - min(ends) <= 0.03, f"{panel.title}: " + " ".join(map(percent, ends))))
    return cases


def longer_is_a_little_worse(numbers: FigureNumbers) -> list[tuple[bool, str]]:
    panel = numbers["impact of the period"]
    first, last = (numbers.final(panel, PROPOSED, at).mean() for at in (0, len(PERIODS) - 1))
    return [(last < first, f"8 epochs {percent(first)}, 12 epochs {percent(last)}")]


FIGURE = PaperFigure(
    "5",
    "Parameters of the noise decay",
    panels,
    (
        Claim("Factor and period matter little (within 3 points).", limited_impact),
        Claim("Accuracy falls a little as the period grows.", longer_is_a_little_worse),
    ),
)

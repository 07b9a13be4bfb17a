"""Figure 5: decay factor γ from 0.7 to 1.0, and period from 8 to 12 epochs; synchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import in_each_panel
from topdp.experiments.figures.paper_figure import Cases, Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import PROPOSED, Scale, method_lines

DECAY_FACTORS = (0.7, 0.8, 0.9, 1.0)
DECAY_PERIODS = (8.0, 9.0, 10.0, 11.0, 12.0)


def panels(scale: Scale, lens: str) -> list[Panel]:
    only = {PROPOSED: PROPOSED}
    by_factor = method_lines(scale, lens, *({"decay": (f, 10.0)} for f in DECAY_FACTORS), methods=only)
    by_period = method_lines(scale, lens, *({"decay": (0.9, p)} for p in DECAY_PERIODS), methods=only)
    return [
        Panel("impact of γ", by_factor, DECAY_FACTORS, "γ"),
        Panel("impact of the period", by_period, DECAY_PERIODS, "period (epochs)"),
    ]


@in_each_panel
def limited_impact(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    ends = [numbers.final(panel, PROPOSED, at).mean() for at in range(len(panel.x or ()))]
    return max(ends) - min(ends) <= 0.03, f"{panel.title}: " + " ".join(map(percent, ends))


def longer_is_a_little_worse(numbers: FigureNumbers) -> Cases:
    panel = numbers["impact of the period"]
    first, last = (numbers.final(panel, PROPOSED, at).mean() for at in (0, len(DECAY_PERIODS) - 1))
    return [(last < first, f"8 epochs {percent(first)}, 12 epochs {percent(last)}")]


DECAY_FIGURE = PaperFigure(
    "5",
    "Parameters of the noise decay",
    panels,
    (
        Claim("Factor and period matter little (within 3 points).", limited_impact),
        Claim("Accuracy falls a little as the period grows.", longer_is_a_little_worse),
    ),
)

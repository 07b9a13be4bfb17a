"""Figure 3: connection rates 0.1 and 0.4, synchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline
from topdp.experiments.figures.paper_figure import Cases, Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import PROPOSED, Scale, method_lines


def panels(scale: Scale, lens: str) -> list[Panel]:
    # Small graphs at the paper's rates are rarely connected, so smaller scales use proportionally higher
    # rates.
    factor = (scale.connection or 0.2) / 0.2
    return [
        Panel(
            f"rate {rate:g}",
            method_lines(scale, lens, {"topology": {"connection": min(1.0, rate * factor)}}),
        )
        for rate in (0.1, 0.4)
    ]


def changes_little(numbers: FigureNumbers) -> Cases:
    ends = {panel.title: numbers.final(panel, PROPOSED).mean() for panel in numbers.panels}
    text = ", ".join(f"{rate} {percent(end)}" for rate, end in ends.items())
    return [(max(ends.values()) - min(ends.values()) <= 0.02, text)]


CONNECTION_FIGURE = PaperFigure(
    "3",
    "Connection rates 0.1 and 0.4",
    panels,
    (
        Claim("The proposed method is above every baseline.", above_every_baseline),
        Claim("The connection rate does not matter (within 2 points).", changes_little),
    ),
)

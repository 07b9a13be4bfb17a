"""Figure 3: connection rates 0.1 and 0.4, synchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline, changes_little
from topdp.experiments.figures.paper_figure import Claim, Panel, PaperFigure
from topdp.experiments.lenses import Scale, method_lines


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


CONNECTION_FIGURE = PaperFigure(
    "3",
    "Connection rates 0.1 and 0.4",
    panels,
    (
        Claim("The proposed method is above every baseline.", above_every_baseline),
        Claim("The connection rate does not matter (within 2 points).", changes_little(2.0)),
    ),
)

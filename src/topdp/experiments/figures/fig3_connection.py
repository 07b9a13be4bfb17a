"""Figure 3: connection rates 0.1 and 0.4, synchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline, changes_little
from topdp.experiments.figures.paper_figure import Claim, Panel, PaperFigure
from topdp.experiments.lenses import Scale, figure_run, methods_by_label


def panels(scale: Scale, lens: str) -> list[Panel]:
    # Small graphs of the paper's rates are hardly ever connected: at another scale the rates grow with it.
    factor = (scale.connection or 0.2) / 0.2
    return [
        Panel(
            f"rate {rate:g}",
            {
                label: [
                    [
                        figure_run(
                            scale, lens, method, seed, topology={"connection": min(1.0, rate * factor)}
                        )
                        for seed in scale.seeds
                    ]
                ]
                for label, method in methods_by_label(lens).items()
            },
        )
        for rate in (0.1, 0.4)
    ]


FIGURE = PaperFigure(
    "3",
    "Connection rates 0.1 and 0.4",
    panels,
    (
        Claim("The proposed method is above every baseline.", above_every_baseline),
        Claim("The connection rate does not matter (within 2 points).", changes_little(2.0)),
    ),
)

"""Figure 4: 40 and 50 agents, synchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline
from topdp.experiments.figures.paper_figure import Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import PROPOSED, Scale, figure_run, methods_by_label

COUNTS = (40, 50)


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(
            f"{count} agents",
            {
                label: [[figure_run(scale, lens, method, seed, agents=count) for seed in scale.seeds]]
                for label, method in methods_by_label(lens).items()
            },
        )
        for count in COUNTS
    ]


def more_is_a_little_better(numbers: FigureNumbers) -> list[tuple[bool, str]]:
    few, many = (numbers.final(panel, PROPOSED).mean() for panel in numbers.panels)
    return [(0 < many - few < 0.03, f"40 agents {percent(few)}, 50 agents {percent(many)}")]


FIGURE = PaperFigure(
    "4",
    "40 and 50 agents",
    panels,
    (
        Claim("The proposed method is above every baseline.", above_every_baseline),
        Claim("More agents are a little better (by less than 3 points).", more_is_a_little_better),
    ),
)

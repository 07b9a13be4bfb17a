"""Figure 4: 40 and 50 agents, synchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline
from topdp.experiments.figures.paper_figure import Cases, Claim, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import PROPOSED, Scale, method_lines


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [Panel(f"{agents} agents", method_lines(scale, lens, {"agents": agents})) for agents in (40, 50)]


def more_is_a_little_better(numbers: FigureNumbers) -> Cases:
    few, many = (numbers.final(panel, PROPOSED).mean() for panel in numbers.panels)
    return [(0 < many - few < 0.03, f"40 agents {percent(few)}, 50 agents {percent(many)}")]


AGENTS_FIGURE = PaperFigure(
    "4",
    "40 and 50 agents",
    panels,
    (
        Claim("The proposed method is above every baseline.", above_every_baseline),
        Claim("More agents are a little better (by less than 3 points).", more_is_a_little_better),
    ),
)

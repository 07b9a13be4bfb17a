"""Figure 6: ring, star with two hubs, tree, partial mesh; synchronous and asynchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline, gap
from topdp.experiments.figures.paper_figure import Cases, Claim, FigureNumbers, Panel, PaperFigure
from topdp.experiments.lenses import MODES, Scale, method_lines

GRAPH_KINDS = ("ring", "star", "tree", "mesh")


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(f"{mode}, {kind}", method_lines(scale, lens, {"mode": mode, "topology": {"kind": kind}}))
        for mode in MODES
        for kind in GRAPH_KINDS
    ]


def smaller_when_asynchronous(numbers: FigureNumbers) -> Cases:
    cases = []
    for kind in GRAPH_KINDS:
        sync, other = (gap(numbers, numbers[f"{mode}, {kind}"]) for mode in MODES)
        cases.append((sync > max(other, 0.0), f"{kind}: {100 * sync:+.1f} sync, {100 * other:+.1f} async"))
    return cases


TOPOLOGY_FIGURE = PaperFigure(
    "6",
    "Ring, star, tree and mesh",
    panels,
    (
        Claim(
            "The proposed method is above every baseline on every graph, in both modes.", above_every_baseline
        ),
        Claim("Its advantage is smaller in the asynchronous mode.", smaller_when_asynchronous),
    ),
)

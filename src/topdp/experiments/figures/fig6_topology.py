"""Figure 6: ring, star with two hubs, tree, partial mesh; synchronous and asynchronous, α = .25."""

from __future__ import annotations

from topdp.experiments.figures.claim_checks import above_every_baseline, gap
from topdp.experiments.figures.paper_figure import Claim, FigureNumbers, Panel, PaperFigure
from topdp.experiments.lenses import Scale, figure_run, methods_by_label

KINDS = ("ring", "star", "tree", "mesh")


def panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(
            f"{mode}, {kind}",
            {
                label: [
                    [
                        figure_run(scale, lens, method, seed, mode=mode, topology={"kind": kind})
                        for seed in scale.seeds
                    ]
                ]
                for label, method in methods_by_label(lens).items()
            },
        )
        for mode in ("sync", "async")
        for kind in KINDS
    ]


def smaller_when_asynchronous(numbers: FigureNumbers) -> list[tuple[bool, str]]:
    cases = []
    for kind in KINDS:
        sync, other = (gap(numbers, numbers[f"{mode}, {kind}"]) for mode in ("sync", "async"))
        cases.append((sync > max(other, 0.0), f"{kind}: {100 * sync:+.1f} sync, {100 * other:+.1f} async"))
    return cases


FIGURE = PaperFigure(
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

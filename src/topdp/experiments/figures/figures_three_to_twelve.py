"""The paper's figures 3 to 12: for each, the runs that it needs, and its claims with their checks.

`FIGURES` maps the name of a figure, which has the paper's number, to its `PaperFigure`. Register a new figure
there. Figures without runs are in `drawn_figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from topdp.experiments.figures.paper_figure import Cases, Check, FigureNumbers, Panel, PaperFigure, percent
from topdp.experiments.lenses import MODES, PROPOSED, Scale, method_lines, methods_by_label
from topdp.runs.planner.plan_traffic import traffic
from topdp.runs.resolve import resolve

ALPHAS = (0.75, 0.5, 0.25, 0.125)
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
AGENTS = (30, 40, 50)
DECAY_FACTORS = (0.7, 0.8, 0.9, 1.0)
DECAY_PERIODS = (8.0, 9.0, 10.0, 11.0, 12.0)
GRAPH_KINDS = ("ring", "star", "tree", "mesh")


# Checks of claims that several figures share, and their parts.


def in_each_panel(case: Callable[[FigureNumbers, Panel], tuple[bool, str]]) -> Check:
    """Return a check with one case per panel."""
    return lambda numbers: [case(numbers, panel) for panel in numbers.panels]


def gap(numbers: FigureNumbers, panel: Panel, at: int = 0) -> float:
    """Return the proposed method's final accuracy minus that of the best baseline, as a fraction.

    Both are means over seeds. `at`: the index of x in a panel with x.
    """
    best = max(numbers.end(panel, label, at) for label in numbers.baselines(panel))
    return numbers.end(panel, PROPOSED, at) - best


def grow(gaps: Sequence[float]) -> bool:
    """Return whether the gaps are positive, and each is larger than the one before."""
    return bool(np.all(np.diff(gaps) > 0)) and min(gaps) > 0


def proposed_along_x(numbers: FigureNumbers, panel: Panel) -> list[float]:
    """Return the proposed method's final accuracy at each x of a panel."""
    return [numbers.end(panel, PROPOSED, at) for at in range(len(panel.x or ()))]


def beats_baselines(numbers: FigureNumbers) -> Cases:
    """Check that the proposed method beats every baseline. Yield one case per panel and x."""
    for panel in numbers.panels:
        for at in range(len(panel.x or (0,))):
            own = numbers.end(panel, PROPOSED, at)
            advantage = gap(numbers, panel, at)
            where = panel.title if panel.x is None else f"{panel.title}, {panel.x[at]:g}"
            yield advantage > 0, f"{where}: {percent(own)} against {percent(own - advantage)}"


def ordered(better: str, worse: str) -> Check:
    """Return a check that the line `better` ends above `worse`. It has a case for each panel with both."""

    def check(numbers: FigureNumbers) -> Cases:
        for panel in numbers.panels:
            if {better, worse} <= panel.lines.keys():
                a, b = (numbers.end(panel, label) for label in (better, worse))
                yield a > b, f"{panel.title}: {percent(a)} against {percent(b)}"

    return check


def in_most_panels(better: str, worse: str) -> Check:
    """Return a check that the line `better` ends above `worse` in more than half of the panels with both."""

    def check(numbers: FigureNumbers) -> Cases:
        if cases := list(ordered(better, worse)(numbers)):
            above = sum(passed for passed, _ in cases)
            text = "; ".join(words for _, words in cases)
            yield 2 * above > len(cases), f"in {above} of {len(cases)} panels: {text}"

    return check


# Figure 3: accuracy along the epochs, synchronous and asynchronous. Figures that name no other α have .25.


def alpha_title(mode: str, alpha: float) -> str:
    return f"{mode}, α = {alpha:g}"


def alpha_panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(alpha_title(mode, alpha), method_lines(scale, lens, {"mode": mode, "alpha": alpha}))
        for mode in MODES
        for alpha in ALPHAS
    ]


def advantage_grows(numbers: FigureNumbers) -> Cases:
    for mode in MODES:
        gaps = [gap(numbers, numbers[alpha_title(mode, alpha)]) for alpha in ALPHAS]
        text = ", ".join(f"{100 * value:+.1f}" for value in gaps)
        yield grow(gaps), f"{mode}: {text} points"


def baselines_fall(numbers: FigureNumbers) -> Cases:
    for mode in MODES:
        for label in numbers.baselines(numbers.panels[0]):
            ends = [numbers.end(numbers[alpha_title(mode, alpha)], label) for alpha in ALPHAS]
            yield ends[-1] < ends[0] - 0.01, f"{mode} {label}: " + " ".join(map(percent, ends))


def sync_is_faster(numbers: FigureNumbers) -> Cases:
    return _faster_when_synchronous(numbers, [PROPOSED])


def sync_is_faster_for_baselines(numbers: FigureNumbers) -> Cases:
    return _faster_when_synchronous(numbers, numbers.baselines(numbers.panels[0]))


def _faster_when_synchronous(numbers: FigureNumbers, labels: Sequence[str]) -> Cases:
    """Compare accuracies after a sixth of the epochs. Yield one case per line and α."""
    for label in labels:
        for alpha in ALPHAS:
            early = []
            for mode in MODES:
                done, accuracy = numbers.curve(numbers[alpha_title(mode, alpha)], label)
                index = int(np.searchsorted(done, 1 / 6))
                early.append(float(accuracy.mean(0)[index]))
            where = f"{'' if label == PROPOSED else f'{label}, '}α = {alpha:g}, after {done[index]:.0%}"
            yield early[0] > early[1], f"{where}: {percent(early[0])} sync, {percent(early[1])} async"


COUNTED_ROUNDS = 200  # the rows of a round hardly vary, and a plan of all rounds would take a second


def sends_less_when_asynchronous(numbers: FigureNumbers) -> Cases:
    """Count the rows that agents send by the plans of the proposed method; nothing is trained."""
    sent, texts = [], []
    for mode in MODES:
        config = numbers[alpha_title(mode, ALPHAS[0])].lines[PROPOSED][0][0]
        run = resolve(config.model_copy(update={"rounds": min(config.rounds, COUNTED_ROUNDS)}))
        counted = traffic(run.write_plan(np.ones(run.graph.agents)), run.config)
        sent.append(counted["rows_a_round"]["all"])
        size = counted["bytes_a_round"]["all"]
        texts.append(f"{sent[-1]:.1f} rows{'' if size is None else f' ({size / 1e6:.1f} MB)'} a round {mode}")
    yield sent[1] < sent[0], "all agents together: " + ", ".join(texts)


# Figure 4: accuracy against the privacy budget, synchronous and asynchronous.


def budget_panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(
            mode,
            method_lines(scale, lens, *({"mode": mode, "epsilon": epsilon} for epsilon in EPSILONS)),
            EPSILONS,
            "privacy budget ε",
        )
        for mode in MODES
    ]


@in_each_panel
def falls_with_the_budget(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    ends = proposed_along_x(numbers, panel)
    return bool(np.all(np.diff(ends) > 0)), f"{panel.title}: " + " ".join(map(percent, ends))


@in_each_panel
def grows_as_the_budget_falls(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    gaps = [gap(numbers, panel, at) for at in range(len(EPSILONS))]
    text = " ".join(f"{100 * value:+.1f}" for value in gaps)
    return grow(gaps[::-1]), f"{panel.title}, from small to large ε: {text}"


# Figure 5: connection rates, synchronous.


def connection_panels(scale: Scale, lens: str) -> list[Panel]:
    # Small graphs at the paper's rates are rarely connected. Therefore smaller scales use higher rates, in
    # the same proportion.
    factor = (scale.connection or 0.2) / 0.2
    return [
        Panel(
            f"rate {rate:g}", method_lines(scale, lens, {"topology": {"connection": min(1.0, rate * factor)}})
        )
        for rate in (0.1, 0.4)
    ]


def changes_little(numbers: FigureNumbers) -> Cases:
    ends = {panel.title: numbers.end(panel, PROPOSED) for panel in numbers.panels}
    text = ", ".join(f"{rate} {percent(end)}" for rate, end in ends.items())
    return [(max(ends.values()) - min(ends.values()) <= 0.02, text)]


# Figure 6: more agents, synchronous. The paper draws 40 and 50, and compares them with the 30 of figure 3.


def agents_panels(scale: Scale, lens: str) -> list[Panel]:
    return [Panel(f"{agents} agents", method_lines(scale, lens, {"agents": agents})) for agents in AGENTS]


def more_is_a_little_better(numbers: FigureNumbers) -> Cases:
    for few, many in pairwise(numbers.panels):
        before, after = numbers.end(few, PROPOSED), numbers.end(many, PROPOSED)
        text = f"{few.title} {percent(before)}, {many.title} {percent(after)}"
        yield 0 < after - before < 0.03, text


# Figure 7: factor γ and period of the decay, synchronous.


def decay_panels(scale: Scale, lens: str) -> list[Panel]:
    only = {PROPOSED: PROPOSED}
    by_factor = method_lines(scale, lens, *({"decay": (f, 10.0)} for f in DECAY_FACTORS), methods=only)
    by_period = method_lines(scale, lens, *({"decay": (0.9, p)} for p in DECAY_PERIODS), methods=only)
    return [
        Panel("impact of γ", by_factor, DECAY_FACTORS, "γ"),
        Panel("impact of the period", by_period, DECAY_PERIODS, "period (epochs)"),
    ]


@in_each_panel
def limited_impact(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    ends = proposed_along_x(numbers, panel)
    return max(ends) - min(ends) <= 0.03, f"{panel.title}: " + " ".join(map(percent, ends))


def longer_is_a_little_worse(numbers: FigureNumbers) -> Cases:
    first, *_, last = proposed_along_x(numbers, numbers["impact of the period"])
    return [(last < first, f"8 epochs {percent(first)}, 12 epochs {percent(last)}")]


# Figure 9: other graphs (the star has two hubs), synchronous and asynchronous.


def topology_panels(scale: Scale, lens: str) -> list[Panel]:
    return [
        Panel(f"{mode}, {kind}", method_lines(scale, lens, {"mode": mode, "topology": {"kind": kind}}))
        for mode in MODES
        for kind in GRAPH_KINDS
    ]


def smaller_when_asynchronous(numbers: FigureNumbers) -> Cases:
    for kind in GRAPH_KINDS:
        sync, other = (gap(numbers, numbers[f"{mode}, {kind}"]) for mode in MODES)
        yield sync > max(other, 0.0), f"{kind}: {100 * sync:+.1f} sync, {100 * other:+.1f} async"


ALIKE = ("li18-ma", "udp", "optimal")


def small_gap(numbers: FigureNumbers) -> Cases:
    for panel in numbers.panels:
        if panel.lines.keys() >= {*ALIKE}:
            ends = [numbers.end(panel, label) for label in ALIKE]
            yield max(ends) - min(ends) <= 0.02, f"{panel.title}: " + " ".join(map(percent, ends))


# Figures 10 (synchronous) and 11 (asynchronous): noise reduction alone (top) and with decay (top-dp).


def strategies_panels(mode: str) -> Callable[[Scale, str], list[Panel]]:
    def panels(scale: Scale, lens: str) -> list[Panel]:
        methods = {**methods_by_label(lens), "top": "top"}
        return [
            Panel(
                alpha_title(mode, alpha),
                method_lines(scale, lens, {"mode": mode, "alpha": alpha}, methods=methods),
            )
            for alpha in (0.5, 0.25)
        ]

    return panels


@in_each_panel
def alike_at_first(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    done, with_decay = numbers.curve(panel, "top-dp")
    _, without = numbers.curve(panel, "top")
    early = done <= 1 / 3
    largest = float(np.abs(with_decay.mean(0) - without.mean(0))[early].max())
    return largest <= 0.02, f"{panel.title}: at most {100 * largest:.1f} points apart"


@in_each_panel
def a_little_better_later(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    a, b = (numbers.end(panel, label) for label in ("top-dp", "top"))
    return a >= b, f"{panel.title}: {percent(a)} with, {percent(b)} without"


def hardly_differ(numbers: FigureNumbers) -> Cases:
    apart = {}
    for panel in numbers.panels:
        apart[panel.title] = abs(numbers.end(panel, "top-dp") - numbers.end(panel, "top"))
        yield apart[panel.title] <= 0.01, f"{panel.title}: {100 * apart[panel.title]:.1f} points apart"
    large_alpha, small_alpha = apart.values()
    yield (
        small_alpha <= large_alpha,
        "closer at α = 0.25" if small_alpha <= large_alpha else "closer at α = 0.5",
    )


# Figure 12: CIFAR-10 with a small convolutional network, synchronous and asynchronous.


def cifar_panels(scale: Scale, lens: str) -> list[Panel]:
    return [Panel(mode, method_lines(scale, lens, {"mode": mode, "data": "cifar10"})) for mode in MODES]


@in_each_panel
def near_no_noise(numbers: FigureNumbers, panel: Panel) -> tuple[bool, str]:
    own, ceiling = (numbers.end(panel, label) for label in (PROPOSED, "no-noise"))
    return ceiling - own <= 0.05, f"{panel.title}: {percent(own)} against {percent(ceiling)} without noise"


def baselines_do_not_converge(numbers: FigureNumbers) -> Cases:
    for panel in numbers.panels:
        for label in numbers.baselines(panel):
            end = numbers.end(panel, label)
            yield end < 0.15, f"{panel.title} {label}: {percent(end)}"


FIGURES = {
    "fig3": PaperFigure(
        "Accuracy along the epochs for four values of α",
        alpha_panels,
        {
            "The proposed method is above every baseline at every α, in both modes.": beats_baselines,
            "Its advantage grows as α falls.": advantage_grows,
            "The moments accountant helps: li18-ma is above li18.": ordered("li18-ma", "li18"),
            "In most settings optimal is above udp.": in_most_panels("optimal", "udp"),
            "In most settings optimal is above li18-ma.": in_most_panels("optimal", "li18-ma"),
            "Every baseline loses accuracy as α falls.": baselines_fall,
            "The proposed method is a little faster when synchronous.": sync_is_faster,
            "The baselines are a little faster when synchronous, too.": sync_is_faster_for_baselines,
            "Agents send less when asynchronous.": sends_less_when_asynchronous,
        },
    ),
    "fig4": PaperFigure(
        "Accuracy against the privacy budget",
        budget_panels,
        {
            "The proposed method is above every baseline at every budget.": beats_baselines,
            "Less budget, less accuracy.": falls_with_the_budget,
            "The advantage grows as the budget falls.": grows_as_the_budget_falls,
        },
    ),
    "fig5": PaperFigure(
        "Connection rates 0.1 and 0.4",
        connection_panels,
        {
            "The proposed method is above every baseline.": beats_baselines,
            "The connection rate does not matter (within 2 points).": changes_little,
        },
    ),
    "fig6": PaperFigure(
        "30, 40 and 50 agents",
        agents_panels,
        {
            "The proposed method is above every baseline.": beats_baselines,
            "More agents are a little better (by less than 3 points).": more_is_a_little_better,
        },
    ),
    "fig7": PaperFigure(
        "Parameters of the noise decay",
        decay_panels,
        {
            "Factor and period matter little (within 3 points).": limited_impact,
            "Accuracy falls a little as the period grows.": longer_is_a_little_worse,
        },
    ),
    "fig9": PaperFigure(
        "Ring, star, tree and mesh",
        topology_panels,
        {
            "The proposed method is above every baseline on every graph, in both modes.": beats_baselines,
            "Its advantage is smaller in the asynchronous mode.": smaller_when_asynchronous,
            "li18-ma, udp and optimal differ little (within 2 points).": small_gap,
        },
    ),
    "fig10": PaperFigure(
        "Noise reduction with and without decay, synchronous",
        strategies_panels("sync"),
        {
            "In the first third of the epochs decay makes no difference (within 2 points).": alike_at_first,
            "In the end decay is a little better, or nothing.": a_little_better_later,
        },
    ),
    "fig11": PaperFigure(
        "Noise reduction with and without decay, asynchronous",
        strategies_panels("async"),
        {
            "In the first third of the epochs decay makes no difference (within 2 points).": alike_at_first,
            "In the end decay is a little better, or nothing.": a_little_better_later,
            "It hardly matters in the end (within 1 point), least at the smaller α.": hardly_differ,
        },
    ),
    "fig12": PaperFigure(
        "CIFAR-10",
        cifar_panels,
        {
            "The proposed method is above every baseline in both modes.": beats_baselines,
            "It comes near to training without noise (within 5 points).": near_no_noise,
            "The baselines do not converge (stay below 15%).": baselines_do_not_converge,
        },
    ),
}

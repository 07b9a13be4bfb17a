"""Tests of the checks of claims: the verdict that planted numbers get."""

import pytest

from topdp.experiments.figures.figures_three_to_twelve import (
    ALPHAS,
    COUNTED_ROUNDS,
    FIGURES,
    alpha_title,
    hardly_differ,
    in_most_panels,
    more_is_a_little_better,
    sends_less_when_asynchronous,
    small_gap,
    sync_is_faster_for_baselines,
)
from topdp.experiments.figures.paper_figure import FigureNumbers, Panel
from topdp.experiments.lenses import FULL_SCALE, LENSES, figure_run

RUN = figure_run(FULL_SCALE, "same", "plain", 0)


def planted(ends):
    """Numbers in which each line of each panel ends at an accuracy: {panel: {line: accuracy in percent}}."""
    panels = [Panel(title, {label: [[RUN]] for label in lines}) for title, lines in ends.items()]
    curves = {
        (title, label, None, 0): [{"round": 0, "mean": 0.1}, {"round": 6, "mean": end / 100}]
        for title, lines in ends.items()
        for label, end in lines.items()
    }
    return FigureNumbers("same", panels, curves)


def held(check, ends):
    return [case for case, _ in check(planted(ends))]


@pytest.mark.parametrize(("above", "case"), [(4, True), (3, True), (2, False), (0, False)])
def test_most_is_more_than_half_of_the_panels(above, case):
    ends = {f"panel {k}": {"optimal": 80.0, "udp": 79.0 if k < above else 81.0} for k in range(4)}
    assert held(in_most_panels("optimal", "udp"), ends) == [case]
    assert held(in_most_panels("optimal", "li18-ma"), ends) == []  # no panel has this line


def test_a_small_gap_is_at_most_two_points():
    ends = {
        "near": {"li18-ma": 80.0, "udp": 80.5, "optimal": 81.9},
        "far": {"li18-ma": 80.0, "udp": 80.5, "optimal": 82.1},
        "of others": {"every baseline": 80.0},
    }
    assert held(small_gap, ends) == [True, False]


@pytest.mark.parametrize(
    ("accuracies", "cases"),
    [((80, 81, 82), [True, True]), ((80, 79.5, 81), [False, True]), ((80, 84, 84.5), [False, True])],
)
def test_each_step_to_more_agents_is_a_case(accuracies, cases):
    ends = {f"{agents} agents": {"top-dp": end} for agents, end in zip((30, 40, 50), accuracies, strict=True)}
    assert held(more_is_a_little_better, ends) == cases


def test_decay_hardly_matters_within_one_point_and_least_at_the_smaller_alpha():
    def ends(large, small):
        lines = {
            alpha: {"top": 80.0, "top-dp": 80.0 + apart} for alpha, apart in ((0.5, large), (0.25, small))
        }
        return {alpha_title("async", alpha): of_alpha for alpha, of_alpha in lines.items()}

    assert held(hardly_differ, ends(0.6, 0.4)) == [True, True, True]
    assert held(hardly_differ, ends(-0.4, 0.6)) == [True, True, False]
    assert held(hardly_differ, ends(1.2, -1.1)) == [False, False, True]


def test_each_baseline_is_compared_at_each_alpha():
    ends = {
        alpha_title(mode, alpha): {
            "no-noise": 90.0,
            "udp": 80.0 + (mode == "sync"),
            "optimal": 80.0 + (mode == "async" or alpha == 0.5),
            "top-dp": 85.0,
        }
        for mode in ("sync", "async")
        for alpha in ALPHAS
    }
    assert held(sync_is_faster_for_baselines, ends) == [True] * 4 + [False] * 4
    ends[alpha_title("async", 0.5)]["optimal"] = 80.0
    assert held(sync_is_faster_for_baselines, ends) == [True] * 4 + [False, True, False, False]


@pytest.mark.parametrize("lens", LENSES)
def test_messages_are_counted_from_plans(lens):
    """Synchronous, each edge carries a row in both directions in each round: 95 edges in the graph of seed 0.
    Asynchronous, at most 27 of 30 agents meet in 13 pairs.
    """
    numbers = FigureNumbers(lens, FIGURES["fig3"].panels(FULL_SCALE, lens), {})
    ((case, words),) = sends_less_when_asynchronous(numbers)
    assert case and COUNTED_ROUNDS == 200
    together, asynchronous = words.removeprefix("all agents together: ").split(", ")
    assert together == "190.0 rows (60.4 MB) a round sync"
    assert 20 < float(asynchronous.split()[0]) <= 26

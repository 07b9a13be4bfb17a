"""Tests of the search for the settings of each contender in the frontier."""

import math
from dataclasses import astuple, replace

import pytest

from topdp.experiments.tuning import Candidate, Case, SearchSpace, carried_over, tune

SEARCH = SearchSpace(
    rounds=(10, 40), rate=1.0, growth=1.0, clips=(2.0, 0.5), exponents=(0.5, 0.0), gossip=(4, 2),
    budgets=(0.5, 1.0, 4.0, 8.0), anchors=(0.5, 4.0), turns=4,
)  # fmt: skip
KNOBS = {
    "all": frozenset({"rounds", "exponent", "gossip"}),
    "few": frozenset(),
    "endless": frozenset({"rounds"}),
}


class Hill:
    """An accuracy with its maximum at `top`, and a best rate that grows with ε; records all requests."""

    def __init__(self, top, growth=1.0):
        self.top, self.growth, self.requests = top, growth, []

    def __call__(self, settings):
        self.requests += settings
        return [self.height(*setting) for setting in settings]

    def height(self, case, candidate):
        rate = self.top.rate * min(case.epsilon, 8.0) ** self.growth
        others = zip(astuple(replace(candidate, rate=0)), astuple(replace(self.top, rate=0)), strict=True)
        return -abs(math.log2(candidate.rate / rate)) - sum(a != b for a, b in others)


def best_of(hill):
    found = tune(SEARCH, KNOBS, frozenset({"endless"}), hill)
    assert len(hill.requests) == len(set(hill.requests)), "a setting was measured twice"
    return {one.case: one for one in found}


@pytest.mark.parametrize("growth", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(
    "top",
    [
        Candidate(rounds=40, rate=1 / 16, clip=0.5, exponent=0.0, gossip=2),
        Candidate(rounds=10, rate=16.0, clip=2.0, exponent=0.5, gossip=4),
        Candidate(rounds=10, rate=1.0, clip=0.5, exponent=0.0, gossip=4),
    ],
)
def test_the_search_finds_the_maximum_at_every_budget(top, growth):
    best = best_of(Hill(top, growth))
    assert set(best) == {
        *(Case(name, epsilon) for name in ("all", "few") for epsilon in SEARCH.budgets),
        Case("endless", math.inf),
    }
    for epsilon in SEARCH.budgets:
        assert best["all", epsilon].candidate == replace(top, rate=top.rate * epsilon**growth)
        rate = best["few", epsilon].candidate.rate
        assert rate == top.rate * epsilon**growth
    assert best["endless", math.inf].candidate.rounds == top.rounds


def test_settings_that_a_contender_lacks_are_not_searched():
    hill = Hill(Candidate(rounds=10, rate=1.0, clip=0.5, exponent=0.0, gossip=2))
    best_of(hill)
    few = [candidate for case, candidate in hill.requests if case.contender == "few"]
    assert {(one.rounds, one.exponent, one.gossip) for one in few} == {(40, 0.0, 0)}
    assert {one.clip for one in few} == {2.0, 0.5}
    endless = [case.epsilon for case, _ in hill.requests if case.contender == "endless"]
    assert set(endless) == {math.inf}


def test_longer_runs_are_tried_with_the_same_and_with_a_smaller_rate():
    at = Candidate(rounds=10, rate=1.0, clip=2.0, exponent=0.5, gossip=4)
    others = list(SEARCH.others(at, KNOBS["all"]))
    assert replace(at, rounds=40) in others and replace(at, rounds=40, rate=0.25) in others
    assert all(sum(a != b for a, b in zip(astuple(at), astuple(one), strict=True)) <= 2 for one in others)


def test_equal_scores_keep_the_start_and_all_trials_are_counted():
    found = tune(SEARCH, {"few": frozenset()}, frozenset(), lambda settings: [0.5] * len(settings))
    assert [one.candidate for one in found] == [
        replace(SEARCH.start(Case("few", e), frozenset()), rate=e) for e in SEARCH.budgets
    ]
    # At two budgets: the start, two rates and a clip; at the other two: the setting and two rates.
    assert {one.tried for one in found} == {2 * 4 + 2 * 3}


def test_settings_are_carried_over_from_the_nearest_budget():
    low, high = (
        Candidate(rounds=10, rate=1.0, clip=2.0, exponent=0.5, gossip=4),
        Candidate(rounds=40, rate=8.0, clip=0.5, exponent=0.0, gossip=2),
    )
    best = {Case("x", 0.5): low, Case("x", 4.0): high, Case("y", 2.0): low}
    assert carried_over(best, Case("x", 0.5)) == low
    assert carried_over(best, Case("x", 1.0)) == replace(low, rate=2.0)
    assert carried_over(best, Case("x", 2.0)) == replace(high, rate=4.0)
    assert carried_over(best, Case("x", 0.25)) == replace(low, rate=0.5)
    assert carried_over(best, Case("y", 8.0)) == low

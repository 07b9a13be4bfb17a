import math
from dataclasses import replace

import pytest

from topdp.reproduce.tuning import BestSetting, Candidate, Case, SearchSpace, tune

SEARCH = SearchSpace(
    (10, 20, 40),
    1.0,
    (0.5, 2.0, 8.0),
    (0.75, 0.5, 0.25),
    ("sync", "async"),
    (7, 8, 9),
    budgets=(1.0, 4.0),
    methods=("plain",),
)


class Hill:
    """An accuracy with its top at `top`, falling off in every direction; keeps what it is asked."""

    def __init__(self, mode, top):
        self.mode, self.top, self.asked = mode, top, []

    def __call__(self, settings, seeds):
        self.asked += [(*setting, seeds) for setting in settings]
        return [self.height(*setting) for setting in settings]

    def height(self, case, candidate):
        away = [abs(math.log2(a / b)) for a, b in zip(candidate, self.top, strict=True)]
        return -sum(away) - (case.mode != self.mode)


@pytest.mark.parametrize(
    ("mode", "top"),
    [
        ("sync", Candidate(40, 1 / 64, 0.5, 0.75)),
        ("async", Candidate(20, 256.0, 8.0, 0.25)),
        ("async", Candidate(10, 1.0, 2.0, 0.5)),
    ],
)
def test_the_top_is_found_wherever_it_is_and_nothing_is_measured_twice(mode, top):
    hill = Hill(mode, top)
    found = tune(SEARCH, hill)
    assert [(f.case, f.candidate) for f in found] == [(Case("plain", e, mode), top) for e in (1.0, 4.0)]
    assert len(hill.asked) == len(set(hill.asked))
    assert sum(f.tried for f in found) == len({(case, candidate) for case, candidate, _ in hill.asked})


def test_neighbours_are_compared_with_one_seed_and_rounds_with_all():
    hill = Hill("sync", Candidate(20, 1.0, 2.0, 0.5))
    tune(SEARCH, hill)
    assert {(candidate.rounds, seeds) for _, candidate, seeds in hill.asked} == {
        (10, (7,)), (10, (7, 8, 9)), (20, (7, 8, 9)), (40, (7, 8, 9))
    }  # fmt: skip


def test_longer_runs_are_tried_with_the_same_way_and_the_same_steps():
    candidate = Candidate(10, 1.0, 2.0, 0.5)
    assert list(SEARCH.longer(candidate)) == [
        candidate._replace(rounds=20, rate=0.5),
        candidate._replace(rounds=20),
    ]
    assert not list(SEARCH.longer(candidate._replace(rounds=40)))


def test_rates_start_in_proportion_to_the_budget():
    starts = SEARCH.starts()
    assert {(case.epsilon, candidate.rate) for case, candidate in starts.items()} == {(1.0, 1.0), (4.0, 4.0)}


def test_equal_neighbours_do_not_move_it():
    search = replace(SEARCH, modes=("sync",))
    found = tune(search, lambda settings, seeds: [0.5] * len(settings))
    assert [(f.case, f.candidate) for f in found] == list(search.starts().items())
    assert found[0] == BestSetting(Case("plain", 1.0, "sync"), Candidate(10, 1.0, 2.0, 0.5), 9)

import math

import pytest

from topdp.reproduce.tuning import Key, Point, Search, Tuning

SEARCH = Search(
    (10, 20, 40), 1.0, (0.5, 2.0, 8.0), (0.75, 0.5, 0.25), ("sync", "async"), (1.0, 4.0), ("plain",)
)


class Hill:
    """An accuracy with its top at `top`, falling off in every direction; counts what it is asked."""

    def __init__(self, top):
        self.top, self.asked = top, []

    def __call__(self, settings):
        self.asked += settings
        return [self.height(point) for _, point in settings]

    def height(self, point):
        away = [abs(math.log2(a / b)) for a, b in zip(point[:4], self.top[:4], strict=True)]
        return -sum(away) - (point.mode != self.top.mode)


@pytest.mark.parametrize(
    "top",
    [
        Point(40, 1 / 64, 0.5, 0.75, "sync"),
        Point(20, 256.0, 8.0, 0.25, "async"),
        Point(10, 1.0, 2.0, 0.5, "async"),
    ],
)
def test_the_top_is_found_wherever_it_is_and_nothing_is_tried_twice(top):
    hill = Hill(top)
    tuning = Tuning(SEARCH, hill)
    tuning.climb()
    tuning.lengthen()
    assert tuning.best == {Key("plain", 1.0): top, Key("plain", 4.0): top}
    assert len(hill.asked) == len(set(hill.asked)) == sum(map(len, tuning.tried.values()))


def test_longer_runs_are_tried_with_the_same_way_and_the_same_steps():
    point = Point(10, 1.0, 2.0, 0.5, "sync")
    assert list(SEARCH.longer(point)) == [point._replace(rounds=20, rate=0.5), point._replace(rounds=20)]
    assert not list(SEARCH.longer(point._replace(rounds=40)))


def test_equal_neighbours_do_not_move_it():
    tuning = Tuning(SEARCH, lambda settings: [0.5] * len(settings))
    start = dict(tuning.best)
    tuning.climb()
    tuning.lengthen()
    assert tuning.best == start

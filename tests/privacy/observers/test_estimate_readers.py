"""The search for the observer that learns most, compared with following every observer to the end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from builders import constant_schedule
from topdp import topology as graphs
from topdp.plan import Cycle, Full, PerRound, Plan
from topdp.privacy.basics.exposure import Exposure, exposure
from topdp.privacy.observers import _estimate_readers as looks
from topdp.privacy.observers._estimate_readers import estimate_readers
from topdp.privacy.observers._parallel_map import parallel_map
from topdp.privacy.observers._reader_layout import RowFlow
from topdp.privacy.observers.adaptive import adaptive
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import view
from topdp.protocols import TopSynchronous

BATCHES = {
    "full": (Full(10),) * 8,
    "cycle": (Cycle(30, 10),) * 8,
    "long cycle": (Cycle(120, 10),) * 8,
    "each its own": (Full(10), Cycle(20, 10)) * 4,
}


def plan_of(graph, rounds=40):
    noise = np.geomspace(0.5, 2.0, graph.agents)
    return TopSynchronous(0.25).plan(graph, constant_schedule(rounds), noise, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("colluders", [1, 2])
def test_the_largest_loss_of_each_owner_is_that_of_following_all_pairs(name, colluders, monkeypatch):
    monkeypatch.setattr(looks, "FIRST_FOLLOWED", (4, 2e-3))  # so that the first pass leaves much to follow
    plan = plan_of(graphs.random(8, 0.4, 1))
    exposed = Exposure(np.linspace(0.5, 1.5, 8), BATCHES[name])
    coalitions = list(itertools.combinations(range(8), colluders))
    found = estimate_readers(RowFlow(plan), exposed, coalitions)
    oracle = view(plan, exposed, coalitions, "all", public=Public.ESTIMATES)
    np.testing.assert_allclose(found.worst(), oracle.worst(), rtol=1e-6)
    assert (found.upper[found.asked] >= oracle.lower[found.asked] * (1 - 1e-9)).all()
    assert (found.lower[found.asked] <= oracle.lower[found.asked] * (1 + 1e-6)).all()
    if name != "long cycle":  # then a pair that cannot be the worst is not followed to the end
        np.testing.assert_allclose(found.lower[found.asked], oracle.lower[found.asked], rtol=1e-6)
    quick = estimate_readers(RowFlow(plan), exposed, coalitions, bound="quick")
    assert (quick.upper[found.asked] >= oracle.lower[found.asked] * (1 - 1e-9)).all()
    assert (quick.worst() >= found.worst() * (1 - 1e-12)).all()


def test_the_number_of_cores_does_not_change_the_answer(monkeypatch):
    plan = plan_of(graphs.random(8, 0.4, 1))
    ways, exposed, alone = RowFlow(plan), exposure(8, 1.0), [(j,) for j in range(8)]
    found = []
    for workers in (1, 2, 3):
        monkeypatch.setattr("topdp.privacy.observers._parallel_map.cores", lambda workers=workers: workers)
        found.append(estimate_readers(ways, exposed, alone))
    for one in found[1:]:
        np.testing.assert_array_equal(one.upper, found[0].upper)
        np.testing.assert_array_equal(one.lower, found[0].lower)


def test_parallel_map_keeps_the_order_and_raises_errors():
    assert list(parallel_map(lambda x: x * x, list(range(20)), workers=3)) == [x * x for x in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(parallel_map(lambda x: 1 // x, [1, 0, 2], workers=2))


def test_the_quick_bound_is_slightly_above_the_full_answer():
    """Planners state the quick bound first; `adaptive` itself follows every change to the end."""
    plan = plan_of(graphs.ring(8))
    exposed = exposure(8, 1.0)
    quick, found = adaptive(plan, exposed, bound="quick"), adaptive(plan, exposed)
    assert (quick.worst() >= found.worst()).all() and (quick.worst() <= 1.02 * found.worst()).all()


def test_a_hidden_row_without_noise_is_left_to_the_filter():
    """Two agents, and one row without noise that is not an estimate: the answer is that of the filter."""
    source = np.array([[[0, -1], [1, -1], [0, -1]], [[0, -1], [1, 2], [0, -1]]])
    plan = Plan(
        agents=2,
        owner=np.array([0, 1, 0]),
        source=PerRound.each(source),
        weight=PerRound.each(np.where(source >= 0, 0.5, 0.0)),
        carries=PerRound.same(np.ones(3, bool), 2),
        rate=np.ones(2),
        draw=PerRound.same(np.arange(3)[:, None], 2),
        std=PerRound.same(np.array([[1.0], [1.0], [0.0]]), 2),
        scale=np.ones(2),
        known_by=np.array([[0], [1], [0]]),
        readers=PerRound.same(np.full((3, 1), -1), 2),
    )
    exposed = exposure(2, 1.0)
    oracle = view(plan, exposed, [(0,), (1,)], "all", public=Public.ESTIMATES)
    np.testing.assert_array_equal(adaptive(plan, exposed).upper, oracle.upper)

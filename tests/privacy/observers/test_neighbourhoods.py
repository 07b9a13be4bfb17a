"""Bounds by neighbourhoods: never below what an observer learns, and close to it where balls are large."""

from __future__ import annotations

import itertools
from functools import cache

import dense_adaptive
import numpy as np
import pytest

from builders import constant_schedule
from topdp import topology as graphs
from topdp.plan import NOBODY, Cycle, Full, PerRound, Plan
from topdp.privacy.accounting import account
from topdp.privacy.basics.exposure import Exposure, exposure
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers import _neighbourhoods as neighbourhoods
from topdp.privacy.observers import view_effort
from topdp.privacy.observers._estimate_readers import estimate_readers
from topdp.privacy.observers._neighbourhoods import PlanNeighbourhoods, neighbourhood_bound
from topdp.privacy.observers._reader_layout import RowFlow
from topdp.privacy.observers.adaptive import adaptive
from topdp.privacy.observers.worst_case import worst_case
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Query
from topdp.protocols import TopSynchronous

GRAPHS = {
    "ring": graphs.ring(9),
    "star": graphs.star(7, hubs=2),
    "tree": graphs.tree(8),
    "random": graphs.random(8, 0.4, 1),
    "regular": graphs.regular(10, 3, 2),
}


@cache
def plan_of(name, rounds=4, alpha=0.25):
    graph = GRAPHS[name]
    noise = np.geomspace(0.5, 2.0, graph.agents)
    return TopSynchronous(alpha).plan(graph, constant_schedule(rounds), noise, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 6, 1000])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_bound_is_never_below_what_an_observer_learns(name, room):
    """The oracle is dense linear algebra over all rows, without balls."""
    plan = plan_of(name)
    n = plan.agents
    exposed = Exposure(np.linspace(0.5, 1.5, n), ((Full(4), Cycle(8, 4)) * n)[:n])
    found = neighbourhood_bound(RowFlow(plan), exposed, room=room)
    for j, i in itertools.permutations(range(n), 2):
        if (i + j) % 3 == 0:  # a third of them, to save time
            below, above = dense_adaptive.mu(plan, i, (j,), "estimates", int(exposed.periods()[i]))
            assert found.upper[i, j] >= below * exposed.sensitivity[i] * (1 - 1e-9), (i, j)
            if room == 1000 and j == found.sees_most(i):
                assert found.upper[i, j] <= above * exposed.sensitivity[i] * 1.02


@pytest.mark.parametrize(("name", "colluders"), [("regular", 2), ("regular", 3), ("ring", 3)])
@pytest.mark.parametrize("room", [0, 4, 12])
def test_the_bound_lies_between_the_answer_for_coalitions_and_the_worst_case(name, colluders, room):
    plan = plan_of(name, rounds=12)
    exposed = exposure(plan.agents, 1.0)
    found = neighbourhood_bound(RowFlow(plan), exposed, Query(colluders=colluders), room=room)
    exact = adaptive(plan, exposed, Query(colluders=colluders))
    assert found.observers == ((),)
    assert (found.worst() >= exact.worst() * (1 - 1e-9)).all()
    assert (found.worst() <= worst_case(plan, exposed).mu * (1 + 1e-12)).all()


def odd_plan(rng):
    """Rows that mix arbitrary rows, with arbitrary readers; sometimes other agents know a draw, or mix rows
    that they do not read."""
    n, R, more = int(rng.integers(3, 6)), int(rng.integers(2, 5)), int(rng.integers(2, 8))
    m = n + more
    owner = np.concatenate([np.arange(n), rng.integers(0, n, more)])
    source, weight = np.full((R, m, 2), NOBODY), np.zeros((R, m, 2))
    source[:, :, 0], weight[:, :, 0] = owner % n, 0.5
    source[1:, :, 1] = rng.integers(0, m, (R - 1, m))
    weight[1:, :, 1] = rng.choice([0.5, 0.9, -0.4, 0.0], (R - 1, m))
    readers = np.where(rng.random((R, m, 2)) < 0.3, rng.integers(0, n, (R, m, 2)), NOBODY)
    known = np.stack([owner, np.where(rng.random(m) < 0.3, rng.integers(0, n, m), NOBODY)], axis=1)
    alone = np.stack([owner, np.full(m, NOBODY)], axis=1)
    draw = np.arange(2 * m).reshape(2, m).T
    return Plan(
        agents=n,
        owner=owner,
        source=PerRound.each(source),
        weight=PerRound.each(weight),
        carries=PerRound.each(rng.random((R, m)) < 0.8),
        rate=rng.choice([0.1, 0.5, 1.0], R),
        draw=PerRound.same(draw, R),
        std=PerRound.each(rng.uniform(0.3, 3.0, (R, m, 2))),
        scale=rng.uniform(0.5, 2.0, R),
        known_by=np.concatenate([known, alone]),
        readers=PerRound.each(readers),
    )


@pytest.mark.parametrize("seed", range(16))
def test_the_bounds_hold_for_arbitrary_plans(seed):
    rng = np.random.default_rng(seed)
    plan = odd_plan(rng)
    exposed, alone = exposure(plan.agents, 1.0), [(j,) for j in range(plan.agents)]
    looks = estimate_readers(RowFlow(plan), exposed, alone)
    nearby = [neighbourhood_bound(RowFlow(plan), exposed, room=room) for room in (0, 3, 100)]
    for j, i in itertools.permutations(range(plan.agents), 2):
        below, above = dense_adaptive.mu(plan, i, (j,), "estimates")
        assert all(found.upper[i, j] >= below * (1 - 1e-9) for found in (looks, *nearby)), (i, j)
        assert looks.lower[i, j] <= above * (1 + 1e-9)
        if j == looks.sees_most(i):
            assert looks.upper[i, j] <= above * (1 + 1e-6)


def test_larger_balls_give_tighter_bounds():
    plan = TopSynchronous(0.25).plan(graphs.regular(40, 4, 0), constant_schedule(20), np.ones(40), 0)
    exposed, ways, some = exposure(40, 1.0), RowFlow(plan), [0, 7, 23]
    exact = adaptive(plan, exposed).worst()[some]
    ratios = [
        (neighbourhood_bound(ways, exposed, room=room).worst()[some] / exact).max() for room in (0, 20, 70)
    ]
    # As docs/privacy.md states: a few percent above the answer with a ball of radius two.
    assert ratios[0] > ratios[1] > ratios[2] >= 1 - 1e-9
    assert ratios[2] < 1.05 < ratios[1] < 1.2 < ratios[0]


def test_the_number_of_cores_does_not_matter(monkeypatch):
    plan = plan_of("ring", rounds=12)
    exposed = exposure(9, 1.0)
    found = []
    for workers in (1, 2):
        monkeypatch.setattr("topdp.privacy.observers._parallel_map.cores", lambda workers=workers: workers)
        found.append(neighbourhood_bound(RowFlow(plan), exposed, room=6))
    np.testing.assert_array_equal(found[0].upper, found[1].upper)
    assert np.isfinite(found[0].worst()).all()


def test_near_agents_and_hidden_rows_of_balls_on_a_ring():
    around = PlanNeighbourhoods(RowFlow(plan_of("ring")))
    assert sorted(around.near(0, 0)) == [1, 8] and sorted(around.near(0, 1)) == [1, 2, 7, 8]
    assert [len(around.hidden(0, reach)) for reach in (0, 1, 2)] == [2, 6, 10]
    assert around.farthest(0, room=9) == 1


def test_a_large_graph_is_bounded_instead_of_refused(monkeypatch):
    """The account warns; the bound is never below the answer, and is refused if no time is allowed."""
    plan = plan_of("regular", rounds=12)
    n = plan.agents
    exact = adaptive(plan, exposure(n, 0.25))
    monkeypatch.setattr(view_effort, "MAX_UNASKED_WORK", 0.0)
    found = account(plan, Analysis("tight", (Full(4),) * n, clip=1.0), delta=1e-5, answers=["adaptive"])
    assert found.adaptive.status == "finite" and "bounded by the rows within" in found.warnings[0]
    assert (found.adaptive.mu >= exact.worst() * (1 - 1e-9)).all()
    quick = adaptive(plan, exposure(n, 0.25), bound="aligned")
    np.testing.assert_array_equal(np.nanmax(quick.lower, axis=1), found.adaptive.mu)
    monkeypatch.setattr(neighbourhoods, "MAX_UNASKED_SECONDS", 0.0)
    with pytest.raises(NotCovered, match="even as a bound"):
        adaptive(plan, exposure(n, 0.25))
    assert adaptive(plan, exposure(n, 0.25), query=Query(allow_slow=True)).worst() == pytest.approx(
        exact.worst()
    )

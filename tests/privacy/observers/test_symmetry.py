"""Symmetries of plans: observers that see the same up to renaming are found, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import constant_schedule
from topdp import topology as graphs
from topdp.plan import Cycle, Full, PerRound
from topdp.privacy.basics.exposure import Exposure, exposure
from topdp.privacy.observers import view as views
from topdp.privacy.observers._symmetry import symmetric_coalitions
from topdp.privacy.observers.view import view
from topdp.protocols import Correlated, Dsgd, Muffliato, PlainSynchronous, TopSynchronous

CUBE = graphs.from_edges([(i, i ^ bit) for i in range(8) for bit in (1, 2, 4)], agents=8)
SYMMETRIC = {
    "ring": (graphs.ring(6), Dsgd(), 1),
    "complete": (graphs.complete(5), Muffliato(gossip=1), 1),
    "star": (graphs.star(6, hubs=1), Dsgd(), 2),
    "hypercube": (CUBE, Muffliato(gossip=1), 1),
    "secrets": (graphs.ring(6), Correlated(secrets="all", gossip=1), None),
}


def plan_of(graph, protocol, noise=None):
    return protocol.plan(graph, constant_schedule(6), np.ones(graph.agents) if noise is None else noise, 0)


def alone(plan):
    return [(j,) for j in range(plan.agents)]


@pytest.mark.parametrize("name", SYMMETRIC)
def test_one_observer_of_each_orbit_stands_for_all(name, monkeypatch):
    """The oracle computes every observer."""
    graph, protocol, orbits = SYMMETRIC[name]
    plan = plan_of(graph, protocol)
    exposed = exposure(plan.agents, 1.0)
    if orbits is not None:
        assert plan.agents - len(symmetric_coalitions(plan, exposed, alone(plan))) == orbits
    found = view(plan, exposed, owners="all")
    monkeypatch.setattr(views, "symmetric_coalitions", lambda *asked: {})
    oracle = view(plan, exposed, owners="all")
    np.testing.assert_allclose(found.upper, oracle.upper, rtol=1e-9)
    np.testing.assert_allclose(found.lower, oracle.lower, rtol=1e-9)


def test_coalitions_of_two_are_symmetric_too(monkeypatch):
    plan = plan_of(graphs.ring(6), Dsgd())
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    assert (
        len(pairs) - len(symmetric_coalitions(plan, exposure(6, 1.0), pairs)) == 3
    )  # one orbit for each distance of the two agents
    found = view(plan, exposure(6, 1.0), pairs, owners="all")
    monkeypatch.setattr(views, "symmetric_coalitions", lambda *asked: {})
    np.testing.assert_allclose(found.upper, view(plan, exposure(6, 1.0), pairs, owners="all").upper)


def test_any_difference_in_the_plan_breaks_the_symmetry():
    ring, plan = graphs.ring(6), plan_of(graphs.ring(6), Dsgd())
    same = exposure(6, 1.0)
    assert symmetric_coalitions(plan, same, alone(plan))
    assert not symmetric_coalitions(plan, exposure(6, np.linspace(1, 2, 6)), alone(plan))
    assert not symmetric_coalitions(
        plan, Exposure(np.ones(6), (Cycle(8, 4), *(Full(4),) * 5)), alone(plan)
    ).get(1)
    for drawn in (PlainSynchronous(0.5), TopSynchronous(0.25)):
        assert not symmetric_coalitions(plan_of(ring, drawn), same, alone(plan))
    assert not symmetric_coalitions(plan_of(ring, Dsgd(), np.linspace(1, 2, 6)), same, alone(plan))
    # One weight changed in its last bit, one more reader, one draw that another agent knows.
    weight = plan.weight.values.copy()
    weight[0, 2, 1] = np.nextafter(weight[0, 2, 1], 1)
    readers = plan.readers.values.copy()
    readers[0, 3, 0] = 5
    known = np.concatenate([plan.known_by, np.full((6, 1), -1)], axis=1)
    known[4, 1] = 0
    for change in (
        {"weight": PerRound(weight, plan.weight.which)},
        {"readers": PerRound(readers, plan.readers.which)},
        {"known_by": known},
    ):
        changed = replace(plan, **change)
        turned = [turn for at, (first, turn) in symmetric_coalitions(changed, same, alone(plan)).items()]
        for turn in turned:  # a reflection may remain, but no rotation
            assert not np.array_equal((turn - np.arange(6)) % 6, np.full(6, turn[0]))

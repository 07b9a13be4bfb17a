"""The spending curve: it rises, ends at the account of the plan, and is refused where the account is."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from builders import AVERAGING, WITH_VIEW, pairwise
from topdp import topology
from topdp.plan import Batches, Cycle, Full, Plan, Poisson, prune, schedules
from topdp.privacy.accounting import account
from topdp.privacy.basics.refusals import NotCovered, PrivacyError
from topdp.privacy.observers.worst_case import composed
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Query
from topdp.privacy.spending_curve import Spending, spending

DELTA = 1e-5
GUARANTEES = ("claimed", "view", "adaptive", "worst-case")
BATCHES = {"full": Full(20), "cycle": Cycle(20, 6), "poisson": Poisson(20, 5)}


def make(name: str = "top-sync", rounds: int = 9, deviation: float = 1.0) -> Plan:
    rates = schedules.learning_rates(0.3, rounds, "linear")
    schedule = schedules.schedule(rates, np.ones(rounds + 1), "gradient")
    return WITH_VIEW[name](0.4).plan(topology.random(6, 0.5, 1), schedule, np.full(6, deviation), seed=1)


def analysis(batches: Batches, **options: object) -> Analysis:
    settings = {"calibration": "tight", "clip": 2.0, **options}
    return Analysis(batches=(batches,) * 6, **settings)


def history(spent: Spending, rounds: int | None = None) -> list[tuple[int, float]]:
    return list(enumerate(spent.information[:rounds].tolist()))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "guarantee"), pairwise(WITH_VIEW, BATCHES, GUARANTEES))
def test_the_curve_ends_at_the_account_of_the_plan(name, kind, guarantee):
    plan, exposed = make(name), analysis(BATCHES[kind])
    said = account(plan, exposed, DELTA, guarantee=guarantee).answer(guarantee)
    if said.epsilon is None:
        with pytest.raises(NotCovered, match="No published analysis"):
            spending(plan, exposed, 0, DELTA).curve(guarantee)
        assert (guarantee, name in AVERAGING) == ("claimed", True)
        return
    for owner in (0, 3):
        spent = spending(plan, exposed, owner, DELTA)
        curve = spent.curve(guarantee)
        R = 20 if name in AVERAGING else 10
        assert curve.shape == (R,) and curve[0] > 0 and (np.diff(curve) >= 0).all()
        assert curve[-1] == pytest.approx(said.epsilon[owner], rel=1e-9)
        if guarantee == "worst-case":
            made = history(spent)
            assert curve.tolist() == [spent.worst_case(made[: r + 1]) for r in range(R)]


@pytest.mark.parametrize("kind", ["full", "cycle"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_point_of_the_curve_is_the_account_if_later_rounds_use_no_data(kind, guarantee):
    """The oracle accounts for the same plan in which the owner's later rows carry no gradient."""
    plan, exposed, owner = make("plain-sync"), analysis(BATCHES[kind]), 2
    curve = spending(plan, exposed, owner, DELTA).curve(guarantee)
    for last in (0, 4, 8):
        if guarantee == "claimed":
            short = make("plain-sync")
            short = replace(
                short,
                **{
                    part: replace(getattr(short, part), which=getattr(short, part).which[: last + 1])
                    for part in ("source", "weight", "carries", "draw", "std", "readers")
                },
                rate=short.rate[: last + 1],
                scale=short.scale[: last + 1],
            )
        else:
            carries = plan.carries.values[plan.carries.which].copy()
            carries[last + 1 :, plan.owner == owner] = False
            short = replace(plan, carries=type(plan.carries).each(carries))
        said = account(short, exposed, DELTA, guarantee=guarantee).answer(guarantee).epsilon[owner]
        assert curve[last] == pytest.approx(said, rel=1e-6)


@pytest.mark.parametrize("kind", BATCHES)
def test_between_checkpoints_the_curve_has_the_value_of_the_next_one(kind, monkeypatch):
    plan, exposed = make("plain-sync"), analysis(BATCHES[kind])
    fine = {guarantee: spending(plan, exposed, 1, DELTA).curve(guarantee) for guarantee in GUARANTEES}
    monkeypatch.setattr(import_module("topdp.privacy.spending_curve"), "CURVE_CHECKPOINTS", 4)
    for guarantee in GUARANTEES:
        coarse = spending(plan, exposed, 1, DELTA).curve(guarantee)
        assert coarse.tolist() == fine[guarantee][[0, 3, 3, 3, 6, 6, 6, 9, 9, 9]].tolist()


def test_skipped_rounds_cost_nothing():
    spent = spending(make(), analysis(Cycle(20, 6)), 0, DELTA)
    made = history(spent)
    assert spent.worst_case([]) == 0
    assert spent.worst_case(made[::4]) == spent.worst_case([made[0], made[4], made[8]])
    # Only the worst position in the cycle counts: rounds at other positions cost nothing.
    assert spent.worst_case([(0, 1.0), (4, 1.0), (5, 1.5)]) == spent.worst_case([(0, 1.0), (4, 1.0)])
    assert spent.worst_case([(0, 1.0), (1, 1.0)]) < spent.worst_case([(0, 1.0), (4, 1.0)])
    assert spent.worst_case([(0, 1.0), (4, math.inf)]) == math.inf


def test_poisson_samples_are_charged_for_all_planned_releases_up_to_the_last():
    spent = spending(make("plain-sync"), analysis(Poisson(20, 5)), 0, DELTA)
    made = history(spent)
    assert spent.worst_case(made[:4]) == spent.worst_case([made[3]]) == spent.curve("worst-case")[3]


def test_a_single_release_has_the_information_of_the_same_release_in_a_plan():
    plan, exposed = make("plain-sync"), analysis(Full(20))
    spent = spending(plan, exposed, 0, DELTA)
    std = float(plan.full_scale[0])
    for r in range(9):
        found = spent.release(float(plan.rate[r]), float(plan.scale[r]), std)
        assert found == pytest.approx(spent.information[r], rel=1e-12)
    assert spent.release(0.0, 0.0, std) == 0
    assert spent.release(0.1, 0.1, 0.0) == spent.release(0.1, 0.0, 1.0) == math.inf
    with pytest.raises(NotCovered, match="outside the plan"):
        spending(plan, analysis(Poisson(20, 5)), 0, DELTA).release(0.1, 0.1, 1.0)


def test_poisson_samples_under_replace_one_are_charged_as_if_in_every_round():
    samples, every = (analysis(how, adjacency="replace-one") for how in (Poisson(20, 5), Full(5)))
    plan = make("plain-sync")
    found, full = spending(plan, samples, 0, DELTA), spending(plan, every, 0, DELTA)
    for guarantee in ("view", "adaptive", "worst-case"):
        np.testing.assert_allclose(found.curve(guarantee), full.curve(guarantee), rtol=1e-12)
    with pytest.raises(NotCovered):
        found.curve("claimed")


def test_more_colluders_raise_the_curve():
    plan, exposed = make("top-sync"), analysis(Full(20))
    last = [
        spending(plan, exposed, 0, DELTA, query=Query(colluders=c)).curve("adaptive")[-1]
        for c in (0, 1, 2, 5)
    ]
    assert last == sorted(last) and last[0] < last[1] < last[2]
    assert last[3] == pytest.approx(spending(plan, exposed, 0, DELTA).curve("worst-case")[-1], rel=1e-9)


def test_unsuitable_plans_owners_and_guarantees_are_rejected():
    plan, exposed = make(), analysis(Full(20))
    silent = replace(plan, scale=np.zeros_like(plan.scale))
    with pytest.raises(PrivacyError, match="Expected noise in every row"):
        spending(silent, exposed, 0, DELTA)
    with pytest.raises(NotCovered, match="pruned"):
        spending(prune(plan), exposed, 0, DELTA)
    with pytest.raises(PrivacyError, match="an owner between 0 and 5, got 6"):
        spending(plan, exposed, 6, DELTA)
    with pytest.raises(PrivacyError, match="one of claimed, view, adaptive, worst-case, got 'all'"):
        spending(plan, exposed, 0, DELTA).curve("all")
    growing = replace(plan, scale=plan.scale * np.linspace(1, 2, 10))
    with pytest.raises(NotCovered, match=r"theorem1 has no cost per round: .* this noise grows"):
        spending(growing, analysis(Full(20), calibration="theorem1"), 0, DELTA).curve("claimed")


def test_draws_that_all_agents_know_hide_nothing():
    plan = make("plain-sync")
    known = np.broadcast_to(np.arange(6), (plan.draws, 6))
    with pytest.raises(PrivacyError, match="Expected noise in every row"):
        spending(replace(plan, known_by=known), analysis(Full(20)), 0, DELTA)


@pytest.mark.parametrize("kind", ["full", "cycle"])
@pytest.mark.parametrize("wrong", [math.nan, -0.1])
def test_invalid_information_is_rejected_wherever_it_occurs(kind, wrong):
    spent = spending(make(), analysis(BATCHES[kind]), 0, DELTA)
    for made in ([(0, 0.1), (1, wrong)], [(0, wrong), (1, 0.1)]):
        with pytest.raises(PrivacyError, match="information >= 0"):
            spent.worst_case(made)


@pytest.mark.parametrize("kind", BATCHES)
def test_composing_information_with_nan_raises(kind):
    with pytest.raises(PrivacyError, match="information >= 0"):
        composed(np.array([0.1, math.nan]), BATCHES[kind], "add-remove")

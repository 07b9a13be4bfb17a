"""The view of long plans, which computes only a band of the Gram matrix, compared with the whole matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import AVERAGING, WITH_VIEW, constant_schedule
from topdp import topology as graphs
from topdp.plan import NOBODY, Cycle, Full, PerRound, Plan, schedules
from topdp.privacy.basics.exposure import exposure
from topdp.privacy.basics.refusals import NotCovered, PrivacyError
from topdp.privacy.observers import gram_matrix, view_effort
from topdp.privacy.observers import view as views
from topdp.privacy.observers._mu_bounds import MAX_DENSE_BAND, bracket, bracket_band
from topdp.privacy.observers.gram_matrix import Band, bands, grams
from topdp.privacy.observers.view import view
from topdp.privacy.query import Query

GRAPHS = {"random": graphs.random(8, 0.4, 1), "star": graphs.star(7), "complete": graphs.complete(5)}


@pytest.fixture
def often(monkeypatch):
    """Drop old changes as often as a short plan has any to drop."""
    monkeypatch.setattr(gram_matrix, "ROUNDS_PER_BLOCK", 8)


def plan_of(name, graph, rounds, alpha=0.25, fading="linear", decay=0.9):
    if name in AVERAGING:
        rounds //= 2  # two releases a round
    rates = schedules.learning_rates(0.5, rounds, fading)
    falling = schedules.schedule(rates, schedules.step_decay(decay, 20, rounds), "gradient")
    return WITH_VIEW[name](alpha).plan(graph, falling, np.linspace(0.5, 1.5, graph.agents), 3)


def both(plan, observer=0):
    coalition = np.arange(plan.agents) == observer
    owners = np.flatnonzero(~coalition)
    return list(grams(plan, coalition, owners)), list(bands(plan, coalition, owners, trust_null_rows=True))


# Where agents mix nothing, a change is seen in one release only: there is nothing outside the band.
MIXED = [name for name in WITH_VIEW if name != "alone"]

# Averaging removes pair noise slowly: on a star so slowly that no change can be dropped.
LONG_ENOUGH = {
    (name, graph): 480 if name == "correlated" else 240
    for name in MIXED
    for graph in GRAPHS
    if (name, graph) != ("correlated", "star")
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "graph"), LONG_ENOUGH)
@pytest.mark.usefixtures("often")
def test_a_band_gives_nearly_the_same_bounds_as_the_whole_matrix(name, graph):
    plan = plan_of(name, GRAPHS[graph], LONG_ENOUGH[name, graph])
    for M, band in zip(*both(plan), strict=True):
        assert (
            band.values.shape[1] < plan.releases - 40 and (band.rest > 0).sum() > 40
        )  # some changes were dropped
        for period in (1, 7, 50):
            whole, near = bracket(M, period), bracket_band(band, period)
            assert 1 - 1e-6 < near[0] / whole[0] <= 1 + 1e-12
            assert 1 - 2e-9 < near[1] / whole[1] < 1 + 1e-6


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.usefixtures("often")
def test_the_part_outside_the_band_stays_within_its_bound(name, monkeypatch):
    """Changes are dropped far too early, so that the dropped part is large: the bound must still hold."""
    monkeypatch.setattr(gram_matrix, "MAX_FAR_PART", 0.6)
    plan = plan_of(name, GRAPHS["random"], 120)
    generator = np.random.default_rng(0)
    R = plan.releases
    changes = np.concatenate([np.eye(R), np.ones((1, R)), generator.choice([-1, 1], (200, R))])
    missed = 0.0
    for M, band in zip(*both(plan), strict=True):
        near = np.zeros_like(M)
        for k in range(band.values.shape[1]):
            r = np.arange(len(M) - k)
            near[r, r + k] = near[r + k, r] = band.values[r, k]
        lengths = [np.sqrt(np.maximum(0.0, np.einsum("ur,rs,us->u", changes, X, changes))) for X in (M, near)]
        # Half of the allowance is for rounding: without rounding the other half must suffice.
        assert (np.abs(lengths[0] - lengths[1]) <= np.abs(changes) @ band.rest / 2 + 1e-9).all()
        missed = max(missed, float(np.abs(lengths[0] - lengths[1]).max() / lengths[0].max()))
    assert missed > 1e-3


@pytest.mark.parametrize("period", [1, 3])
def test_bounds_of_long_bands_equal_those_of_the_matrix(period):
    """Bands longer than those for which all eigenvalues are computed, with entries of both signs."""
    generator = np.random.default_rng(1)
    R, width = 3 * MAX_DENSE_BAND + 5, 9
    D = np.zeros((R + width, R))
    for r in range(R):
        D[r : r + width, r] = generator.normal(0.1, 1, width)
    M = D.T @ D
    values = np.zeros((R, width))
    for k in range(width):
        values[: R - k, k] = M.diagonal(k)
    band = Band(values, np.zeros(R), np.zeros(R, bool))
    np.testing.assert_allclose(bracket_band(band, period), bracket(M, period), rtol=1e-8)
    assert bracket_band(band, period)[1] >= bracket(M, period)[1] * (1 - 1e-9)
    charged = Band(values, np.full(R, 0.01), np.zeros(R, bool))
    low, high = np.sqrt(bracket_band(charged, period)) - np.sqrt(bracket_band(band, period))
    used = len(range(0, R, period))
    assert low == pytest.approx(-0.01 * used, rel=0.05) and high == pytest.approx(0.01 * used, rel=0.05)


@pytest.mark.usefixtures("often")
def test_rows_without_noise_give_the_same_bound_with_a_band():
    plan = WITH_VIEW["plain-sync"](0.5).plan(GRAPHS["random"], constant_schedule(60), np.zeros(8), 0)
    for M, band in zip(*both(plan), strict=True):
        assert bracket_band(band)[1] == bracket(M)[1]


@pytest.mark.usefixtures("often")
def test_a_change_that_fades_in_rows_without_noise_is_not_dropped():
    """Agent 0 changes in round 0; agent 1 mixes it in and halves it many times; then agent 2 reads it."""
    R, agents = 80, 3
    source, weight = np.full((R, agents, 2), NOBODY), np.zeros((R, agents, 2))
    source[:, :, 0], weight[:, :, 0] = np.arange(agents), 1.0
    source[1, 1, 1], weight[1, 1, 1] = 0, 1.0
    weight[2:, 1, 0] = 0.5
    carries = np.zeros((R, agents), bool)
    carries[0, 0] = carries[1:, 1] = True
    readers = np.full((R, agents, 1), NOBODY)
    readers[R - 1, 1, 0] = 2
    nothing = PerRound.same(np.full((agents, 1), NOBODY), R)
    each = PerRound.each
    plan = Plan(
        agents=agents,
        owner=np.arange(agents),
        source=each(source),
        weight=each(weight),
        carries=each(carries),
        rate=np.ones(R),
        draw=nothing,
        std=PerRound.same(np.zeros((agents, 1)), R),
        scale=np.ones(R),
        known_by=np.array([[1]]),
        readers=each(readers),
    )
    (band,) = bands(plan, np.arange(agents) == 2, np.array([0]))
    assert bracket_band(band) == (np.inf, np.inf)


def test_a_band_with_nan_has_infinite_bounds():
    values, zeros = np.ones((20, 4)), np.zeros(20)
    values[3, 1] = np.nan
    assert bracket_band(Band(values, zeros, zeros > 0)) == (np.inf, np.inf)


def test_the_bounds_of_a_diagonal_band_are_its_sum():
    values = np.linspace(1, 2, 2 * MAX_DENSE_BAND)[:, None]
    band = Band(
        np.pad(values, ((0, 0), (0, 5))), np.zeros(2 * MAX_DENSE_BAND), np.zeros(2 * MAX_DENSE_BAND, bool)
    )
    low, high = bracket_band(Band(values, band.rest, band.leaks))
    assert low == pytest.approx(values.sum()) and high == pytest.approx(low)
    assert bracket_band(band) == pytest.approx((low, high))


def test_overflowing_noise_is_rejected():
    plan = plan_of("plain-sync", graphs.ring(7), 900, fading="none")
    growing = replace(plan, weight=replace(plan.weight, values=3 * plan.weight.values))
    with pytest.raises(PrivacyError, match="overflow"):
        view(growing, exposure(7, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("batches", [Full(1), Cycle(20, 1)])
def test_a_view_by_bands_equals_the_view_by_whole_matrices(batches, monkeypatch):
    plan = plan_of("top-sync", GRAPHS["random"], 150)
    exposed = exposure(8, 0.1, batches)
    whole = view(plan, exposed, owners="all")
    monkeypatch.setattr(views, "LONG_PLAN_RELEASES", 100)
    near = view(plan, exposed, owners="all")
    np.testing.assert_allclose(near.upper, whole.upper, rtol=1e-6)
    # Both contain bounds on their own rounding, and that of the whole matrix is larger.
    assert (near.worst() >= np.nanmax(whole.lower, axis=1) * (1 - 1e-9)).all()


def test_a_slow_view_of_a_long_plan_is_refused_and_names_allow_slow(monkeypatch):
    monkeypatch.setattr(views, "LONG_PLAN_RELEASES", 100)
    monkeypatch.setattr(view_effort, "MAX_FOLLOWED_ROUNDS", 64)
    plan = plan_of("top-async", graphs.ring(9), 300)
    with pytest.raises(NotCovered, match="allow_slow"):
        view(plan, exposure(9, 0.1), query=Query())


def test_1500_rounds_are_affordable_and_6000_need_allow_slow():
    view_effort.expect_affordable(plan_of("top-sync", graphs.random(30, 0.2, 0), 1500), Query())
    paper = plan_of("top-sync", graphs.random(30, 0.2, 0), 6000)
    with pytest.raises(NotCovered, match=r"at most about 1[5-9]\d\d rounds"):
        view_effort.expect_affordable(paper, Query())
    view_effort.expect_affordable(paper, Query(allow_slow=True))

"""The worst case, in which all others collude: against closed forms, dense algebra and dp-accounting."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import PROTOCOLS
from topdp import topology as graphs
from topdp.plan import NOBODY, Cycle, Full, PerRound, Plan, Poisson, schedules
from topdp.privacy.basics import privacy_loss
from topdp.privacy.basics.exposure import exposure
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.privacy_loss import GaussianLoss, SampledLoss, sampled_loss
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.observers.view import view
from topdp.privacy.observers.worst_case import all_draws_count, information, worst_case
from topdp.protocols import PlainAsynchronous, PlainSynchronous, TopAsynchronous, TopSynchronous


def make(protocol, graph, rounds, alpha=0.25, deviation=1.0, fading="none", decay=1.0, on="gradient", seed=3):
    rates = schedules.learning_rates(0.5, rounds, fading)
    plan = schedules.schedule(rates, schedules.step_decay(decay, 2, rounds), on)
    return protocol(alpha).plan(graph, plan, np.broadcast_to(deviation, graph.agents), seed)


def dense(plan: Plan) -> np.ndarray:
    """[rounds, agents]: stepᵀ(BBᵀ)⁺step over the owner's rows, directly from the definition."""
    result = np.zeros((plan.releases, plan.agents))
    for r, this in enumerate(plan):
        makers = [
            {int(plan.owner[m]) for m in np.flatnonzero((this.draw == k).any(axis=1))}
            for k in range(plan.draws)
        ]
        for i in range(plan.agents):
            rows = np.flatnonzero((plan.owner == i) & this.exists)
            B = np.zeros((len(rows), plan.draws))
            for a, m in enumerate(rows):
                for k, std in zip(this.draw[m], this.std[m], strict=True):
                    if k >= 0 and {int(j) for j in plan.known_by[k] if j >= 0} == {i} and makers[k] == {i}:
                        B[a, k] += std
            step = this.step[rows]
            best = np.linalg.pinv(B) @ step
            leaks = np.abs(B @ best - step).max(initial=0.0) > 1e-9
            result[r, i] = np.inf if leaks else best @ best
    return result


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS.keys())
def test_the_worst_case_equals_the_dense_formula(protocol):
    plan = make(
        protocol, graphs.random(7, 0.4, seed=1), 6, deviation=np.linspace(1, 1.4, 7), fading="linear",
        decay=0.8, on="estimate",
    )  # fmt: skip
    np.testing.assert_allclose(information(plan), dense(plan), rtol=1e-9)


def shared(
    std: list[list[float]], known_by: list[list[int]], draw: list[list[int]], carries: list[bool]
) -> Plan:
    """Two agents; agent 0 makes the estimate, row 0, and the message, row 2."""
    R = 3
    return Plan(
        agents=2,
        owner=np.array([0, 1, 0]),
        source=PerRound.same(np.array([[0], [1], [0]]), R),
        weight=PerRound.same(np.ones((3, 1)), R),
        carries=PerRound.same(np.array(carries), R),
        rate=np.array([1.0, 0.5, 0.25]),
        draw=PerRound.same(np.array(draw), R),
        std=PerRound.same(np.array(std), R),
        scale=np.array([1.0, 1.0, 0.5]),
        known_by=np.array(known_by),
        readers=PerRound.same(np.array([[NOBODY], [0], [1]]), R),
    )


ALONE = [[0, NOBODY], [1, NOBODY], [0, NOBODY], [0, 1]]


@pytest.mark.parametrize(
    "std, draw, carries, first",
    [
        ([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [[0, 2], [1, -1], [2, -1]], [True, True, True], 0.5),
        # One draw in both rows: sending the same row twice counts once.
        ([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [[0, 2], [1, -1], [0, -1]], [True, True, True], 0.25),
        # With opposite signs the sum of both rows has no noise.
        ([[2.0, 0.0], [1.0, 0.0], [-2.0, 0.0]], [[0, 2], [1, -1], [0, -1]], [True, True, True], np.inf),
        # The second row reveals the draw, because it has no gradient.
        ([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [[0, 2], [1, -1], [0, -1]], [True, True, False], np.inf),
        # Two draws in three combinations: [1, 1]·C⁻¹·[1, 1] with C = [[5, 2], [2, 1]].
        ([[2.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [[0, 2], [1, -1], [0, -1]], [True, True, True], 2.0),
        # A draw that agent 1 also knows hides nothing from it, whether or not its own row uses it.
        ([[2.0, 9.0], [1.0, 0.0], [2.0, 0.0]], [[0, 3], [1, -1], [2, -1]], [True, True, True], 0.5),
        ([[2.0, 9.0], [1.0, 0.0], [2.0, 0.0]], [[0, 3], [1, 3], [2, -1]], [True, True, True], 0.5),
        # A draw that a row of agent 1 uses is known to agent 1, whatever `known_by` lists.
        ([[2.0, 9.0], [1.0, 1.0], [2.0, 9.0]], [[0, 2], [1, 2], [2, -1]], [True, True, True], np.inf),
    ],
)
def test_draws_in_several_rows_have_the_closed_form(std, draw, carries, first):
    plan = shared(std, ALONE, draw, carries)
    found = information(plan)
    np.testing.assert_allclose(found, dense(plan), rtol=1e-9)
    # Steps 1, 1/2, 1/4 with scales 1, 1, 1/2: 1/z² falls by a factor of four, then stays.
    np.testing.assert_allclose(found[:, 0], first * np.array([1, 0.25, 0.25]), rtol=1e-9)


def test_a_round_without_a_step_costs_nothing_and_without_noise_is_infinite():
    plan = make(PlainSynchronous, graphs.ring(4), 4)
    still = replace(plan, rate=np.array([0.5, 0.5, 0.0, 0.5, 0.5]))
    assert worst_case(still, exposure(4, 1.0)).mu == pytest.approx(2.0)
    quiet = replace(still, scale=np.array([0.5, 0.5, 0.0, 0.5, 0.5]))
    assert worst_case(quiet, exposure(4, 1.0)).mu == pytest.approx(2.0)
    loud = replace(plan, scale=np.array([0.5, 0.5, 0.0, 0.5, 0.5]))
    found = worst_case(loud, exposure(4, 1.0))
    assert np.isinf(found.mu).all() and np.isinf(found.epsilon(1e-5)).all()
    for how in (Poisson(10, 1), Poisson(1, 1)):
        assert np.isinf(worst_case(loud, exposure(4, 1.0, how)).epsilon(1e-5)).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 15), st.floats(0.01, 10), st.floats(0.01, 10))
def test_cyclic_batches_count_the_worst_class(T, period, z, sensitivity):
    plan = make(PlainSynchronous, graphs.ring(4), T, deviation=z, decay=0.7)
    per_round = (sensitivity * plan.rate / (plan.scale * z)) ** 2
    expected = math.sqrt(max(sum(per_round[s::period]) for s in range(period)))
    how = [Full(1), Cycle(period, 1), Cycle(1, 1), Cycle(period, 1)]
    mu = worst_case(plan, exposure(4, sensitivity, how)).mu
    assert mu == pytest.approx([math.sqrt(per_round.sum()), expected, math.sqrt(per_round.sum()), expected])


def test_with_reused_noise_the_worst_case_grows_with_the_number_of_rows():
    # docs/privacy.md, "Against collusion": each agent sends deg(i)+1 rows; on a ring two of them have noise
    # of variance 1 - (1-α)² (Eq. 5).
    plan = make(TopSynchronous, graphs.ring(6), 10, alpha=0.5)
    expected = 1 + 10 * (1 + 2 / 0.75)
    assert worst_case(plan, exposure(6, 1.0)).mu ** 2 == pytest.approx(expected)
    everybody = [[j for j in range(6) if j != i] for i in range(6)]
    coalition = view(plan, exposure(6, 1.0), everybody, owners="all").upper.diagonal()
    assert (coalition <= worst_case(plan, exposure(6, 1.0)).mu * (1 + 1e-9)).all()


def test_epsilon_is_that_of_the_gaussian_mechanism():
    found = worst_case(make(PlainSynchronous, graphs.ring(4), 8, deviation=10.0), exposure(4, 1.0))
    assert found.mu == pytest.approx(0.3)
    np.testing.assert_array_equal(found.epsilon(1e-5), epsilon_of(found.mu, 1e-5))


def test_poisson_samples_agree_with_dp_accounting():
    plan = make(TopSynchronous, graphs.ring(4), 30, alpha=0.5, deviation=3.0)
    found = worst_case(plan, exposure(4, 1.0, Poisson(20, 1)))
    assert np.isnan(found.mu).all()
    z_first, z_later = 3.0, 3.0 / math.sqrt(1 + 2 / 0.75)  # on a ring of four both neighbours are covered
    accountant = PLDAccountant()
    accountant.compose(
        ComposedDpEvent(
            [
                PoissonSampledDpEvent(0.05, GaussianDpEvent(z_first)),
                SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(z_later)), 30),
            ]
        )
    )
    # both are upper bounds on different grids: they agree within a grid step
    assert found.epsilon(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert found.epsilon(1e-5)[0] < 0.5 * worst_case(plan, exposure(4, 1.0)).epsilon(1e-5)[0]


def test_sampling_at_rate_1_equals_full_batches():
    plan = make(PlainSynchronous, graphs.ring(4), 5, deviation=8.0, decay=0.8)
    full, rate_one = (worst_case(plan, exposure(4, 1.0, how)) for how in (Full(1), Poisson(1, 1)))
    assert rate_one.epsilon(1e-5) == pytest.approx(full.epsilon(1e-5), rel=1e-9)
    assert (rate_one.epsilon(1e-5) >= full.epsilon(1e-5) * (1 - 1e-12)).all()


def test_many_noise_levels_are_grouped_towards_less_noise(monkeypatch):
    z = np.geomspace(2.0, 6.0, 40)
    exact = sampled_loss(z, 0.1)
    assert isinstance(exact, SampledLoss) and len(exact.releases) == 40
    monkeypatch.setattr(privacy_loss, "MAX_NOISE_MULTIPLIERS", 8)
    coarse = sampled_loss(z, 0.1)
    assert isinstance(coarse, SampledLoss)
    assert len(coarse.releases) <= 8 and sum(count for _, count in coarse.releases) == 40
    levels = np.repeat([level for level, _ in coarse.releases], [count for _, count in coarse.releases])
    assert (levels <= z).all()
    assert exact.epsilon(1e-5) <= coarse.epsilon(1e-5) <= 1.3 * exact.epsilon(1e-5)


def test_infinite_noise_costs_nothing():
    assert sampled_loss(np.array([np.inf, np.inf]), 0.1).epsilon(1e-5) == 0
    assert GaussianLoss(0.0).epsilon(1e-5) == 0


def test_poisson_samples_under_replace_one_are_not_amplified():
    plan = make(PlainSynchronous, graphs.ring(4), 3)
    found = worst_case(plan, exposure(4, 1.0, Poisson(10, 1), adjacency="replace-one"))
    assert found.mu.tolist() == worst_case(plan, exposure(4, 1.0)).mu.tolist()
    assert np.isfinite(worst_case(plan, exposure(4, 2.0, adjacency="replace-one")).mu).all()


def test_invalid_input_is_rejected_by_name():
    plan = make(PlainSynchronous, graphs.ring(4), 3)
    with pytest.raises(PrivacyError, match="4 agents"):
        worst_case(plan, exposure(5, 1.0))
    with pytest.raises(PrivacyError, match="mu >= 0, got nan"):
        GaussianLoss(math.nan)
    for how in (Full(1), Poisson(10, 1)):
        with pytest.raises(PrivacyError, match="delta < 1, got 1"):
            worst_case(plan, exposure(4, 1.0, how)).epsilon(1.0)


@pytest.mark.parametrize("protocol", [PlainSynchronous, PlainAsynchronous, TopSynchronous, TopAsynchronous])
def test_all_draws_count_unless_another_agent_knows_or_uses_one(protocol):
    plan = make(protocol, graphs.ring(6), 5)
    assert all_draws_count(plan)
    both = np.stack([plan.known_by[:, 0], np.full(plan.draws, -1)], axis=1)
    both[3, 1] = 5  # another agent also knows a draw
    assert not all_draws_count(replace(plan, known_by=both))
    entering = plan.draw.values.copy()
    entering[:, 0, 0] = 1  # a draw of agent 1 in a row of agent 0
    assert not all_draws_count(replace(plan, draw=replace(plan.draw, values=entering)))


def test_ten_thousand_rounds_are_the_sum_of_their_rounds():
    """There are more rounds than one chunk holds."""
    plan = make(TopSynchronous, graphs.random(30, 0.2, seed=0), 10_000)
    assert plan.rows > 150
    found = worst_case(plan, exposure(30, 1.0)).mu
    np.testing.assert_allclose(found**2, information(plan).sum(axis=0), rtol=1e-12)

"""Gaussian releases, compared with 60-digit arithmetic, with dp-accounting, and with their own inverses."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from topdp.errors import InputError
from topdp.privacy.basics import gaussian
from topdp.privacy.basics.refusals import PrivacyError

budgets = st.floats(-6, 4).map(lambda power: 10.0**power)
deltas = st.floats(-15, math.log10(0.5)).map(lambda power: 10.0**power)
noises = st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=30)


def true_delta(mu: float, epsilon: float) -> mp.mpf:
    with mp.workdps(60):
        m, e, root = mp.mpf(mu), mp.mpf(epsilon), mp.sqrt(2)
        return (mp.erfc((e / m - m / 2) / root) - mp.exp(e) * mp.erfc((e / m + m / 2) / root)) / 2


def gap_in_mu(mu: float, epsilon: float, delta: float) -> float:
    """How far μ lies below the one whose δ is the target: the relative distance to first order."""
    with mp.workdps(60):
        slope = mp.npdf(mp.mpf(epsilon) / mu - mp.mpf(mu) / 2)  # ∂δ/∂μ = φ(ε/μ - μ/2)
        return float((mp.mpf(delta) - true_delta(mu, epsilon)) / slope / mu)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.5, 0.14221), (1.0, 0.26805), (2.0, 0.50155)])
def test_reference_values(epsilon: float, mu: float) -> None:
    # Computed twice, independently, at δ = 1e-5 (project notes on the paper, section 2).
    assert gaussian.mu_of(epsilon, 1e-5) == pytest.approx(mu, abs=5e-6)
    assert gaussian.epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=5e-5)


@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 0.1, 0.5])
def test_conversions_agree_with_sixty_digits_over_the_whole_range(delta: float) -> None:
    for epsilon in np.logspace(-6, 4, 31):
        epsilon = float(epsilon)
        mu = gaussian.mu_of(epsilon, delta)
        assert 0 <= gap_in_mu(mu, epsilon, delta) < 1e-12
        reached = true_delta(mu, epsilon)
        assert reached <= gaussian.delta_of(mu, epsilon) <= reached * (1 + mp.mpf(1e-10))
        back = gaussian.epsilon_of(mu, delta)
        assert true_delta(mu, back) <= delta
        # ∂δ/∂ε is -e^ε Φ(-ε/μ - μ/2) ≈ -1/2 near ε = 0, so that the precision there is that of δ.
        assert abs(back - epsilon) <= 1e-10 * epsilon + 1e-12 * delta


@given(st.floats(-8, 3), st.floats(-30, 35))
@settings(deadline=None)
def test_delta_is_never_below_the_exact_value(power: float, low: float) -> None:
    mu = 10.0**power
    epsilon = max(0.0, mu * (low + mu / 2))
    value, truth = gaussian.delta_of(mu, epsilon), true_delta(mu, epsilon)
    if truth > 1e-290:
        assert truth <= value * (1 + mp.mpf(1e-18)) or value == 1.0
        assert value <= truth * (1 + mp.mpf(1e-9))
    else:
        assert value <= 1.1e-290


@given(budgets, deltas)
@settings(max_examples=200, deadline=None)
def test_mu_of_a_budget_gives_the_budget_back(epsilon: float, delta: float) -> None:
    mu = gaussian.mu_of(epsilon, delta)
    assert gaussian.delta_of(mu, epsilon) <= delta
    back = gaussian.epsilon_of(mu, delta)
    assert back <= epsilon
    assert epsilon - back <= 1e-6 * epsilon + 1e-12 * delta


@given(budgets, deltas, st.integers(1, 10**4))
@settings(deadline=None)
def test_the_noise_multiplier_meets_the_budget(epsilon: float, delta: float, releases: int) -> None:
    z = gaussian.noise_multiplier(epsilon, delta, releases)
    spent = gaussian.epsilon_of(gaussian.compose(np.full(releases, z)), delta)
    assert spent <= epsilon
    assert epsilon - spent <= 1e-6 * epsilon + 1e-11 * delta


@given(budgets, deltas, st.floats(1.0001, 100))
@settings(deadline=None)
def test_larger_budgets_allow_a_larger_mu(epsilon: float, delta: float, more: float) -> None:
    mu = gaussian.mu_of(epsilon, delta)
    assert gaussian.mu_of(epsilon * more, delta) > mu
    assert gaussian.mu_of(epsilon, min(delta * more, 0.99)) > mu
    assert gaussian.epsilon_of(mu * more, delta) > gaussian.epsilon_of(mu, delta)
    assert gaussian.delta_of(mu * more, epsilon) > gaussian.delta_of(mu, epsilon)


@given(noises)
@settings(deadline=None)
def test_composition_is_the_root_of_the_sum_of_squares(z: list[float]) -> None:
    exact = math.sqrt(math.fsum(1 / x**2 for x in z))
    assert exact * (1 - 1e-15) <= gaussian.compose(z) <= exact * (1 + 1e-13)


def test_composition_along_an_axis() -> None:
    z = np.array([[1.0, 2.0, 4.0], [1.0, 0.0, 4.0]])
    assert gaussian.compose(z, axis=0) == pytest.approx([math.sqrt(2), math.inf, math.sqrt(1 / 8)])
    assert gaussian.compose(z[:, ::2], axis=1) == pytest.approx([math.sqrt(17 / 16)] * 2)
    assert gaussian.compose(np.ones((0, 3)), axis=0).tolist() == [0.0, 0.0, 0.0]
    assert gaussian.compose([]) == 0.0


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=4), st.sampled_from([1e-3, 1e-5, 1e-8]))
@settings(max_examples=15, deadline=None)
def test_epsilon_agrees_with_privacy_loss_distributions(z: list[float], delta: float) -> None:
    ours = gaussian.epsilon_of(gaussian.compose(z), delta)
    theirs = privacy_loss_distribution.identity(1e-3)
    for one in z:
        theirs = theirs.compose(
            privacy_loss_distribution.from_gaussian_mechanism(one, value_discretization_interval=1e-3)
        )
    # dp-accounting rounds each release up to a grid of 1e-3.
    assert theirs.get_epsilon_for_delta(delta) == pytest.approx(ours, rel=2e-3, abs=2e-4)


def test_arrays_give_the_same_results_as_numbers() -> None:
    mu, delta = np.array([[0.0, 0.1, 0.9], [1.1, 8.0, math.inf]]), np.array([1e-5, 1e-3, 0.2])
    epsilon = gaussian.epsilon_of(mu, delta)
    assert epsilon.shape == (2, 3)
    assert epsilon.tolist() == [
        [gaussian.epsilon_of(float(m), float(d)) for m, d in zip(row, delta, strict=True)] for row in mu
    ]
    assert isinstance(gaussian.epsilon_of(0.3, 1e-5), float)


def test_limiting_values_of_mu_epsilon_and_noise() -> None:
    assert gaussian.epsilon_of(0.0, 1e-5) == 0
    assert gaussian.epsilon_of(math.inf, 0.5) == math.inf
    assert gaussian.delta_of(0.0, 0.0) == 0
    assert gaussian.delta_of(math.inf, 1e4) == 1
    assert gaussian.epsilon_of(1.0, float(true_delta(1.0, 0.0)) * (1 + 1e-9)) == 0
    assert gaussian.epsilon_of(1.0, float(true_delta(1.0, 0.0)) * (1 - 1e-9)) > 0
    assert gaussian.epsilon_of(1e200, 1e-5) == math.inf
    assert gaussian.epsilon_of(1e-300, 1e-5) == 0
    assert gaussian.compose([1.0, 0.0]) == math.inf


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, 2.0, math.nan, math.inf, "much", None, 1j])
def test_invalid_delta_is_rejected_by_name(bad: float) -> None:
    for call in (gaussian.mu_of, gaussian.epsilon_of, gaussian.noise_multiplier):
        with pytest.raises(PrivacyError, match="delta"):
            call(1.0, bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "much", None])
def test_invalid_epsilon_is_rejected_by_name(bad: float) -> None:
    for call in (gaussian.mu_of, gaussian.noise_multiplier):
        with pytest.raises(PrivacyError, match="epsilon"):
            call(bad, 1e-5)
    if bad != 0:
        with pytest.raises(PrivacyError, match="epsilon"):
            gaussian.delta_of(1.0, bad)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "much"])
def test_invalid_noise_is_rejected_by_name(bad: float) -> None:
    with pytest.raises(PrivacyError, match="noise multiplier"):
        gaussian.compose([1.0, bad])


@pytest.mark.parametrize("bad", [-1.0, math.nan, -math.inf])
def test_invalid_mu_is_rejected_by_name(bad: float) -> None:
    with pytest.raises(PrivacyError, match="mu >= 0"):
        gaussian.epsilon_of(bad, 1e-5)
    with pytest.raises(PrivacyError, match="mu >= 0"):
        gaussian.delta_of(np.array([1.0, bad]), 1.0)


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, True, "ten"])
def test_invalid_counts_are_rejected_by_name(bad: int) -> None:
    with pytest.raises(InputError, match="releases"):
        gaussian.noise_multiplier(1.0, 1e-5, bad)

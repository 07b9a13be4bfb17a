"""Schedules: step sizes, warm-up, and the noise factors of every kind of noise schedule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from topdp.plan import schedules

T = st.integers(1, 60)


@given(st.floats(1e-6, 1e3), T, st.sampled_from(schedules.FADING_KINDS), st.integers(1, 20))
def test_step_sizes_begin_with_the_initial_rate_twice_and_never_grow(initial, rounds, fading, per_epoch):
    rates = schedules.learning_rates(initial, rounds, fading, per_epoch)
    assert len(rates) == rounds + 1
    assert rates[0] == rates[1] == initial  # the release before the loop uses the values of t = 0
    assert (np.diff(rates) <= 0).all()
    last = {
        "none": 1.0,
        "linear": 1 / rounds,
        "cosine": np.sin(np.pi / (2 * rounds)) ** 2,
        "sqrt-epoch": (1 + (rounds - 1) // per_epoch) ** -0.5,
        "step": 0.5 ** ((rounds - 1) // max(1, rounds // 3)),
    }
    assert rates[-1] == pytest.approx(initial * last[fading])


def test_vanishing_steps_and_warm_ups_longer_than_the_run_are_rejected():
    with pytest.raises(ValueError, match="longer fading_period"):
        schedules.learning_rates(1.0, 3000, "step", factor=0.1, period=1)
    rates = schedules.learning_rates(1.0, 5, "none")
    np.testing.assert_allclose(schedules.warmed_up(rates, 0), rates)
    np.testing.assert_allclose(schedules.warmed_up(rates, 2), [1 / 3, 1 / 3, 2 / 3, 1, 1, 1])
    for warmup in (-1, 6):
        with pytest.raises(ValueError, match="warm-up of 0 to 5"):
            schedules.warmed_up(rates, warmup)


@given(st.floats(0.05, 1.0), st.integers(1, 20), T)
def test_step_decay_falls_by_its_factor_once_per_period(factor, period, rounds):
    decay = schedules.step_decay(factor, period, rounds)
    assert len(decay) == rounds + 1 and decay[0] == decay[1] == 1.0
    assert (decay <= 1).all() and decay[-1] == pytest.approx(factor ** ((rounds - 1) // period), rel=1e-9)
    falls = np.flatnonzero(np.diff(decay))
    np.testing.assert_allclose(decay[falls + 1], decay[falls] * factor, rtol=1e-9)
    assert factor == 1.0 or (falls == np.arange(period, rounds, period)).all()


@given(
    st.floats(0.05, 1.0), st.integers(1, 20), T, st.integers(1, 30), st.sampled_from(["none", "sqrt-epoch"])
)
def test_a_shorter_schedule_is_the_beginning_of_a_longer_one(factor, period, rounds, more, fading):
    for write in (
        lambda T: schedules.step_decay(factor, period, T),
        lambda T: schedules.learning_rates(0.5, T, fading, period),
    ):
        np.testing.assert_array_equal(write(rounds), write(rounds + more)[: rounds + 1])


def test_linear_fading_falls_evenly_to_one_step_above_zero():
    rates = schedules.learning_rates(1.0, 4, "linear")
    np.testing.assert_allclose(rates, [1, 1, 0.75, 0.5, 0.25])


def test_sqrt_epoch_fading_falls_once_per_epoch():
    rates = schedules.learning_rates(0.05, 300, "sqrt-epoch", 100)
    assert rates[100] == 0.05
    assert rates[101] == pytest.approx(0.05 / 2**0.5)
    assert rates[300] == pytest.approx(0.05 / 3**0.5)


def test_step_decay_equals_equation_6b_of_the_paper():
    # Eq. (6b) with γ = 0.9, period = 1000: t = 1000 is round 1001
    decay = schedules.step_decay(0.9, 1000, 3000)
    assert decay[0] == decay[1000] == 1.0
    assert decay[1001] == 0.9
    assert decay[2001] == pytest.approx(0.81)


@given(st.sampled_from(schedules.FADING_KINDS), st.floats(0.05, 1.0), T)
def test_noise_on_gradients_follows_the_rate_and_noise_on_estimates_does_not(fading, factor, rounds):
    rates, decay = schedules.learning_rates(0.5, rounds, fading), schedules.step_decay(factor, 5, rounds)
    for noise_on, noise in [("gradient", rates * decay), ("estimate", decay)]:
        made = schedules.schedule(rates, decay, noise_on)
        np.testing.assert_array_equal(made.noise, noise)
        np.testing.assert_array_equal(made.rate, rates)
        assert made.releases == rounds + 1


def test_cosine_fading_is_half_a_cosine_wave():
    rates = schedules.learning_rates(1.0, 8, "cosine")
    np.testing.assert_allclose(rates[1:], (1 + np.cos(np.pi * np.arange(8) / 8)) / 2, rtol=1e-12)


def survives(rates, curvatures=None):
    """q_t by the definition: the share of round t's noise variance in the final loss."""
    if curvatures is None:
        return rates**2
    return sum(
        h * rates**2 * np.array([np.prod((1 - rates[t + 1 :] * h) ** 2) for t in range(len(rates))])
        for h in np.atleast_1d(curvatures)
    )


def left_at_the_end(noise, q):
    """The final noise variance, divided by that of equal noise with the same Σ 1/σ²."""
    return (q * noise**2).sum() * np.mean(noise**-2.0) / q.sum()


RATES = {fading: schedules.learning_rates(0.3, 12, fading) for fading in ("none", "linear", "cosine")}


@pytest.mark.parametrize("fading", RATES)
@pytest.mark.parametrize("curvature", [None, 0.4, 3.0, 4.5, 6.0, [0.2, 1.0, 4.0]])
def test_noise_by_the_formula_equals_the_numerical_minimum(fading, curvature):
    rates = RATES[fading]
    share = survives(rates, curvature) / rates**2
    q = rates**2 * np.maximum(share / share.max(), 1e-8)
    noise = (
        schedules.power_of_rate(rates, 0.5)
        if curvature is None
        else schedules.for_curvature(rates, curvature)
    )

    # With x = log 1/σ²: Σ q_t e^-x_t at a given mean of e^x_t, scale-free, so that x has no constraint.
    def objective(x):
        noise, cost = q * np.exp(-x), np.exp(x)
        return np.log(noise.sum()) + np.log(cost.sum()), cost / cost.sum() - noise / noise.sum()

    found = minimize(objective, np.zeros(len(rates)), jac=True, method="BFGS", options={"gtol": 1e-10})
    best = np.exp(-found.x / 2)
    best *= np.sqrt(np.mean(best**-2))
    np.testing.assert_allclose(noise, best, rtol=1e-4)
    assert left_at_the_end(noise, q) <= left_at_the_end(best, q) * (1 + 1e-9)
    # The cost of the limit on small shares: without the limit, the least value is (Σ√q)².
    q = survives(rates, curvature)
    least = np.sqrt(q).sum() ** 2 / (len(q) * q.sum())
    assert least * (1 - 1e-12) <= left_at_the_end(noise, q) <= 1.003 * least


def test_noise_saved_in_long_runs_equals_the_closed_form_integrals():
    """The final noise variance divided by that of equal noise, from integrals."""
    T = 4000
    rates = {fading: schedules.learning_rates(1.0, T, fading) for fading in ("none", "linear", "cosine")}
    linear = rates["linear"]
    simple = schedules.power_of_rate(linear, 0.5)
    flat = survives(linear)
    assert left_at_the_end(simple, flat) == pytest.approx(3 / 4, abs=1e-3)
    cosine = schedules.power_of_rate(rates["cosine"], 0.5)
    assert left_at_the_end(cosine, survives(rates["cosine"])) == pytest.approx(2 / 3, abs=1e-3)
    for fading, total, expected in [("linear", 3, 0.834), ("linear", 10, 0.505), ("none", 10, 0.200)]:
        h = total / rates[fading].sum()
        q = survives(rates[fading], h)
        noise = schedules.for_curvature(rates[fading], h)
        assert left_at_the_end(noise, q) == pytest.approx(expected, abs=5e-3)
    # If later steps remove early noise, the simple rule is worse than equal noise.
    q = survives(linear, 3 / linear.sum())
    assert left_at_the_end(simple, q) == pytest.approx(1.385, abs=5e-3)


LAWS = {
    "power": lambda rates: schedules.power_of_rate(rates, 0.5),
    "estimate": lambda rates: schedules.power_of_rate(rates, 1.0),
    "falling": lambda rates: schedules.power_of_rate(rates, -2.0),
    "flat": lambda rates: schedules.for_curvature(rates, 1e-9),
    "wiped out": lambda rates: schedules.for_curvature(rates, 1 / rates[len(rates) // 2]),
    "overshoots": lambda rates: schedules.for_curvature(rates, 1.9 / rates[0]),
    "diverges": lambda rates: schedules.for_curvature(rates, 1e3 / rates[0]),
    "many": lambda rates: schedules.for_curvature(rates, np.logspace(-6, 2, 30)),
}


@pytest.mark.parametrize("fading", schedules.FADING_KINDS)
@pytest.mark.parametrize("rounds", [1, 2, 50, 10_000])
@pytest.mark.parametrize("law", LAWS)
def test_noise_is_finite_and_has_the_same_privacy_cost_as_equal_noise(law, rounds, fading):
    rates = schedules.learning_rates(0.5, rounds, fading, 10)
    noise = LAWS[law](rates)
    assert noise.shape == rates.shape and np.isfinite(noise).all() and (noise > 0).all()
    assert np.mean(noise**-2.0) == pytest.approx(1.0)
    simple = schedules.power_of_rate(rates, 0.5)
    if law not in ("estimate", "falling"):
        assert np.ptp(np.log(noise / simple)) <= np.log(100) + 1e-9


def test_noise_by_power_and_by_curvature_agree_in_limiting_cases():
    rates = schedules.learning_rates(0.5, 40, "linear")
    half = schedules.power_of_rate(rates, 0.5)
    np.testing.assert_allclose(schedules.for_curvature(rates, 1e-9), half, rtol=1e-6)
    np.testing.assert_allclose(schedules.power_of_rate(rates, 0.0), 1.0)
    on_the_estimate = rates * schedules.power_of_rate(rates, 1.0)
    np.testing.assert_allclose(on_the_estimate, on_the_estimate[0])
    # Powers depend only on the ratios of steps, curvatures only on their products with the steps.
    np.testing.assert_allclose(schedules.power_of_rate(1e25 * rates, 0.5), half)
    np.testing.assert_allclose(
        schedules.for_curvature(10 * rates, 0.3), schedules.for_curvature(rates, 3.0), rtol=1e-9
    )
    np.testing.assert_allclose(
        schedules.for_curvature(rates, [3.0, 3.0]), schedules.for_curvature(rates, 3.0), rtol=1e-9
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedules.learning_rates(0.5, 10, "sine"),
        lambda: schedules.step_decay(0.0, 10, 10),
        lambda: schedules.step_decay(1.1, 10, 10),
        lambda: schedules.step_decay(0.9, 0, 10),
        lambda: schedules.schedule(np.ones(3), np.ones(3), "message"),
        lambda: schedules.power_of_rate(np.ones(3), 2.5),
        lambda: schedules.power_of_rate(np.array([1.0, 0.0]), 0.5),
        lambda: schedules.for_curvature(np.array([1.0, np.nan]), 0.5),
        lambda: schedules.for_curvature(np.ones(3), 0.0),
        lambda: schedules.for_curvature(np.ones(3), []),
        lambda: schedules.for_curvature(np.ones(3), [0.5, np.inf]),
    ],
)
def test_invalid_settings_are_rejected(call):
    with pytest.raises(ValueError, match="Expected"):
        call()

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topdp.plan import schedules

T = st.integers(1, 60)


@given(st.floats(1e-6, 1e3), T, st.sampled_from(schedules.FADINGS), st.integers(1, 20))
def test_step_sizes_begin_at_the_first_twice_and_never_grow(initial, rounds, fading, per_epoch):
    rates = schedules.learning_rates(initial, rounds, fading, per_epoch)
    assert len(rates) == rounds + 1
    assert rates[0] == rates[1] == initial  # the release before the loop uses the values of t = 0
    assert (np.diff(rates) <= 0).all()
    last = {"none": 1.0, "linear": 1 / rounds, "sqrt-epoch": (1 + (rounds - 1) // per_epoch) ** -0.5}
    assert rates[-1] == pytest.approx(initial * last[fading])


@given(st.floats(0.05, 1.0), st.integers(1, 20), T)
def test_decay_falls_by_its_factor_once_a_period(factor, period, rounds):
    decay = schedules.step_decay(factor, period, rounds)
    assert len(decay) == rounds + 1 and decay[0] == decay[1] == 1.0
    assert (decay <= 1).all() and decay[-1] == pytest.approx(factor ** ((rounds - 1) // period), rel=1e-9)
    falls = np.flatnonzero(np.diff(decay))
    np.testing.assert_allclose(decay[falls + 1], decay[falls] * factor, rtol=1e-9)
    assert factor == 1.0 or (falls == np.arange(period, rounds, period)).all()


@given(
    st.floats(0.05, 1.0), st.integers(1, 20), T, st.integers(1, 30), st.sampled_from(["none", "sqrt-epoch"])
)
def test_a_longer_schedule_begins_like_a_shorter_one(factor, period, rounds, more, fading):
    for write in (
        lambda T: schedules.step_decay(factor, period, T),
        lambda T: schedules.learning_rates(0.5, T, fading, period),
    ):
        np.testing.assert_array_equal(write(rounds), write(rounds + more)[: rounds + 1])


def test_linear_fading_ends_one_step_above_zero():
    rates = schedules.learning_rates(1.0, 4, "linear")
    np.testing.assert_allclose(rates, [1, 1, 0.75, 0.5, 0.25])


def test_sqrt_epoch_fading_falls_once_an_epoch():
    rates = schedules.learning_rates(0.05, 300, "sqrt-epoch", 100)
    assert rates[100] == 0.05
    assert rates[101] == pytest.approx(0.05 / 2**0.5)
    assert rates[300] == pytest.approx(0.05 / 3**0.5)


def test_step_decay_is_the_papers():
    # Eq. (6b) with γ = 0.9, period = 1000: t = 1000 is round 1001
    decay = schedules.step_decay(0.9, 1000, 3000)
    assert decay[0] == decay[1000] == 1.0
    assert decay[1001] == 0.9
    assert decay[2001] == pytest.approx(0.81)


@given(st.sampled_from(schedules.FADINGS), st.floats(0.05, 1.0), T)
def test_noise_in_the_step_follows_the_rate_and_noise_on_the_estimate_does_not(fading, factor, rounds):
    rates, decay = schedules.learning_rates(0.5, rounds, fading), schedules.step_decay(factor, 5, rounds)
    for noise_on, noise in [("gradient", rates * decay), ("estimate", decay)]:
        made = schedules.schedule(rates, decay, noise_on)
        np.testing.assert_array_equal(made.noise, noise)
        np.testing.assert_array_equal(made.rate, rates)
        assert made.releases == rounds + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedules.learning_rates(0.5, 10, "cosine"),
        lambda: schedules.step_decay(0.0, 10, 10),
        lambda: schedules.step_decay(1.1, 10, 10),
        lambda: schedules.step_decay(0.9, 0, 10),
        lambda: schedules.schedule(np.ones(3), np.ones(3), "message"),
    ],
)
def test_bad_settings_are_refused(call):
    with pytest.raises(ValueError, match="Expected"):
        call()

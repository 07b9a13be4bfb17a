import numpy as np
import pytest

from topdp.plan import schedules


def test_round_zero_and_iteration_zero_share_their_values():
    for fading in schedules.FADINGS:
        rates = schedules.learning_rates(0.5, 100, fading, 10)
        assert len(rates) == 101
        assert rates[0] == rates[1] == 0.5


def test_linear_fading_ends_one_step_above_zero():
    rates = schedules.learning_rates(1.0, 4, "linear")
    np.testing.assert_allclose(rates, [1, 1, 0.75, 0.5, 0.25])


def test_sqrt_epoch_fading_falls_once_an_epoch():
    rates = schedules.learning_rates(0.05, 300, "sqrt-epoch", 100)
    assert rates[100] == 0.05
    assert rates[101] == pytest.approx(0.05 / 2**0.5)
    assert rates[300] == pytest.approx(0.05 / 3**0.5)


def test_step_decay_is_the_papers():
    # Eq. (6b) with γ = 0.9, period = 1000: iteration 1000 is round 1001
    decay = schedules.step_decay(0.9, 1000, 3000)
    assert decay[0] == decay[1000] == 1.0
    assert decay[1001] == 0.9
    assert decay[2001] == pytest.approx(0.81)


def test_noise_in_the_step_follows_the_rate_and_noise_on_the_estimate_does_not():
    rates, decay = schedules.learning_rates(0.5, 10, "linear"), schedules.step_decay(0.5, 5, 10)
    np.testing.assert_allclose(schedules.schedule(rates, decay, "gradient").noise, rates * decay)
    np.testing.assert_allclose(schedules.schedule(rates, decay, "estimate").noise, decay)


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

"""The configuration keys of step sizes and optimisers: lists, warm-up, and contradictory settings."""

import numpy as np
import pytest

from topdp.runs.config import ConfigError, read
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline


def rates(*changes):
    return resolve(read(changes=["rounds=4", *changes]), counts=(10,) * 30).schedule.rate.tolist()


def test_a_list_of_learning_rates_is_used_one_per_round():
    assert rates("train.learning_rate=[1,2,3,4]") == [1, 1, 2, 3, 4]
    assert rates("train.learning_rate=[9,1,2,3,4]") == [9, 1, 2, 3, 4]


def test_fading_and_warm_up_follow_their_keys():
    named = "train.fading=step", "train.fading_factor=0.1", "train.fading_period=2", "train.learning_rate=1"
    np.testing.assert_allclose(rates(*named), [1, 1, 1, 0.1, 0.1])
    np.testing.assert_allclose(rates("train.fading=none", "train.warmup=1"), [0.25, 0.25, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ["train.learning_rate=[1,2]"],
            r"a list of 4 numbers, one for each round \(or of 5, .*got a list of 2",
        ),
        (
            ["train.learning_rate=[1,2,3,4]", "train.warmup=1"],
            "expected 0 with a list of learning rates, got 1. Put the warm-up into train.learning_rate",
        ),
        (["train.learning_rate=[]"], "a list of them, one for each round"),
        (["train.learning_rate=[1,-1,1,1]"], "a list of them, one for each round"),
        (["train.warmup=9"], "warm-up of 0 to 4"),
        (["train.optimiser=adamw"], "adam"),
        (["train.momentum=1.0"], "train.momentum"),
        (["privacy.clipping=layer"], "per-layer"),
    ],
)
def test_invalid_steps_and_optimisers_are_rejected(changes, words):
    with pytest.raises(ValueError, match=words):
        rates(*changes)


def test_adam_with_noise_on_estimates_is_rejected():
    config = read(changes=["train.optimiser=adam", "method.noise_on=estimate"])
    with pytest.raises(ConfigError, match="noise_on"):
        RunOutline.of(config)

"""The arguments of `topdp.train`: they agree with the configuration keys and their defaults."""

from __future__ import annotations

import inspect

import pytest
import torch

import topdp
from topdp.runs import user_training
from topdp.runs.config import ConfigError, RunConfig


@pytest.mark.parametrize("argument", sorted(user_training._places()))
def test_every_argument_has_the_default_of_its_key(argument):
    section, key = user_training._places()[argument]
    default = inspect.signature(topdp.train).parameters[argument].default
    expected = getattr(getattr(RunConfig(), section), key)
    # None stands for "none", for a section of defaults, and for the usual budget unless there is a sigma.
    if argument in ("features", "noise_schedule", "epsilon"):
        assert default is None
    elif argument in ("method", "clip", "learning_rate"):
        assert default == "auto"  # train() follows the job; a configuration names the paper's
    else:
        assert (list(default) if isinstance(default, tuple) else default) == expected


def test_a_budget_and_noise_together_are_refused():
    """Noise that is given would leave the budget without effect."""
    inputs = torch.rand(3, 20, 2)
    shards = topdp.Shards.from_arrays([(x, (x.sum(1) > 1).long()) for x in inputs])
    with pytest.raises(ConfigError, match=r"train\(\): expected either epsilon.*or sigma.*got both"):
        topdp.train(torch.nn.Linear(2, 2), shards, topdp.topology.ring(3), epsilon=1.0, sigma=0.001)


def test_an_unknown_argument_is_rejected_by_name():
    with pytest.raises(TypeError, match="epsilonn"):
        topdp.train(None, None, None, epsilonn=1.0)

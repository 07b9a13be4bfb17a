"""The arguments of `topdp.train`: they agree with the configuration keys and their defaults."""

from __future__ import annotations

import inspect

import pytest

import topdp
from topdp.runs import user_training
from topdp.runs.config import RunConfig


@pytest.mark.parametrize("argument", sorted(user_training._places()))
def test_every_argument_has_the_default_of_its_key(argument):
    section, key = user_training._places()[argument]
    default = inspect.signature(topdp.train).parameters[argument].default
    expected = getattr(getattr(RunConfig(), section), key)
    if argument in ("features", "noise_schedule"):  # None stands for "none", and for a section of defaults
        assert default is None
    else:
        assert (list(default) if isinstance(default, tuple) else default) == expected


def test_an_unknown_argument_is_rejected_by_name():
    with pytest.raises(TypeError, match="epsilonn"):
        topdp.train(None, None, None, epsilonn=1.0)

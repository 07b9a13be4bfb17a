"""The arguments of `topdp.train`: they agree with the configuration keys and their defaults."""

from __future__ import annotations

import inspect

import pytest
import torch

import topdp
from topdp.runs import user_training
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.job_settings import follows_job


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


def shards_of(*counts):
    """Return shards of sites with these numbers of records: is the sum of four numbers positive?"""
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn(count, 4, generator=generator) for count in (*counts, 200)]
    pairs = [(x, (x.sum(1) > 0).long()) for x in parts]
    return topdp.Shards.from_arrays(pairs[:-1], test=pairs[-1])


@pytest.mark.parametrize(
    ("counts", "graph", "method"),
    [
        ((500,), topdp.topology.single(), "central"),
        ((300, 200), topdp.topology.complete(2), "muffliato"),
        ((250, 150, 100), topdp.topology.complete(3), "correlated"),
    ],
)
def test_defaults_follow_the_job(counts, graph, method):
    result = topdp.train(torch.nn.Linear(4, 2), shards_of(*counts), graph, epsilon=2.0)
    assert result.config.method.name == method and not follows_job(result.config)
    assert result.accuracy["mean"] > 0.85 and result.privacy.epsilon["adaptive"] <= 2.0


def test_a_run_with_defaults_is_continued(tmp_path):
    model = torch.nn.Linear(4, 2)

    def train(**arguments):
        return topdp.train(
            model,
            shards_of(60, 50, 40),
            topdp.topology.complete(3),
            noise_seed=1,
            **arguments,
        )

    whole = train()
    train(out=tmp_path / "run", callbacks=[lambda running: running.stop("a test")])
    continued = train(out=tmp_path / "run", resume=True)
    assert continued.config == whole.config and torch.equal(continued.estimates, whole.estimates)

"""Runs whose rounds are executed several at a time end like runs whose rounds are executed one by one."""

import os

import numpy as np
import pytest
import torch

import topdp
from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.learning.gradients import ClippedGradients
from topdp.plan.noise_key import NoiseKey
from topdp.runs import run, run_stacks
from topdp.simulator import engine as engine_file
from topdp.simulator.stepping import fastest, releases_until_due

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("benchmarks/gpu.py compares on a GPU", allow_module_level=True)

from replays import Quick, by_calling
from topdp.simulator.cuda_replay import CudaReplay


@pytest.fixture
def stretched(monkeypatch):
    """`stretched()`: from now on execute several rounds at a time; returns the list of step lengths."""
    monkeypatch.setattr(engine_file, "_mixer", lambda *arguments: Quick(*arguments))

    def begin():
        steps = []

        def recorded(engine):
            several = CudaReplay(engine, by_calling)
            replay = several.advance

            def advance(state, at_most):
                found = replay(state, at_most)
                assert several.reason is None
                steps.append(found.releases - state.releases)
                return found

            several.advance = advance
            return several

        for place in (run, run_stacks):
            monkeypatch.setattr(place, "fastest", recorded)
        return steps

    return begin


def train(**settings):
    settings = {
        "method": "top-dp",
        "sigma": 0.1,
        "clip": 1.0,
        "rounds": 11,
        "evaluate_every": 4,
        "checkpoint_every": 3,
    } | settings
    return topdp.train(linear_model(), blobs(5), topology.ring(5), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "muffliato", "gossip": 2},
        {"batch": {"cycle": 7}},
        {"optimiser": "momentum", "average": 0.9},
        {"method": "central"},
    ],
)
def test_a_run_in_steps_of_several_rounds_ends_equally(stretched, settings, tmp_path):
    expected = train(**settings, out=tmp_path / "one")
    steps = stretched()
    found = train(**settings, out=tmp_path / "many")
    assert torch.equal(found.estimates, expected.estimates)
    assert found.metrics == expected.metrics
    each = 3 if "gossip" in settings else 1
    assert steps == [each * rounds for rounds in (1, 3, 1, 2, 2, 1, 2)]  # to rounds 0, 3, 4, 6, 8, 9, 11


def test_callbacks_see_every_round(stretched):
    seen, steps = [], stretched()
    train(callbacks=[lambda run: seen.append((run.round, run.estimates))], rounds=4)
    assert [round for round, _ in seen] == [0, 1, 2, 3, 4] and steps == [1] * 5
    assert not torch.equal(seen[1][1], seen[2][1])


def test_a_run_interrupted_within_a_step_resumes_from_its_last_state(stretched, tmp_path, monkeypatch):
    expected = train(out=tmp_path / "whole")
    stretched()
    real, broken = CudaReplay._make_round, []

    def interrupted(self, program, round):
        if round == 8 and not broken:
            broken.append(round)
            raise KeyboardInterrupt
        return real(self, program, round)

    monkeypatch.setattr(CudaReplay, "_make_round", interrupted)
    with pytest.raises(topdp.runs.training_loop.InterruptedRun):
        train(out=tmp_path / "run")
    found = train(out=tmp_path / "run", resume=True)
    assert broken and torch.equal(found.estimates, expected.estimates)
    assert found.metrics == expected.metrics


@pytest.mark.parametrize("checkpoints", [3, 100])
def test_a_run_interrupted_during_evaluation_resumes_without_rows_of_another_round(
    stretched, tmp_path, monkeypatch, checkpoints
):
    """After a step of several rounds, the rows of the last stored state no longer exist."""
    expected = train(out=tmp_path / "whole", checkpoint_every=checkpoints)
    stretched()
    real, broken = engine_file.Engine.evaluate, []

    def interrupted(self, state):
        if state.releases == 9 and not broken:
            broken.append(state)
            raise KeyboardInterrupt
        return real(self, state)

    monkeypatch.setattr(engine_file.Engine, "evaluate", interrupted)
    with pytest.raises(topdp.runs.training_loop.InterruptedRun):
        train(out=tmp_path / "run", checkpoint_every=checkpoints)
    found = train(out=tmp_path / "run", checkpoint_every=checkpoints, resume=True)
    assert broken and torch.equal(found.estimates, expected.estimates)
    assert found.metrics == expected.metrics


def test_without_a_gpu_the_engine_executes_single_rounds():
    shards = blobs(4)
    plan = PROTOCOLS["dsgd"](0.5).plan(topology.ring(4), constant_schedule(2), np.ones(4), 0)
    gradients = ClippedGradients(linear_model(), 1.0)
    engine = engine_file.Engine(plan, gradients, shards, batches_of(shards), seed=0, key=NoiseKey.of_seed(0))
    assert fastest(engine) is engine
    assert engine.advance(engine.start(gradients.flat.flatten()), at_most=100).releases == 1


def test_no_evaluation_or_checkpoint_round_is_skipped():
    for each in (1, 3):
        releases, seen = 0, []
        while releases < 26 * each:
            releases += releases_until_due(releases, each, 25, 10, 4)
            assert releases % each == 0
            seen.append(releases // each - 1)
        assert seen == [0, 4, 8, 10, 12, 16, 20, 24, 25]

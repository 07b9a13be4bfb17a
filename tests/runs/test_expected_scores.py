"""Expected scores of members: only public test records are used, with the noise of runs of `alone`."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from builders import blobs, plan_answers
from topdp.cli.app import app
from topdp.errors import InputError
from topdp.runs import expected_scores as scores
from topdp.runs.config import read
from topdp.runs.expected_scores import expected_scores
from topdp.runs.planner.setting_answers import PlannerQuestion
from topdp.runs.planning import plan_and_account
from topdp.runs.resolve import resolve

SIZES = [60, 20, 10]


def records_file(path, private=None):
    made = blobs(1, sum(SIZES))
    inputs = made.inputs[0].numpy() if private is None else np.full_like(made.inputs[0].numpy(), private)
    np.savez(
        path, train_inputs=inputs, train_labels=made.targets[0].numpy(),
        test_inputs=made.test_inputs.numpy(), test_labels=made.test_targets.numpy(),
    )  # fmt: skip
    return path


@pytest.fixture
def changes(tmp_path):
    return [
        f"data.name={records_file(tmp_path / 'blobs.npz')}", "data.partition=sizes", f"data.sizes={SIZES}",
        "topology.agents=3", "topology.kind=complete", "rounds=10", "privacy.clip=1", "model.name=linear",
        "method.name=dsgd", "data.public_test=true", "train.learning_rate=2",
    ]  # fmt: skip


def expected(changes):
    config = read(changes=changes)
    return expected_scores(PlannerQuestion.of(config).run, plan_answers(config, quick=True)["gains"])


def test_test_records_count_as_private_unless_declared_public(changes):
    with pytest.raises(InputError, match=r"Expected data\.public_test = true, got false"):
        expected([*changes, "data.public_test=false"])


def test_private_records_change_nothing(changes, tmp_path):
    found = expected(changes)
    records_file(tmp_path / "blobs.npz", private=1e3)
    assert expected(changes) == found
    assert found["metric"] == "accuracy" and found["records"] == 200


def test_less_noise_has_a_better_score(changes):
    found = expected(changes)
    assert found["alone"][0] > found["alone"][2] + 0.1 and found["together"][0] > found["alone"][2] + 0.1
    without = expected([*changes, "privacy.epsilon=1e6"])
    assert min(without["alone"]) > 0.9 and without["together"][0] == pytest.approx(
        without["alone"][0], abs=0.05
    )


def test_the_noise_is_that_of_a_run_of_alone(changes, monkeypatch):
    executed = []

    def spy(job, *arguments):
        executed.append((job.parts.run.counts, float(job.plan.full_scale[0])))
        return execute(job, *arguments)

    execute = scores.execute
    monkeypatch.setattr(scores, "execute", spy)
    expected([*changes, "privacy.epsilon=[1,2,0.5]"])
    config = read(changes=[*changes, "privacy.epsilon=[1,2,0.5]", "method.name=alone"])
    plan, _ = plan_and_account(resolve(config, None, tuple(SIZES)))
    for size, deviation in zip(SIZES, plan.full_scale, strict=True):
        used = [noise for counts, noise in executed if counts == (size,)]
        assert used == pytest.approx([deviation] * scores.SCORE_REPEATS, rel=1e-6)
    assert (90,) in {counts for counts, _ in executed}  # together, with as many records as all members


def test_of_many_different_members_a_few_have_scores(changes, monkeypatch):
    monkeypatch.setattr(scores, "MAX_SCORED_MEMBERS", 2)
    found = expected(changes)
    assert found["alone"][1] is None and found["together"][1] is None
    assert None not in (found["alone"][0], found["alone"][2])


def test_the_command_shows_expected_scores(changes):
    sets = [part for change in changes for part in ("--set", change)]
    shown = CliRunner().invoke(app, ["plan", *sets, "--json"], catch_exceptions=False)
    gains = json.loads(shown.stdout)["settings"][0]["gains"]
    assert gains["expected"]["metric"] == "accuracy" and len(gains["expected"]["alone"]) == 3
    table = CliRunner().invoke(app, ["plan", *sets], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
    assert "accuracy alone" in table and "Expected accuracy" in table
    quick = CliRunner().invoke(app, ["plan", *sets, "--quick", "--json"], catch_exceptions=False)
    assert "expected" not in json.loads(quick.stdout)["settings"][0]["gains"]

"""Whole runs whose rows are stored in bfloat16: files, resuming, models, and rejected settings."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

import topdp
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.agents.agreement.run_setup import expect_supported
from topdp.cli.app import app
from topdp.errors import InputError
from topdp.privacy.basics.refusals import NotCovered
from topdp.runs.config import ConfigError, read
from topdp.runs.methods import METHODS
from topdp.runs.model_export import export_run
from topdp.runs.rounding_check import distance, usual_noise
from topdp.runs.run import run, run_or_continue
from topdp.runs.run_folder import RunFolder
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import stackable


def train(rows="bfloat16", callbacks=(), **settings):
    given = {"sigma": 0.05, "clip": 1.0, "rounds": 6, "evaluate_every": 2, "checkpoint_every": 2}
    given |= {"method": "dsgd", "rows": rows, "noise_seed": 0}
    return topdp.train(
        linear_model(), blobs(5), topology.ring(5), callbacks=callbacks, **{**given, **settings}
    )


def kind_of(file, name):
    with safe_open(file, "numpy") as opened:
        return opened.get_slice(name).get_dtype()


def test_estimates_are_stored_in_bfloat16(tmp_path):
    result = train(out=tmp_path / "run")
    assert result.estimates.dtype == result.best.estimates.dtype == torch.bfloat16
    folder = RunFolder.open(tmp_path / "run")
    assert [kind_of(folder.path / f"{name}.safetensors", "estimates") for name in ("model", "best")] == [
        "BF16"
    ] * 2
    assert folder.estimates.dtype == np.float32
    np.testing.assert_array_equal(folder.estimates, result.estimates.float().numpy())
    assert result.plan.rounded == folder.plan.rounded == "bfloat16"
    # Models are float32, whatever type the rows have.
    assert {one.dtype for one in result.model(0).parameters()} == {torch.float32}
    exported = export_run(folder.path, tmp_path / "mean.safetensors", agent="mean")
    with safe_open(exported, "numpy") as opened:
        flat = np.concatenate([opened.get_tensor(name).ravel() for name in ("1.weight", "1.bias")])
    np.testing.assert_allclose(flat, folder.estimates.mean(axis=0), rtol=1e-6)


def test_a_resumed_run_ends_bit_for_bit_equal(tmp_path):
    whole = train()
    train(out=tmp_path / "run", callbacks=[lambda run: run.stop("now") if run.round == 3 else None])
    assert kind_of(tmp_path / "run" / "checkpoint.safetensors", "rows") == "BF16"
    again = train(out=tmp_path / "run", resume=True)
    assert torch.equal(again.estimates, whole.estimates) and again.metrics == whole.metrics
    assert torch.equal(again.best.estimates, whole.best.estimates)
    wide = train("model")
    assert not torch.equal(wide.estimates, whole.estimates.float())
    assert torch.allclose(wide.estimates, whole.estimates.float(), atol=0.05)


def changes_of(folder, *more):
    file = folder / "blobs.npz"
    if not file.exists():
        blobs_file(file, 200)
    small = ["topology.agents=5", "rounds=4", "model.name=linear", "train.rows=bfloat16", f"data.name={file}"]
    return [*small, "privacy.clip=1.0", *more]


def test_a_finished_run_is_read_in_bfloat16(tmp_path):
    config = read(None, None, changes_of(tmp_path, "method.name=dsgd"))
    first = run(config, tmp_path / "run", "cpu")
    again = run_or_continue(RunOutline.of(config), tmp_path / "run", "cpu")
    assert torch.equal(again.estimates, first.estimates) and again.estimates.dtype == torch.bfloat16
    assert again.privacy.epsilon == first.privacy.epsilon


@pytest.mark.filterwarnings("ignore:Rounding loses steps")  # the method no-noise
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_or_is_refused_with_rounded_rows(name):
    """Under the default guarantee; methods that hide rows run under the worst case, where all are seen."""
    asked = {"method": name, "sigma": None, "epsilon": 1.0, "gossip": 2, "rounds": 2}
    if name in ("top", "top-dp"):
        with pytest.raises(NotCovered, match="rounded to bfloat16"):
            train(**asked)
        asked["guarantee"] = "worst-case"
    found = train(**asked)
    assert found.estimates.dtype == torch.bfloat16 and found.estimates.isfinite().all()
    budget = found.privacy.answer(asked.get("guarantee", "adaptive")).largest
    assert (budget is None) if name == "no-noise" else budget == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    "command, more",
    [
        ("run", []),
        ("account", []),
        ("plan", []),
        ("account", ["--set", "method.name=dsgd", "--coalition", "2"]),
        ("account", ["--set", "method.name=dsgd", "--set", "privacy.guarantee=view"]),
        ("run", ["--set", "method.name=dsgd", "--set", "privacy.guarantee=claimed"]),
        ("audit", ["--set", "method.name=dsgd"]),
        ("sweep", ["--over", "privacy.epsilon=1,2"]),
        ("compare", ["--methods", "top,dsgd"]),
    ],
)
def test_commands_reject_uncovered_answers_with_code_2(tmp_path, monkeypatch, command, more):
    monkeypatch.chdir(tmp_path)
    changes = [part for change in changes_of(tmp_path, "method.name=top") for part in ("--set", change)]
    ended = CliRunner().invoke(app, [command, *changes, *more])
    assert isinstance(ended.exception, InputError) and ended.exception.code == 2, ended.output
    assert "rounded to bfloat16" in str(ended.exception)


def test_the_account_of_a_run_folder_refuses_uncovered_answers(tmp_path):
    run(read(None, None, changes_of(tmp_path, "method.name=dsgd")), tmp_path / "run", "cpu")
    ended = CliRunner().invoke(
        app, ["account", str(tmp_path / "run"), "--answers", "view,outsider", "--json"]
    )
    found = json.loads(ended.stdout)
    known = {name for name, status in found["status"].items() if status == "finite"}
    assert known == {"adaptive", "outsider", "worst_case"}
    assert {found["status"][name] for name in ("claimed", "view")} == {"refused"}
    text = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(text.replace('rows = "bfloat16"', 'rows = "model"'))
    ended = CliRunner().invoke(app, ["account", str(tmp_path / "run")])
    assert "Expected the plan of config.toml in" in str(ended.exception)


@pytest.mark.parametrize(
    "change, words",
    [
        ("robust.rule=trimmed", "robust.rule"),
        ("attack.name=drift", "attack.name"),
        ("train.optimiser=adam", "train.optimiser"),
        ("train.average=0.9", "train.average"),
    ],
)
def test_incompatible_settings_are_rejected(tmp_path, change, words):
    config = read(None, None, ["train.rows=bfloat16", "method.name=correlated", change])
    with pytest.raises(ConfigError, match=words):
        RunOutline.of(config)
    with pytest.raises(ConfigError, match=words):
        run(config, tmp_path / "run", "cpu")


def test_rounded_runs_are_not_stacked():
    runs = [RunOutline.of(read(None, None, ["train.rows=bfloat16", f"seed={seed}"])) for seed in range(2)]
    assert [len(stack) for stack in stackable(runs, 1e9, lambda config: (1, 1))] == [1, 1]


def test_real_agents_reject_rounded_rows():
    with pytest.raises(ConfigError, match="real agents support, got rows rounded to bfloat16"):
        expect_supported(RunOutline.of(read(None, None, ["train.rows=bfloat16"])), (100,))


def test_noise_too_small_to_preserve_small_steps_gives_a_warning():
    with pytest.warns(
        UserWarning, match="loses steps below .*: rows are stored in bfloat16.* noise has a deviation of only"
    ):
        train(sigma=1e-5)
    plan = train().plan  # without a warning
    step = plan[1]
    assert usual_noise(plan) == pytest.approx(np.abs(step.std).max(), rel=0.2)
    here, above = torch.tensor([0.05, 1.0], dtype=torch.bfloat16)
    assert distance(0.05, "bfloat16") == float(here.nextafter(above)) - float(here)

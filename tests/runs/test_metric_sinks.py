"""Sinks, tested with substitutes that record every call; TensorBoard also with the real package."""

import json
import os
import re
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import topdp
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.runs import metric_sinks
from topdp.runs.config import ConfigError


class Book:
    """Records every call; the result of a call is another such object."""

    def __init__(self, lines, name=""):
        self._lines, self._name = lines, name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Book(self._lines, f"{self._name}.{name}".lstrip("."))

    def __call__(self, *arguments, **options):
        self._lines.append((self._name, arguments, options))
        return Book(self._lines, self._name)


@pytest.fixture
def calls(monkeypatch):
    """All calls to the three packages, in order."""
    lines = []

    def module(name, **members):
        made = types.ModuleType(name)
        for key, value in members.items():
            setattr(made, key, value)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    module("tensorboard")
    module("torch.utils.tensorboard", SummaryWriter=Book(lines, "writer"))

    class Client(Book):
        def __init__(self, tracking_uri):
            super().__init__(lines, "client")
            lines.append(("client", (), {"tracking_uri": tracking_uri}))

        def get_experiment_by_name(self, name):
            return None

        def create_run(self, experiment, **options):
            lines.append(("client.create_run", (experiment,), options))
            return SimpleNamespace(info=SimpleNamespace(run_id="7"))

    module("mlflow")
    module("mlflow.tracking", MlflowClient=Client)
    module("wandb", init=Book(lines, "run"), Settings=lambda **options: options)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return lines


def train(**settings):
    given = {"epsilon": 2.0, "clip": 1.0, "rounds": 6, "evaluate_every": 3}
    return topdp.train(linear_model(), blobs(5), topology.ring(5), **{**given, **settings})


METRICS = {f"{name}/{key}" for name in ("accuracy", "loss") for key in ("mean", "min", "max")}


def test_tensorboard_gets_the_configuration_epsilons_and_evaluations(calls, tmp_path):
    result = train(sinks=["tensorboard"], out=tmp_path / "run")
    name, _, options = calls[0]
    assert (name, options["log_dir"]) == ("writer", str(tmp_path / "run" / "tensorboard"))
    assert calls[1][0] == "writer.add_text" and "privacy.epsilon = 2.0" in calls[1][1][1]
    scalars = [arguments for name, arguments, _ in calls if name == "writer.add_scalar"]
    assert ("epsilon/adaptive", result.privacy.epsilon["adaptive"], 0) in scalars
    logged = {(key, round) for key, _, round in scalars if not key.startswith("epsilon")}
    assert logged == {(key, round) for key in METRICS for round in (0, 3, 6)}
    assert ("accuracy/mean", result.accuracy["mean"], 6) in scalars
    assert calls[-1][0] == "writer.close"


def test_mlflow_gets_the_configuration_epsilons_and_evaluations(calls, tmp_path):
    result = train(sinks=["mlflow"], out=tmp_path / "run")
    assert calls[0][2]["tracking_uri"].startswith(f"sqlite:///{tmp_path}/run")
    assert ("client.create_run", "run") in [(name, options.get("run_name")) for name, _, options in calls]
    params = {arguments[1]: arguments[2] for name, arguments, _ in calls if name == "client.log_param"}
    assert params["privacy.epsilon"] == "2.0" and params["rounds"] == "6"
    metrics = [
        (*arguments[1:], options["step"]) for name, arguments, options in calls if "log_metric" in name
    ]
    assert ("accuracy/mean", result.accuracy["mean"], 6) in metrics
    assert ("epsilon/adaptive", result.privacy.epsilon["adaptive"], 0) in metrics
    assert calls[-1][:2] == ("client.set_terminated", ("7", "FINISHED"))


def test_weights_and_biases_stays_offline_by_default(calls, tmp_path, monkeypatch):
    train(sinks=["wandb"], out=tmp_path / "run")
    _, _, options = calls[0]
    assert options["mode"] == "offline" and options["dir"] == str(tmp_path / "run")
    assert options["settings"]["save_code"] is False and options["config"]["privacy.epsilon"] == 2.0
    assert [options["step"] for name, _, options in calls if name == "run.log"] == [0, 3, 6]
    assert calls[-1] == ("run.finish", (), {"exit_code": 0})
    monkeypatch.setenv("WANDB_MODE", "online")
    calls.clear()
    train(sinks=["wandb"], out=tmp_path / "asked")
    assert calls[0][2]["mode"] == "online"


@pytest.mark.parametrize("name", list(metric_sinks.SINKS))
def test_a_sink_changes_no_results_and_gets_only_public_numbers(calls, tmp_path, name):
    with_sink, without = (train(sinks=[name], out=tmp_path / "run", noise_seed=0), train(noise_seed=0))
    assert with_sink.estimates.equal(without.estimates)
    told = re.sub(re.escape(str(tmp_path)), "", json.dumps(calls, default=str))
    for word in (os.path.expanduser("~"), str(Path.cwd())):
        assert word not in told
    numbers = {float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", told)}
    config = {float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", without.config.to_toml())}
    public = {v for line in without.metrics for key in ("accuracy", "loss") for v in line[key].values()}
    epsilons = {value for value in without.privacy.epsilon.values() if value is not None}
    assert numbers <= config | public | epsilons | {1e-05}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("tensorboard", ("writer.close", (), {})),
        ("mlflow", ("client.set_terminated", ("7", "KILLED"), {})),
        ("wandb", ("run.finish", (), {"exit_code": 1})),
    ],
)
def test_an_interrupted_run_closes_its_sinks(calls, tmp_path, name, last):
    def fail(run):
        if run.round == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(sinks=[name], callbacks=[fail], out=tmp_path / "run")
    assert calls[-1] == last
    calls.clear()
    train(sinks=[name], out=tmp_path / "run", resume=True)  # resumes, and logs the remaining rounds
    assert calls and "6" in str(calls)
    train_again = train(out=tmp_path / "other")
    assert train_again.accuracy == train().accuracy


@pytest.mark.parametrize("name", list(metric_sinks.SINKS))
def test_a_missing_package_is_reported_before_training(tmp_path, monkeypatch, name):
    for module in ("tensorboard", "torch.utils.tensorboard", "mlflow", "mlflow.tracking", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install -c constraints.txt '.\[{name}\]'"):
        train(sinks=[name], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_sinks_are_rejected_with_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'"):
        train(sinks=["tensorbord"])
    with pytest.raises(ConfigError, match="Did you mean 'wandb'"):
        train(sinks=["wandbb"])


def test_the_command_line_accepts_sinks(topdp, calls, tmp_path):
    data = blobs_file(tmp_path / "blobs.npz", 300)
    small = ["--set", f'data.name="{data}"', "--set", "topology.agents=6", "--set", "topology.connection=0.5",
             "--set", "rounds=4", "--set", "privacy.sigma=0.1"]  # fmt: skip
    done = topdp("run", *small, "--sink", "tensorboard", "--sink", "wandb", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert {"writer.close", "run.finish"} <= {name for name, _, _ in calls}
    assert 'sinks = [\n    "tensorboard",\n    "wandb",\n]' in (tmp_path / "run" / "config.toml").read_text()
    wrong = topdp("run", *small, "--sink", "tensorbord", "--out", tmp_path / "wrong")
    assert wrong.code == 2 and "Did you mean 'tensorboard'" in " ".join(wrong.err.split())
    assert not (tmp_path / "wrong").exists()


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
@pytest.mark.filterwarnings("ignore")
def test_the_real_tensorboard_reads_the_written_events(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(sinks=["tensorboard"], out=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    read = {event.step: event.value for event in events.Scalars("accuracy/mean")}
    assert read == {line["round"]: pytest.approx(line["accuracy"]["mean"]) for line in result.metrics}

"""Runs of every task: regression, yes-no, several labels, own losses; with or without test records."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import topdp
from topdp import topology
from topdp.errors import DataError, InputError, TopdpError
from topdp.runs import config, run
from topdp.runs.config import ConfigError
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.training_loop import InterruptedRun

AGENTS, RECORDS = 4, 80
INPUTS = torch.randn(AGENTS + 1, RECORDS, 5, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
NUMBERS = INPUTS @ WEIGHTS
TARGETS = {
    "mse": NUMBERS[..., 0],
    "huber": NUMBERS,
    "bce": NUMBERS[..., 0] > 0,
    "several": (NUMBERS > 0).float(),
    "cross-entropy": NUMBERS.argmax(-1),
}


def shards(task, test=True):
    y = TARGETS[task]
    pairs = list(zip(INPUTS[:AGENTS], y[:AGENTS], strict=True))
    return topdp.Shards.from_arrays(pairs, test=(INPUTS[AGENTS], y[AGENTS]) if test else None)


def network(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, outputs))


def train(task, outputs, test=True, **settings):
    given = {
        "noise_seed": 0,
        "method": "plain",
        "sigma": 1e-3,
        "rounds": 60,
        "clip": 1.0,
        "learning_rate": 0.5,
        **settings,
    }
    return topdp.train(network(outputs), shards(task, test), topology.ring(AGENTS), **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "outputs", "settings", "reached"),
    [
        ("mse", 1, {"loss": "mse"}, {"r2": 0.8}),
        ("huber", 3, {"loss": "huber", "metrics": ["r2", "mae", "mse"]}, {"r2": 0.8}),
        ("bce", 1, {"loss": "bce", "metrics": ["accuracy", "auroc"]}, {"accuracy": 0.9, "auroc": 0.95}),
        ("several", 3, {"loss": "bce", "metrics": ["auroc", "f1-macro"]}, {"auroc": 0.9, "f1-macro": 0.8}),
        ("cross-entropy", 3, {"metrics": ["per-class-accuracy", "accuracy"]}, {"accuracy": 0.8}),
    ],
)
def test_every_task_learns_and_writes_its_metrics(tmp_path, task, outputs, settings, reached):
    result = train(task, outputs, out=tmp_path / "run", **settings)
    names = settings.get("metrics", ["mae", "r2"])
    assert [name for name in result.scores if name != "loss"] == names
    for name, least in reached.items():
        assert result.scores[name]["min"] > least
    said = result.model(2)(INPUTS[AGENTS]).detach()
    loss = topdp.learning.losses.named_loss(settings.get("loss", "cross-entropy"))
    y = TARGETS[task][AGENTS]
    assert result.metrics[-1]["loss_per_agent"][2] == pytest.approx(loss(said, y).mean().item(), rel=1e-4)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.metrics == result.metrics and folder.config == result.config
    for name in names:
        assert (tmp_path / "run" / f"{name}.png").stat().st_size > 5_000
        assert len(result.metrics[-1][f"{name}_per_agent"]) == AGENTS
    summary = json.loads(json.dumps(result.summary()))
    assert summary["metrics"] == result.scores and (summary["accuracy"] is None) == ("accuracy" not in names)


def test_the_best_round_has_the_least_error():
    result = train("mse", 1, loss="mse", metrics=["mae"], rounds=20, evaluate_every=1, learning_rate=2.0)
    values = [line["mae"]["mean"] for line in result.metrics]
    assert result.best.metric == "mae" and result.best.value == min(values) < values[-1]


def test_without_test_records_no_metrics_are_written(tmp_path):
    result = train("mse", 1, test=False, loss="mse", out=tmp_path / "run", rounds=4)
    assert result.metrics == [] and result.scores == {} and result.accuracy == {}
    assert result.summary()["metrics"] is None and result.summary()["accuracy"] is None
    assert not list((tmp_path / "run").glob("*.png")) and RunFolder.open(tmp_path / "run").metrics == []


@pytest.mark.parametrize(
    ("task", "outputs", "settings", "error", "reason"),
    [
        ("mse", 3, {}, DataError, "agent 0: expected labels that are whole numbers .* mse or huber"),
        ("mse", 1, {"loss": "bce"}, DataError, "agent 0: expected targets from 0 to 1"),
        ("cross-entropy", 3, {"loss": "bce"}, DataError, "expected targets from 0 to 1 for bce, got 2"),
        ("mse", 2, {"loss": "mse"}, ConfigError, r"outputs of shape \(1, 2\) for targets of shape \(1,\)"),
        ("bce", 1, {}, ConfigError, "each of the 2 classes.* For one logit use the loss bce"),
        ("cross-entropy", 2, {}, ConfigError, "each of the 3 classes"),
        ("mse", 1, {"loss": lambda o, t: (o[:, 0] - t).abs().mean()}, ConfigError, "one loss per example"),
        ("mse", 1, {"loss": "msee"}, InputError, "'mse' or 'huber'"),
        ("mse", 1, {"loss": "mse", "metrics": ["accuracy"]}, InputError, "mae, mse, r2 for the loss mse"),
    ],
)
def test_unsuitable_tasks_are_rejected_before_anything_is_written(
    tmp_path, task, outputs, settings, error, reason
):
    with pytest.raises(error, match=reason):
        train(task, outputs, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def absolute(outputs, targets):
    return (outputs[:, 0] - targets).abs()


def bias(outputs, targets):
    return (outputs[:, 0] - targets).mean()


def test_a_run_with_user_functions_resumes_only_with_the_same_functions(tmp_path):
    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 5:
            raise KeyboardInterrupt

    own = {"loss": absolute, "metrics": ["r2", bias], "rounds": 12, "noise_seed": 0}
    with pytest.raises(InterruptedRun):
        train("mse", 1, progress=stop, out=tmp_path / "run", **own)
    text = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert 'loss = "given in Python"' in text and '"given in Python: bias"' in text
    for forgotten in ({**own, "loss": "mse"}, {**own, "metrics": ["r2"]}, {**own, "metrics": None}):
        with pytest.raises(RunFolderError, match="Expected the settings of the run in"):
            train("mse", 1, out=tmp_path / "run", resume=True, **forgotten)
    resumed = train("mse", 1, out=tmp_path / "run", resume=True, **own)
    assert torch.equal(resumed.estimates, train("mse", 1, **own).estimates)
    assert list(resumed.scores) == ["r2", "bias", "loss"] and resumed.best.metric == "r2"


@pytest.fixture
def regression(tmp_path):
    """Numbers as targets, in the .npz form of users' files."""
    x, y = INPUTS.reshape(-1, 5).numpy(), TARGETS["mse"].reshape(-1).numpy()
    arrays = {
        "train_inputs": x[:320],
        "train_targets": y[:320],
        "test_inputs": x[320:],
        "test_targets": y[320:],
    }
    np.savez(tmp_path / "numbers.npz", **arrays)
    np.savez(tmp_path / "untested.npz", **{name: arrays[name] for name in ("train_inputs", "train_targets")})
    return tmp_path


def changes(file, *more):
    settings = [
        "topology.kind=ring",
        "topology.agents=4",
        "rounds=10",
        "privacy.sigma=0.01",
        "privacy.clip=1.0",
    ]
    return [f'data.name="{file}"', "train.loss=mse", *settings, *more]


def test_a_configuration_names_loss_and_metrics(regression, topdp):
    words = [
        word
        for one in changes(regression / "numbers.npz", "train.metrics=[r2, mae]")
        for word in ("--set", one)
    ]
    assert "train.metrics" in topdp("run", *words).err  # a list of bare words is not valid TOML
    words[-1] = 'train.metrics=["r2", "mae"]'
    done = topdp("run", *words, "--out", regression / "run")
    assert done.code == 0 and all(word in done.out for word in ("r2", "mae", "least to largest")), done.err
    assert "r2 " in done.err and "after round 10" in done.err and "%" not in done.out
    assert (regression / "run" / "r2.png").exists() and not (regression / "run" / "accuracy.png").exists()


def test_run_and_compare_report_missing_test_records(regression, topdp):
    words = [word for one in changes(regression / "untested.npz") for word in ("--set", one)]
    for command in (["run"], ["compare", "--methods", "plain,no-noise"]):
        done = topdp(*command, *words, "--out", regression / command[0])
        assert done.code == 0 and "no test records: nothing is evaluated" in done.out, done.err
        assert "The figure" not in done.out and not list((regression / command[0]).rglob("*.png"))
    found = json.loads(topdp("run", *words, "--out", regression / "again", "--json").out)
    assert found["metrics"] is None and found["accuracy"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("train.loss=msee", "train.loss: got 'msee'. Did you mean 'mse'"),
        ('train.metrics=["r22"]', "train.metrics: got 'r22'. Did you mean 'r2'"),
        ('train.metrics=["accuracy"]', "one of mae, mse, r2 for the loss mse"),
        (
            'train.loss="given in Python"',
            "train.loss: expected a name, got 'given in Python', which stands for a Python function",
        ),
        (
            'train.metrics=["given in Python: bias"]',
            "train.metrics: expected a name, got 'given in Python: bias', which stands for",
        ),
        ("data.partition=label", "one integer label for each record"),
    ],
)
def test_unknown_losses_metrics_and_partitions_are_rejected(regression, change, reason):
    with pytest.raises(TopdpError, match=reason):
        wanted = config.read(changes=changes(regression / "numbers.npz", change))
        run.run(wanted, regression / "run", "cpu")
    assert not (regression / "run").exists()


def test_the_former_name_of_cross_entropy_gives_the_same_configuration():
    assert config.read(changes=["train.loss=cross_entropy"]) == config.read()


def test_metric_lines_of_earlier_versions_can_be_read(tmp_path):
    train("cross-entropy", 3, rounds=2, out=tmp_path / "run")
    line = {
        "round": 0,
        "accuracy": {"mean": 0.5, "min": 0.4, "max": 0.6},
        "loss": {"mean": 1.0, "min": 1, "max": 1},
    }
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert RunFolder.open(tmp_path / "run").metrics == [line]


def test_an_undefined_metric_is_null_not_nan(tmp_path):
    """AUROC for test records that are all of one class."""
    y = TARGETS["bce"].clone()
    y[AGENTS] = True
    pairs = list(zip(INPUTS[:AGENTS], y[:AGENTS], strict=True))
    given = topdp.Shards.from_arrays(pairs, test=(INPUTS[AGENTS], y[AGENTS]))
    result = topdp.train(
        network(1),
        given,
        topology.ring(4),
        loss="bce",
        metrics=["auroc"],
        sigma=0.1,
        rounds=2,
        out=tmp_path / "run",
    )
    assert result.scores["auroc"] == {"mean": None, "min": None, "max": None} and result.best is None
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")


def test_early_stopping_knows_in_which_direction_a_metric_improves():
    """A falling MAE does not stop the run. For a function, the direction of improvement is unknown."""
    patient = topdp.runs.callbacks.StopEarly(patience=2)
    given = {"loss": "mse", "rounds": 30, "evaluate_every": 3, "learning_rate": 0.1}
    result = train("mse", 1, metrics=["mae"], callbacks=[patient], **given)
    assert result.stopped is None and result.scores["mae"]["mean"] < result.metrics[0]["mae"]["mean"]
    own = topdp.Metric("distance", lambda o, t: (o[:, 0] - t).abs().mean(), larger_is_better=False)
    result = train("mse", 1, metrics=[own], callbacks=[patient], **given)
    assert result.stopped is None and result.best.metric == "distance" and result.best.round == 30
    picky = topdp.runs.callbacks.StopEarly(patience=2, metric="bias")
    with pytest.raises(InputError, match=r"known whether more is better, got 'bias'.*larger_is_better=True"):
        train("mse", 1, metrics=[bias], callbacks=[picky], **given)
    assert train("mse", 1, metrics=[bias], **given).best.metric == "loss"


def test_sinks_get_a_number_per_class_and_no_undefined_ones():
    line = {
        "round": 3,
        "per-class-accuracy": {"mean": [0.5, None], "min": [0.25, None], "max": [1.0, None]},
        "auroc": {"mean": None, "min": None, "max": None},
        "loss": {"mean": 2.0, "min": 1.0, "max": 3.0},
    }
    found = topdp.runs.metric_sinks._values(line)
    assert found == {
        "per-class-accuracy/mean/0": 0.5, "per-class-accuracy/min/0": 0.25, "per-class-accuracy/max/0": 1.0,
        "loss/mean": 2.0, "loss/min": 1.0, "loss/max": 3.0,
    }  # fmt: skip


class PerPosition(nn.Module):
    """Scores [b, classes, positions] for tokens [b, positions]: is the token above 2?"""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(6, 8)
        self.linear = nn.Linear(8, 2)

    def forward(self, tokens):
        return self.linear(self.embedding(tokens)).movedim(-1, 1)


def test_records_can_have_a_label_for_each_position():
    tokens = torch.randint(6, (4, 60, 7), generator=torch.Generator().manual_seed(0))
    labels = (tokens > 2).long()
    pairs = list(zip(tokens[:3], labels[:3], strict=True))
    given = topdp.Shards.from_arrays(pairs, test=(tokens[3], labels[3]), dtype=torch.int64)
    assert given.classes is None
    settings = {"noise_seed": 0, "sigma": 1e-3, "rounds": 40, "clip": 1.0, "learning_rate": 1.0}
    result = topdp.train(
        PerPosition(), given, topology.ring(3), metrics=["accuracy", "auroc"], method="plain", **settings
    )
    assert result.accuracy["min"] > 0.95 and result.scores["auroc"]["min"] > 0.95
    classes_last = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 2))
    with pytest.raises(ConfigError, match=r"\[batch, classes, 7\].*outputs.movedim\(-1, 1\)"):
        topdp.train(classes_last, given, topology.ring(3), **settings)

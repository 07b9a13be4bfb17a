"""Runs on features: from the command line and from Python, resuming, and rejections without any files."""

import numpy as np
import pytest
import torch
from torch import nn

import topdp
from topdp import topology
from topdp.errors import ExitCode, InputError
from topdp.learning.models import linear
from topdp.runs import config, run
from topdp.runs.named_records import load_shards, named_features, record_counts
from topdp.runs.run_folder import RunFolderError
from topdp.runs.run_outline import RunOutline
from topdp.runs.training_loop import InterruptedRun


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPDP_CACHE", str(tmp_path / "cache"))


def images(records, seed=0, shape=(1, 8, 8)):
    """Stripes along one of the two axes."""
    generator = np.random.default_rng(seed)
    labels = np.arange(records) % 2
    stripes = np.sin(np.arange(8) * 2.2)
    upright = np.where(
        labels[:, None, None, None] == 0, stripes[None, None, :, None], stripes[None, None, None]
    )
    return (upright + 0.3 * generator.normal(size=(records, *shape))).astype(np.float32), labels


@pytest.fixture
def small(tmp_path):
    x, y = images(140)
    np.savez(
        tmp_path / "d.npz",
        train_inputs=x[:100],
        train_labels=y[:100],
        test_inputs=x[100:],
        test_labels=y[100:],
    )

    def make(*changes):
        basis = [
            f'data.name="{tmp_path / "d.npz"}"',
            "data.features=scattering",
            "model.name=linear",
            "topology.kind=ring",
            "topology.agents=4",
            "rounds=12",
            "train.checkpoint_every=5",
            "train.learning_rate=20",
            "privacy.sigma=0.02",
            "privacy.clip=0.5",
            "noise_seed=0",
        ]
        return config.read(changes=[*basis, *changes])

    return make


def test_a_linear_model_on_features_learns(small, tmp_path):
    result = run.run(small(), tmp_path / "run", "cpu")
    assert result.estimates.shape == (4, 2 * 81 * 4)
    assert result.metrics[-1]["accuracy"]["mean"] > 0.95
    assert 'features = "scattering"' in (tmp_path / "run" / "config.toml").read_text()


def interrupt(stage, done=0, total=None, /, **details):
    if stage == "training" and done == 7:
        raise KeyboardInterrupt


def test_a_run_on_features_resumes_bit_for_bit(small, tmp_path):
    whole = run.run(small(), tmp_path / "whole", "cpu")
    with pytest.raises(InterruptedRun):
        run.run(small(), tmp_path / "broken", "cpu", progress=interrupt)
    assert torch.equal(run.resume(tmp_path / "broken", "cpu").estimates, whole.estimates)


def test_a_run_is_not_resumed_with_other_features(small, tmp_path):
    with pytest.raises(InterruptedRun):
        run.run(small(), tmp_path / "run", "cpu", progress=interrupt)
    place = tmp_path / "run" / "config.toml"
    place.write_text(place.read_text().replace("feature_groups = 27", "feature_groups = 9"))
    with pytest.raises(RunFolderError, match="Expected the same records, in the same order"):
        run.resume(tmp_path / "run", "cpu")


def test_a_validation_split_contains_features_too(small):
    plain = load_shards(RunOutline.of(small("data.validation=0.3", "data.features=none")))
    mapped = load_shards(RunOutline.of(small("data.validation=0.3")))
    assert torch.equal(plain.test_targets, mapped.test_targets) and plain.counts == mapped.counts == (17,) * 4
    features = named_features(small())
    torch.testing.assert_close(mapped.test_inputs, features(plain.test_inputs), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(mapped.inputs[3], features(plain.inputs[3]), atol=1e-6, rtol=1e-4)


def test_counting_records_computes_no_features(small, tmp_path):
    assert record_counts(RunOutline.of(small("data.partition=dirichlet")))
    assert not (tmp_path / "cache").exists()


def shards(records=40, agents=4):
    x, y = images(records * (agents + 1))
    pairs = [(x[i::5], y[i::5]) for i in range(5)]
    return topdp.Shards.from_arrays(pairs[:4], test=pairs[4])


SETTINGS = {"sigma": 0.02, "clip": 0.5, "rounds": 10, "learning_rate": 20.0, "device": "cpu"}


def test_train_accepts_features_by_name_or_as_a_function(tmp_path):
    graph = topology.ring(4)
    named = topdp.train(linear(324, 2), shards(), graph, features="scattering", **SETTINGS)
    assert named.config.data.features == "scattering" and named.metrics[-1]["accuracy"]["mean"] > 0.95

    def energy(record):
        """The energy of differences along each axis."""
        return torch.stack([record.diff(dim=1).square().mean(), record.diff(dim=2).square().mean()])

    own = topdp.train(linear(2, 2), shards(), graph, features=energy, out=tmp_path / "run", **SETTINGS)
    assert own.config.data.features == "given" and own.metrics[-1]["accuracy"]["mean"] > 0.95


def test_train_resumes_only_with_the_same_feature_function(tmp_path):
    def train(function, **more):
        return topdp.train(
            linear(64, 2),
            shards(),
            topology.ring(4),
            features=function,
            out=tmp_path / "run",
            **more,
            **SETTINGS,
        )

    with pytest.raises(InterruptedRun):
        train(lambda record: record.flatten(), progress=interrupt)
    with pytest.raises(RunFolderError, match="Expected the same records, in the same order"):
        train(lambda record: record.flatten() * 2, resume=True)
    assert train(lambda record: record.flatten(), resume=True).metrics


class Centred(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)).flatten(1)


@pytest.mark.parametrize(
    "features, words",
    [
        (Centred(), "one record at a time"),
        (lambda record: record[record > 0], "one shape for all records"),
        ("scatering", "Did you mean 'scattering'"),
        ("given", "stands for a Python function"),
        (3, "a name, a function of one record or a torch module"),
    ],
)
def test_train_rejects_unsuitable_feature_maps_before_anything_is_written(features, words, tmp_path):
    with pytest.raises(InputError, match=words):
        topdp.train(
            linear(64, 2), shards(), topology.ring(4), features=features, out=tmp_path / "run", **SETTINGS
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "shape, changes, words",
    [
        ((30,), [], "Expected images [channels, height, width]"),
        ((1, 7, 9), [], "at least 8x8"),
        ((9, 9, 3), [], "Channels come first"),
        ((1, 8, 8), ["data.feature_groups=10"], "divide the 81 channels"),
        ((1, 8, 8), ["data.features=scatter"], "Did you mean 'scattering'"),
        ((1, 8, 8), ["data.features=given"], "stands for a Python function"),
        ((1, 8, 8), ["data.feature_groups=0"], "data.feature_groups"),
    ],
)
def test_unsuitable_records_or_settings_end_with_code_2_and_leave_no_files(
    shape, changes, words, tmp_path, topdp
):
    x, y = np.random.default_rng(0).normal(size=(40, *shape)), np.arange(40) % 2
    np.savez(tmp_path / "d.npz", train_inputs=x, train_labels=y, test_inputs=x, test_labels=y)
    basis = [f'data.name="{tmp_path / "d.npz"}"', "data.features=scattering", "topology.agents=4"]
    chosen = [part for change in [*basis, *changes] for part in ("--set", change)]
    ended = topdp("run", *chosen, "--out", tmp_path / "run")
    assert ended.code == ExitCode.INPUT and words in " ".join(ended.err.split())
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()

"""Exported models: other libraries read the file, and the model computes the same."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import topdp
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.errors import InputError
from topdp.runs import config
from topdp.runs import run as runs
from topdp.runs.model_export import export_run
from topdp.runs.named_records import load_shards
from topdp.runs.run_outline import RunOutline


@pytest.fixture(scope="module")
def shards():
    return blobs(5)


@pytest.fixture(scope="module")
def given(shards, tmp_path_factory):
    """A run from Python, in a folder."""
    return topdp.train(
        linear_model(), shards, topology.ring(5), sigma=0.3, clip=1.0, rounds=9, evaluate_every=3,
        out=tmp_path_factory.mktemp("given") / "run",
    )  # fmt: skip


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A run of a configuration; its data file is then deleted."""
    place = tmp_path_factory.mktemp("named")
    data = blobs_file(place / "blobs.npz", 300)
    wanted = config.read(
        changes=[f'data.name="{data}"', "topology.agents=6", "topology.connection=0.5", "rounds=6",
                 "privacy.sigma=0.05", "train.evaluate_every=2"]
    )  # fmt: skip
    result = runs.run(wanted, place / "run")
    inputs = load_shards(RunOutline.of(wanted)).test_inputs
    data.unlink()
    return result, inputs


READERS = {
    "m.safetensors": load_file,
    "m.pt": lambda file: torch.load(file, weights_only=True),
}


@pytest.mark.parametrize("file", list(READERS))
def test_other_libraries_read_the_exported_file(given, shards, tmp_path, file):
    written = given.export(tmp_path / file, agent=3)
    module = linear_model()
    module.load_state_dict(READERS[file](written))
    with torch.no_grad():
        assert torch.equal(module(shards.test_inputs), given.model(3)(shards.test_inputs))


def test_the_best_model_and_the_mean_can_be_exported(given, tmp_path):
    best = load_file(given.export(tmp_path / "best.bin", "safetensors", agent=1, best=True))
    expected = given.best_model(1).state_dict()
    assert best.keys() == expected.keys() and all(best[key].equal(expected[key]) for key in best)
    mean = load_file(given.export(tmp_path / "m.safetensors", agent="mean"))
    flat = torch.cat([mean[key].flatten() for key in expected])
    torch.testing.assert_close(flat, given.estimates.mean(0), rtol=0, atol=1e-7)


def test_the_file_contains_frozen_and_tied_parameters_and_buffers(shards, tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
            self.one = torch.nn.Linear(16, 16, bias=False)
            self.two = torch.nn.Linear(16, 16, bias=False)
            self.two.weight = self.one.weight
            self.last = torch.nn.Linear(16, 3)
            self.register_buffer("shift", torch.ones(16))

        def forward(self, x):
            return self.last(self.two(self.one(self.frozen(x.flatten(1)) + self.shift)))

    torch.manual_seed(0)
    result = topdp.train(Tied(), shards, topology.ring(5), sigma=0.1, rounds=2)
    fresh = Tied()
    fresh.load_state_dict(load_file(result.export(tmp_path / "tied.safetensors")))
    assert torch.equal(fresh(shards.test_inputs), result.model(0)(shards.test_inputs))


def test_a_run_of_a_configuration_is_exported_without_its_data(named, topdp, tmp_path):
    result, inputs = named
    done = topdp("export", result.folder, "--agent", 2, "--out", tmp_path / "m.pt")
    assert done.code == 0 and "m.pt" in done.out.replace("\n", ""), done.err
    module = result.model(0)
    module.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert torch.equal(module(inputs), result.model(2)(inputs))
    done = topdp("export", result.folder, "--agent", "mean", "--best", "--json", "--out", tmp_path / "b.pt")
    assert done.code == 0 and '"agent": "mean"' in done.out


def test_a_run_from_python_exports_its_trained_parameters_only(given, topdp, shards, tmp_path):
    done = topdp("export", given.folder, "--agent", 4, "--out", tmp_path / "m.safetensors")
    assert done.code == 0, done.err
    module = linear_model()
    module.load_state_dict(load_file(tmp_path / "m.safetensors"))
    assert torch.equal(module(shards.test_inputs), given.model(4)(shards.test_inputs))
    refused = topdp("export", given.folder, "--out", tmp_path / "m.onnx")
    assert refused.code == 2 and "result.export" in " ".join(refused.err.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--agent", "9", "--out", "m.pt"], "from 0 to 5"),
        (["--agent", "first", "--out", "m.pt"], "'mean'"),
        (["--agent", "-1", "--out", "m.pt"], "from 0 to 5"),
        (["--out", "m.torch"], "--format"),
        (["--format", "safetensor", "--out", "m.bin"], "Did you mean 'safetensors'"),
        (["--format", "torchscript", "--out", "m.bin"], "Known: safetensors"),
    ],
)
def test_invalid_arguments_give_one_line(named, topdp, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    done = topdp("export", named[0].folder, *arguments)
    assert done.code == 2 and says in " ".join(done.err.split()) and "Traceback" not in done.err
    assert not list(tmp_path.iterdir())


def test_missing_unfinished_and_damaged_runs_give_one_line(named, topdp, tmp_path):
    assert "run.json" in topdp("export", tmp_path, "--out", tmp_path / "m.pt").err
    shards = topdp_shards_without_test()
    with pytest.raises(ZeroDivisionError):
        topdp_train(shards, tmp_path / "broken", callbacks=[lambda run: 1 / 0])
    done = topdp("export", tmp_path / "broken", "--out", tmp_path / "m.pt")
    assert done.code == 2 and "Finish the run first" in " ".join(done.err.split())
    topdp_train(shards, tmp_path / "whole")
    done = topdp("export", tmp_path / "whole", "--best", "--out", tmp_path / "m.pt")
    assert done.code == 2 and "best.safetensors" in done.err
    (tmp_path / "whole" / "model.safetensors").write_bytes(b"no such thing")
    done = topdp("export", tmp_path / "whole", "--out", tmp_path / "m.pt")
    assert done.code == 2 and "could not read model.safetensors" in " ".join(done.err.split())


def topdp_shards_without_test():
    x = torch.randn(5, 20, 16)
    return topdp.Shards.from_arrays([(one, torch.arange(20) % 3) for one in x])


def topdp_train(shards, out, **options):
    return topdp.train(linear_model(), shards, topology.ring(5), sigma=0.1, rounds=3, out=out, **options)


def test_onnx_without_its_packages_is_rejected(given, tmp_path, monkeypatch):
    monkeypatch.setattr("topdp.runs.model_export.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"onnx and onnxscript.*pip install -c constraints.txt '.\[onnx\]'"):
        given.export(tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.skipif(find_spec("onnx") is None or find_spec("onnxscript") is None, reason="needs onnx")
@pytest.mark.filterwarnings("ignore")
def test_the_onnx_model_gives_the_same_outputs_for_any_batch_size(named, tmp_path):
    from onnx.reference import ReferenceEvaluator

    result, inputs = named
    session = ReferenceEvaluator(str(export_run(result.folder, tmp_path / "m.onnx", agent=1)))
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]  # the file contains the weights
    for count in (1, 7):
        (outputs,) = session.run(None, {"inputs": inputs[:count].numpy()})
        expected = result.model(1)(inputs[:count]).detach().numpy()
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)

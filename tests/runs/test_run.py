"""Runs from a configuration to a run folder, on a user's own small data."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import topdp
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.base.files import FileError
from topdp.errors import DataError, InputError
from topdp.runs import config, planning, run
from topdp.runs.assembly import choose_device
from topdp.runs.config import ConfigError
from topdp.runs.named_records import load_shards
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.run_outline import RunOutline
from topdp.runs.training_loop import InterruptedRun
from topdp.simulator.engine import Engine, WrongReplayError


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Separable images in the .npz form of users' files."""
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 300)


WORST = "privacy.guarantee=worst-case"  # fast also for many rounds


@pytest.fixture
def small(data):
    def make(*changes):
        basis = [
            f'data.name="{data}"',
            "topology.agents=6",
            "topology.connection=0.5",
            "rounds=12",
            "train.evaluate_every=4",
            "train.checkpoint_every=5",
            "privacy.sigma=0.05",
            "privacy.clip=1.0",
            "noise_seed=0",
        ]
        if any(change.startswith("privacy.epsilon=") for change in changes):
            basis.remove("privacy.sigma=0.05")
        return config.read(changes=[*basis, *changes])

    return make


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "topdp", *map(str, arguments)], capture_output=True, text=True, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("method", ["no-noise", "plain", "top", "top-dp"])
def test_every_method_trains_and_writes_a_complete_folder(small, tmp_path, method, mode):
    result = run.run(small(f"method.name={method}", f"method.mode={mode}", "rounds=60"), tmp_path / "run")
    assert result.accuracy["mean"] > 0.8
    folder = RunFolder.open(tmp_path / "run")
    assert folder.state == "done"
    assert sorted(os.listdir(tmp_path / "run")) == [
        "accuracy.png",
        "best.safetensors",
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "plan.npz",
        "privacy.json",
        "run.json",
    ]
    assert folder.config == result.config
    assert folder.plan.digest() == result.plan.digest()
    np.testing.assert_array_equal(folder.estimates, result.estimates.numpy())
    assert [line["round"] for line in folder.metrics] == list(range(0, 61, 4))


@pytest.mark.slow
@pytest.mark.parametrize("batch", ['"full"', "{cycle=7}", "{poisson=7}"])
def test_a_killed_run_resumes_bit_for_bit(small, tmp_path, batch):
    wanted = small(f"data.batch={batch}")
    whole = run.run(wanted, tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 8:
            raise Killed

    with pytest.raises(Killed):
        run.run(wanted, tmp_path / "killed", progress=kill)
    assert RunFolder.open(tmp_path / "killed").state == "running"
    resumed = run.resume(tmp_path / "killed")
    assert torch.equal(resumed.estimates, whole.estimates)
    assert resumed.metrics == whole.metrics


def test_after_ctrl_c_the_run_resumes_from_the_same_round(small, tmp_path):
    def interrupt(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 7:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun) as stopped:
        run.run(small(), tmp_path / "run", progress=interrupt)
    assert stopped.value.folder == tmp_path / "run"
    folder = RunFolder.open(tmp_path / "run")
    assert (folder.state, folder.checkpoint_size()[0]) == ("interrupted", 8)
    assert torch.equal(run.resume(tmp_path / "run").estimates, run.run(small(), tmp_path / "b").estimates)


def test_finished_runs_and_other_folders_are_not_resumed(small, tmp_path):
    run.run(small(), tmp_path / "run")
    with pytest.raises(RunFolderError, match="nothing to resume"):
        run.resume(tmp_path / "run")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text('{"format": 99}')
    with pytest.raises(RunFolderError, match="foreign"):
        run.resume(tmp_path / "foreign")
    with pytest.raises(RunFolderError, match="nowhere"):
        run.resume(tmp_path / "nowhere")


def test_run_or_continue_reads_finished_and_resumes_interrupted_runs(small, tmp_path, monkeypatch):
    def interrupt(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 7:
            raise KeyboardInterrupt

    whole = run.run_or_continue(RunOutline.of(small()), tmp_path / "whole")
    with pytest.raises(InterruptedRun):
        run.run_or_continue(RunOutline.of(small()), tmp_path / "run", progress=interrupt)
    with pytest.raises(RunFolderError, match="got other values of seed"):
        run.run_or_continue(RunOutline.of(small("seed=9")), tmp_path / "run")
    assert torch.equal(
        run.run_or_continue(RunOutline.of(small()), tmp_path / "run").estimates, whole.estimates
    )
    monkeypatch.setattr(run, "execute", lambda *_: pytest.fail("ran again"))
    read = run.run_or_continue(RunOutline.of(small()), tmp_path / "run")
    assert torch.equal(read.estimates, whole.estimates) and read.plan.digest() == whole.plan.digest()
    ends = [one.summary() for one in (read, whole)]
    assert all(ends[0][key] == ends[1][key] for key in ("rounds", "accuracy", "privacy"))
    first = load_shards(RunOutline.of(small()))
    assert torch.equal(read.model(2)(first.test_inputs), whole.model(2)(first.test_inputs))


def test_a_finished_run_on_other_data_is_rejected(small, tmp_path):
    own = blobs_file(tmp_path / "own.npz", 300)
    wanted = small(f'data.name="{own}"')
    run.run_or_continue(RunOutline.of(wanted), tmp_path / "run")
    blobs_file(tmp_path / "own.npz", 240)
    with pytest.raises(RunFolderError, match="records, sensitivity"):
        run.run_or_continue(RunOutline.of(wanted), tmp_path / "run")


def test_a_diverged_run_is_marked_and_not_resumed(small, tmp_path):
    with pytest.raises(FloatingPointError):
        run.run(small("train.learning_rate=1e25"), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").state == "diverged"
    with pytest.raises(RunFolderError, match="diverged"):
        run.resume(tmp_path / "run")


def test_a_run_with_a_wrong_replay_is_not_resumed(small, tmp_path, monkeypatch):
    def wrong(self, state, at_most=1):
        raise WrongReplayError("round 3")

    monkeypatch.setattr(Engine, "advance", wrong)
    with pytest.raises(WrongReplayError):
        run.run(small(), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").state == "wrong"
    with pytest.raises(RunFolderError, match="recorded round was wrong"):
        run.resume(tmp_path / "run")


def test_a_plan_that_differs_from_the_configuration_is_rejected(small, tmp_path):
    def stop(stage, done=0, total=None, /, **details):
        if stage == "training":
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        run.run(small(), tmp_path / "run", progress=stop)
    text = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(text.replace("sigma = 0.05", "sigma = 0.5"))
    with pytest.raises(RunFolderError, match=r"plan\.npz"):
        run.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("clip = 1.0", "clip = 10.0", "clip, sensitivity"),
        ("delta = 1e-05", "delta = 0.5", "delta"),
        ('name = "mlp"', 'name = "mlp"', None),
        ('partition = "iid"', 'partition = "iid"\nrecords = 5', "records, sensitivity"),
        ('batch = "full"', "batch = { cycle = 2 }", "sensitivity, batches"),
        ('adjacency = "add-remove"', 'adjacency = "replace-one"', "adjacency"),
        ('guarantee = "adaptive"', 'guarantee = "worst-case"', "guarantee"),
        ("colluders = 1", "colluders = 2", "colluders"),
        ("epsilon = 1.0", "epsilon = 0.5", "epsilon"),
    ],
)
def test_a_run_is_not_resumed_under_settings_that_differ_from_its_account(
    small, tmp_path, before, after, says
):
    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 5:
            raise KeyboardInterrupt

    wanted = small("method.name=plain", "method.noise_schedule.kind=constant").model_dump(exclude_none=True)
    del wanted["privacy"]["sigma"]  # calibrated: the configuration does not contain the noise
    with pytest.raises(InterruptedRun):
        run.run(config.parse(wanted), tmp_path / "run", progress=stop)
    file = tmp_path / "run" / "config.toml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    if says is None:
        run.resume(tmp_path / "run")
        return
    with pytest.raises(RunFolderError, match=says):
        run.resume(tmp_path / "run")
    if "records" not in says:  # the account of a run takes the number of records from the run folder
        with pytest.raises(RunFolderError, match=says):
            planning.account_of_run(tmp_path / "run")


@pytest.mark.parametrize("batch", [{"cycle": 4}, {"poisson": 4}])
@pytest.mark.parametrize(("before", "after"), [("agents", "records"), ("records", "agents")])
def test_a_run_is_not_continued_with_another_weighting_of_records(tmp_path, batch, before, after):
    """Batches of the same size then use a record more often, at the same sensitivity."""
    pairs = [(torch.rand(count, 2), torch.arange(count) % 2) for count in (8, 8, 80)]
    topdp.train(
        "linear",
        topdp.Shards.from_arrays(pairs),
        topology.ring(3),
        method="dsgd",
        guarantee="worst-case",
        rounds=10,
        clip=1.0,
        learning_rate=0.1,
        batch=batch,
        weighting=before,
        out=tmp_path / "run",
    )
    file = tmp_path / "run" / "config.toml"
    text = file.read_text()
    assert f'weighting = "{before}"' in text
    file.write_text(text.replace(f'weighting = "{before}"', f'weighting = "{after}"'))
    with pytest.raises(RunFolderError, match="batches"):
        topdp.load(tmp_path / "run")
    file.write_text(text)
    topdp.load(tmp_path / "run")


def test_a_run_is_not_resumed_with_records_in_another_order(tmp_path):
    """In a cycle some records would be used more often than the account states."""
    inputs, labels = torch.rand(3, 12, 4), torch.arange(36).reshape(3, 12) % 2
    model = torch.nn.Linear(4, 2)

    def train(roll, **options):
        pairs = zip(inputs, labels, strict=True)
        shards = topdp.Shards.from_arrays([(x.roll(roll, 0), y.roll(roll, 0)) for x, y in pairs])
        return topdp.train(
            model, shards, topology.ring(3), rounds=9, batch={"cycle": 3}, out=tmp_path / "run", **options
        )

    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 4:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    with pytest.raises(InterruptedRun):
        train(0, progress=stop)
    with pytest.raises(
        RunFolderError,
        match=r"the same records, in the same order, as at the start of the run .* Use the original records",
    ):
        train(5, resume=True)
    assert train(0, resume=True).estimates.isfinite().all()


@pytest.fixture
def broken_off(small, tmp_path):
    """Two interrupted, calibrated runs that differ in their budgets: 1 and 5."""

    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 5:
            raise KeyboardInterrupt

    def make(name, epsilon):
        wanted = small(f"privacy.epsilon={epsilon}", "topology.agents=4").model_dump(exclude_none=True)
        with pytest.raises(InterruptedRun):
            run.run(config.parse(wanted), tmp_path / name, progress=stop)
        return tmp_path / name

    return make("run", 1.0), make("other", 5.0)


def test_an_account_of_another_plan_is_rejected(broken_off):
    """The noise is for a budget of 5, the account states 1: every other check passes."""
    folder, other = broken_off
    shutil.copy(other / "plan.npz", folder / "plan.npz")
    for read in (run.resume, planning.account_of_run):
        with pytest.raises(RunFolderError, match="was changed or belongs to another plan"):
            read(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["epsilon_per_agent"].update(
            adaptive=[e / 100 for e in p["epsilon_per_agent"]["adaptive"]]
        ),
        lambda p: p["epsilon_per_agent"].update(view=[]),
        lambda p: p["epsilon"].update(view=0.01),
        lambda p: p.update(reasons=[1]),
        lambda p: p.pop("seal"),
    ],
    ids=["smaller", "empty", "summary", "reasons", "no seal"],
)
def test_a_changed_account_is_rejected(broken_off, change):
    folder, _ = broken_off
    privacy = json.loads((folder / "privacy.json").read_text())
    change(privacy)
    (folder / "privacy.json").write_text(json.dumps(privacy))
    for read in (run.resume, planning.account_of_run):
        with pytest.raises(RunFolderError, match="was changed"):
            read(folder)


def damaged(name, content):
    def change(folder):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content(whole) if callable(content) else content)

    return pytest.param(change, id=f"{name} {content if isinstance(content, bytes) else 'damaged'}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        damaged("config.toml", lambda whole: whole[: len(whole) // 2] + b"="),
        damaged("config.toml", b"seed = [1"),
        damaged("plan.npz", lambda whole: whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:]),
        damaged("plan.npz", b""),
        damaged("privacy.json", b"[1, 2]"),
        damaged("privacy.json", b"null"),
        damaged("run.json", b'{"format": 3}'),
        damaged("run.json", b'{"format": 3, "state": "interrupted", "records": null}'),
        damaged("run.json", b'{"format": 1, "state": "interrupted"}'),
    ],
)
def test_a_damaged_folder_is_rejected_by_name(broken_off, change):
    folder, _ = broken_off
    change(folder)
    for read in (run.resume, planning.account_of_run):
        with pytest.raises(RunFolderError, match=re.escape(str(folder))):
            read(folder)


@pytest.mark.parametrize(
    "tensors",
    [
        {"releases": np.array([99]), "rows": np.zeros((4, 3))},
        {"releases": np.array([], int), "rows": np.zeros((4, 3))},
        {"rows": np.zeros((4, 3))},
    ],
    ids=["too many", "none", "missing"],
)
def test_a_damaged_checkpoint_is_rejected(broken_off, tensors):
    folder, _ = broken_off
    save_file(tensors, folder / "checkpoint.safetensors")
    with pytest.raises(InputError, match=r"checkpoint|releases"):
        run.resume(folder)


def test_a_damaged_line_of_metrics_is_rejected(broken_off):
    folder, _ = broken_off
    (folder / "metrics.jsonl").write_text('{"accuracy": {"mean": 0.5}}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: 'round' is missing"):
        run.resume(folder)


def test_a_run_killed_before_its_first_round_is_started_again(small, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "mark", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.run(small(), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").state == "starting"
    (tmp_path / "run" / ".privacy.json.0123abcd").write_text("half")  # a temporary file of a killed run
    with pytest.raises(RunFolderError, match="before its first round"):
        run.resume(tmp_path / "run")
    again = run.run_or_continue(RunOutline.of(small()), tmp_path / "run")
    assert torch.equal(again.estimates, run.run(small(), tmp_path / "whole").estimates)


def test_a_run_killed_while_creating_its_folder_is_started_again(small, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.0123abcd").write_text("half")
    assert run.run_or_continue(RunOutline.of(small()), tmp_path / "run").folder == tmp_path / "run"
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith(".")]


class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = linear_model()

    def forward(self, x):
        return {"scores": self.linear(x)}


def test_a_model_that_returns_no_tensor_is_rejected():
    with pytest.raises(ConfigError, match=r"returns one tensor.*got a dict"):
        topdp.train(Scores(), blobs(5), topology.ring(5), sigma=1.0)


def test_train_does_not_resume_with_other_shards_or_another_model(tmp_path):
    def stop(stage, done=0, total=None, /, **details):
        if stage == "training" and done == 5:
            raise KeyboardInterrupt

    def train(model, shards, **options):
        place = tmp_path / "run"
        return topdp.train(
            model, shards, topology.ring(5), method="plain", clip=1.0, rounds=8, out=place,
            checkpoint_every=2, **options,
        )  # fmt: skip

    with pytest.raises(InterruptedRun, match=r"topdp\.train\(\.\.\., out=.*, resume=True\)"):
        train(linear_model(), blobs(5), progress=stop)
    with pytest.raises(RunFolderError, match="records, sensitivity"):
        train(linear_model(), blobs(5, records=7), resume=True)
    with pytest.raises(ValueError, match="rows of shape"):
        train(torch.nn.Sequential(linear_model(), torch.nn.Linear(3, 4)), blobs(5), resume=True)
    assert train(linear_model(), blobs(5), resume=True).folder == tmp_path / "run"
    with pytest.raises(RunFolderError, match="nothing to resume"):
        train(linear_model(), blobs(5), resume=True)
    with pytest.raises(RunFolderError, match="Expected out"):
        topdp.train(linear_model(), blobs(5), topology.ring(5), resume=True)


def test_a_model_with_fewer_outputs_than_classes_is_rejected():
    with pytest.raises(ConfigError, match="each of the 3 classes"):
        topdp.train(linear_model(2), blobs(5), topology.ring(5), sigma=1.0)


def test_sizes_are_counts_or_fractions(small, tmp_path):
    counts = small("data.partition=sizes", "data.sizes=[1, 2, 30, 40, 50, 60]")
    assert load_shards(RunOutline.of(counts)).counts == (1, 2, 30, 40, 50, 60)
    assert config.parse(tomllib.loads(counts.to_toml())) == counts
    fractions = small("data.partition=sizes", "data.sizes=[0.1, 0.1, 0.1, 0.1, 0.1, 0.5]")
    assert load_shards(RunOutline.of(fractions)).counts == (30, 30, 30, 30, 30, 150)
    with pytest.raises(ConfigError, match=r"data\.sizes"):
        load_shards(RunOutline.of(small("data.partition=sizes")))


def test_a_validation_share_without_records_is_rejected(small):
    with pytest.raises(ConfigError, match=r"data\.validation"):
        load_shards(RunOutline.of(small("data.validation=0.001")))


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, lambda x: x, "to be a .*, got function"),
        (1, [1, 2], "to be a Shards, got list of int. Make it with .*from_arrays"),
        (2, [(0, 1)], "Expected a graph: .* got list"),
        (2, "ring", r"got the name of a family, 'ring'.* topdp.topology.ring\(agents\)"),
    ],
)
def test_arguments_of_the_wrong_type_are_rejected_with_advice(place, wrong, message):
    given = [linear_model(), blobs(5), topology.ring(5)]
    given[place] = wrong
    with pytest.raises(InputError, match=message):
        topdp.train(*given)


def test_a_folder_with_other_files_is_not_overwritten(small, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="--out"):
        run.run(small(), tmp_path / "run")
    assert os.listdir(tmp_path / "run") == ["precious.txt"]


def test_a_folder_that_cannot_be_created_is_reported_before_the_account(small, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "plan_and_account", lambda *_: pytest.fail("the account was made first"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="Could not create the folder"):
        run.run(small(), tmp_path / "file" / "run")


def test_a_rejected_run_leaves_only_folders_that_existed_before(small, tmp_path):
    (tmp_path / "own").mkdir()
    for name in ("new", "own"):
        with pytest.raises(ConfigError, match=r"data\.validation"):
            run.run(small("data.validation=0.001"), tmp_path / name)
    assert os.listdir(tmp_path) == ["own"]


def test_a_full_disk_is_reported_and_the_last_checkpoint_remains(small, tmp_path, monkeypatch):
    from topdp.runs import run_folder as result

    real, calls = result.write_tensors, []

    def full(file, tensors, notes):
        calls.append(file)
        if len(calls) > 2:  # the best estimates and the checkpoint of round 0
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, tensors, notes)

    monkeypatch.setattr(result, "write_tensors", full)
    with pytest.raises(FileError, match="No space left"):
        run.run(small(), tmp_path / "run")
    monkeypatch.undo()
    folder = RunFolder.open(tmp_path / "run")
    assert folder.checkpoint_size()[0] == 1
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith(".")]
    assert torch.equal(run.resume(tmp_path / "run").estimates, run.run(small(), tmp_path / "b").estimates)


def test_nothing_is_written_if_the_configuration_cannot_be_run(small, tmp_path):
    for changes, error in [
        (["topology.agents=301"], DataError),
        (["data.name=nowhere.npz"], DataError),
        (["model.name=mpl"], ConfigError),
        (["model.name=builders:nothing"], ConfigError),
        (["model.name=operator:eq"], ConfigError),
        (['model.name=":ok"'], ConfigError),
        (["privacy.sigma=[0.1, 0.2]"], ConfigError),
        (["method.name=li18", "method.calibration=tight"], ConfigError),
        (["data.batch={cycle=1000}"], ValueError),
    ]:
        with pytest.raises(error):
            run.run(small(*changes), tmp_path / "run")
        assert not (tmp_path / "run").exists(), changes


def test_train_runs_a_users_own_model_shards_and_graph():
    shards = blobs(5)
    result = topdp.train(
        linear_model(), shards, topology.ring(5), method="top", sigma=0.02, clip=1.0, rounds=80, noise_seed=0
    )
    assert result.accuracy["mean"] > 0.9
    outputs = result.model(2)(shards.test_inputs)
    right = (outputs.argmax(1) == shards.test_targets).double().mean().item()
    assert right == pytest.approx(result.metrics[-1]["accuracy_per_agent"][2])


def test_train_rejects_unknown_or_invalid_settings():
    with pytest.raises(TypeError, match="learning_rat"):
        topdp.train(linear_model(), blobs(5), topology.ring(5), sigma=0.1, learning_rat=0.1)
    with pytest.raises(ConfigError, match="alpha"):
        topdp.train(linear_model(), blobs(5), topology.ring(5), sigma=0.1, alpha=3)
    with pytest.raises(ValueError, match="6 agents"):
        topdp.train(linear_model(), blobs(5), topology.ring(6), sigma=0.1)


def test_a_missing_gpu_is_rejected(small, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="cuda"):
        run.run(small(), tmp_path / "run", device="cuda")
    with pytest.raises(ConfigError, match="cpu, cuda"):
        choose_device("quantum")


class TestCommands:
    @pytest.fixture
    def job(self, small, tmp_path):
        file = tmp_path / "job.toml"
        file.write_text(small().to_toml())
        return file

    @pytest.mark.slow
    def test_run_prints_a_table_and_writes_a_folder(self, job, tmp_path):
        done = command("run", job, "--out", tmp_path / "run")
        assert done.returncode == 0, done.stderr
        assert "top-dp" in done.stdout and str(tmp_path / "run").replace("\n", "") in done.stdout.replace(
            "\n", ""
        )
        assert (tmp_path / "run" / "accuracy.png").stat().st_size > 10_000

    def test_json_is_the_only_thing_on_stdout(self, topdp, job, tmp_path):
        found = json.loads(topdp("run", job, "--out", tmp_path / "run", "--json").out)
        assert found["run"] == str(tmp_path / "run") and found["rounds"] == 12
        assert set(found["accuracy"]) == {"mean", "min", "max"}

    def test_compare_runs_all_methods_with_the_same_mixing(self, topdp, job, tmp_path):
        done = topdp("compare", job, "--methods", "no-noise,plain,top", "--out", tmp_path / "all", "--json")
        assert done.code == 0, done.err
        assert list(json.loads(done.out)["methods"]) == ["no-noise", "plain", "top"]
        assert (tmp_path / "all" / "compare.png").exists()
        plans = [RunFolder.open(tmp_path / "all" / name).plan for name in ("no-noise", "plain")]
        np.testing.assert_array_equal(plans[0].source.values, plans[1].source.values)

    def test_an_interrupted_comparison_resumes(self, topdp, job, tmp_path, monkeypatch):
        real = run.execute

        def interrupted_at_li18(job, folder, *others):
            if job.parts.run.config.method.name == "li18":
                raise InterruptedRun(folder.path)
            return real(job, folder, *others)

        three = ("compare", job, "--methods", "plain,li18,top", "--out", tmp_path / "all")
        with monkeypatch.context() as patched:
            patched.setattr(run, "execute", interrupted_at_li18)
            stopped = topdp(*three)
        words = " ".join(stopped.err.split())
        assert stopped.code == 130 and "Continue with: the same command and --out" in words
        assert sorted(os.listdir(tmp_path / "all")) == ["li18", "plain"]
        other = topdp(*three, "--set", "seed=1")
        assert other.code == 2 and "got other values of seed" in " ".join(other.err.split())
        done = topdp(*three)
        assert done.code == 0, done.err
        assert "li18: training" in done.err and "plain: training" not in done.err
        assert "li18: accounting" not in done.err and "plain, li18: one plan, so one run" in done.out

    def test_graph_prints_numbers_and_draws_a_picture(self, topdp, tmp_path):
        ring = ("graph", "--topology", "ring", "--agents", 6, "--out", tmp_path / "g.png")
        found = json.loads(topdp(*ring, "--json").out)
        assert (found["agents"], found["edges"], found["covered_share"]) == (6, 6, 1.0)
        assert (tmp_path / "g.png").exists()
        assert "N_0^1 = {5}" in topdp(*ring).out

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (["run", "--set", "method.nam=plain"], 2, "Did you mean 'name'?"),
            (["run", "--preset", "paper"], 2, "preset"),
            (["run", "nowhere.toml"], 2, "nowhere.toml"),
            (["run", "--device", "cuda", "--set", "privacy.sigma=1"], 2, "cuda"),
            (["run", "--set", "data.name=nowhere", "--set", "privacy.sigma=1"], 5, "nowhere"),
            (["run", "--resume", "nowhere"], 2, "nowhere"),
            (["run", "--bogus"], 2, "--bogus"),
            (["compare", "--methods", "top,tip"], 2, "Did you mean 'top'?"),
            (["graph", "--set", "topology.connection=0.01"], 2, "connect"),
            (["graph", "--topology", "ring", "--out", "g.txt"], 2, ".png"),
            (["graph", "--topology", "ring", "--out", f"{__file__}/g.png"], 2, "Could not create"),
            (["reproduce", "fig3", "--quick", "--out", __file__], 2, "Could not create"),
            (["data", "fetch", "mnits"], 5, "mnist"),
            (["run", "--set", "privacy.epsilon=1e300"], 2, "at most 1e30"),
            (["run", "--set", "rounds=10000000"], 2, "from 0 to 1000000"),
        ],
    )
    def test_invalid_input_gives_one_message(self, topdp, arguments, code, says, tmp_path, monkeypatch):
        if "cuda" in arguments and torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        monkeypatch.chdir(tmp_path)
        done = topdp(*arguments)
        assert done.code == code, done.err
        assert says in done.err.replace("\n", " ")
        assert "Traceback" not in done.err
        assert not (tmp_path / "runs").exists()

    def test_a_model_that_does_not_fit_into_memory_gives_one_line(self, topdp, tmp_path):
        inputs, labels = np.zeros((60, 4), np.float32), np.zeros(60, np.int64)
        np.savez(
            tmp_path / "wide.npz", train_inputs=inputs, train_labels=labels, test_inputs=inputs,
            test_labels=labels, classes=10**12,
        )  # fmt: skip
        few = ("--set", "topology.kind=ring", "--set", "topology.agents=3", "--set", "privacy.sigma=1")
        done = topdp("run", "--set", f'data.name="{tmp_path / "wide.npz"}"', *few, "--out", tmp_path / "run")
        assert done.code == 2 and "Not enough memory" in done.err and not (tmp_path / "run").exists()

    def test_both_version_commands_print_the_version(self):
        assert command("--version").stdout == command("version").stdout == f"topdp {topdp.__version__}\n"

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
    def test_a_full_disk_at_stdout_gives_one_line(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "topdp", "data", "list"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 2
        assert done.stderr == "topdp: Could not write the output: No space left on device.\n"

    def test_a_closed_pipe_at_stdout_gives_one_line(self):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as closed:
            done = subprocess.run(
                [sys.executable, "-m", "topdp", "data", "list", "--json"],
                stdout=closed,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 2
        assert done.stderr == "topdp: Could not write the output: Broken pipe.\n"

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_after_a_signal_the_command_prints_how_to_continue(self, job, tmp_path, number):
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "topdp",
                "run",
                str(job),
                "--set",
                "rounds=60000",
                "--set",
                WORST,
                "--out",
                "run",
            ],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in process.stderr:
            if "round 0" in line:
                break
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "topdp run --resume run" in said.replace("\n", " ")
        assert RunFolder.open(tmp_path / "run").state == "interrupted"

"""The noise key of runs: new by default, kept while a run is unfinished, in no file afterwards."""

import base64
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import topdp
from builders import blobs, blobs_file, linear_model
from topdp import topology
from topdp.base.files import FileError, LockHeldError, exclusive_lock
from topdp.base.progress import silent
from topdp.cli.app import app
from topdp.errors import InputError
from topdp.learning.gradients import DivergedError
from topdp.plan.noise_key import NoiseKey
from topdp.runs import config, sweep
from topdp.runs import run as runs
from topdp.runs.config import REDRAWABLE_NOISE
from topdp.runs.kept_keys import KEY_FILE, erase_key, read_key, write_key
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.run_outline import RunOutline
from topdp.runs.sweep_grid import Axis, resolved_points
from topdp.runs.training_loop import InterruptedRun

ROUNDS = 12


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 300)


@pytest.fixture
def basis(data):
    return [
        f'data.name="{data}"', "topology.agents=5", "topology.kind=ring", f"rounds={ROUNDS}",
        "train.evaluate_every=4", "train.checkpoint_every=5", "privacy.epsilon=1", "privacy.clip=1.0",
        "model.name=linear", "method.name=plain",
    ]  # fmt: skip


@pytest.fixture
def wanted(basis):
    def read(*changes):
        given = any(change.startswith("privacy.sigma=") for change in changes)
        return config.read(changes=[*[one for one in basis if not (given and "epsilon" in one)], *changes])

    return read


@pytest.fixture
def fixed_key(monkeypatch):
    """Every new key is this one, in this test only."""
    key = NoiseKey(bytes(range(7, 39)))
    monkeypatch.setattr(NoiseKey, "fresh", classmethod(lambda cls: key))
    return key


def train(**settings):
    given = {"epsilon": 1.0, "clip": 1.0, "rounds": 4, "evaluate_every": 2}
    return topdp.train(linear_model(), blobs(5), topology.ring(5), **{**given, **settings})


def interrupt_after(round):
    def progress(stage, done=0, total=None, /, **details):
        if stage == "training" and done == round:
            raise KeyboardInterrupt

    return progress


def interrupted(wanted, place, after=7):
    with pytest.raises(InterruptedRun):
        runs.run(wanted, place, progress=interrupt_after(after))
    return place


def holds(place, secret):
    """The files in which the secret is, raw or as text."""
    forms = [secret, secret.hex().encode(), secret.hex().upper().encode(), base64.b64encode(secret)]
    forms += [base64.urlsafe_b64encode(secret), json.dumps(list(secret)).encode()]
    return sorted(
        file.name
        for file in place.rglob("*")
        if file.is_file() and any(form in file.read_bytes() for form in forms)
    )


@pytest.mark.parametrize("batch", ["full", {"poisson": 10}])
def test_two_default_runs_differ_and_two_with_a_noise_seed_are_equal(batch):
    one, other = train(batch=batch), train(batch=batch)
    assert not torch.isclose(one.estimates, other.estimates).any(dim=1).all()
    assert one.plan.digest() == other.plan.digest() and one.redrawable_noise is None
    one, other, third = (train(batch=batch, noise_seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.estimates, other.estimates) and not torch.equal(one.estimates, third.estimates)
    assert one.redrawable_noise == one.summary()["redrawable_noise"] == REDRAWABLE_NOISE


def test_who_knows_settings_and_records_cannot_redo_a_default_run():
    """The attack: redo the run with and without a record, and take the nearer one."""
    published, records = train().estimates, blobs(5)
    records.inputs[0, 0] = 0
    distances = [
        float(
            (
                topdp.train(linear_model(), made, topology.ring(5), clip=1.0, rounds=4).estimates - published
            ).norm()
        )
        for made in (blobs(5), records)
    ]
    assert min(distances) > 0.1
    seeded = [train(noise_seed=0).estimates for _ in range(2)]
    assert torch.equal(*seeded)  # with a noise seed the attack succeeds: the distance is 0


def test_the_public_seed_determines_graph_and_start_but_no_noise(wanted, tmp_path):
    one, other = (runs.run(wanted("seed=5", "rounds=2"), tmp_path / name) for name in "ab")
    assert torch.equal(one.flat.flatten(), other.flat.flatten())
    assert one.plan.digest() == other.plan.digest() and not torch.equal(one.estimates, other.estimates)


def test_a_random_seed_is_drawn_and_recorded(wanted, tmp_path):
    made = runs.run(wanted('seed="random"', "rounds=2"), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").config.seed == made.config.seed
    assert len({wanted("seed=random").seed for _ in range(5)}) > 1
    assert len({train(seed=None, rounds=1).config.seed for _ in range(3)}) > 1
    with pytest.raises(config.ConfigError, match='or "random"'):
        wanted("seed=chance")


def test_the_key_is_kept_for_its_owner_only_and_erased_at_the_end(wanted, tmp_path, fixed_key):
    place, modes = tmp_path / "run", []

    def look(run):
        file = place / KEY_FILE
        modes.append(stat.S_IMODE(file.stat().st_mode))
        assert holds(place, fixed_key.secret) == [KEY_FILE]

    runs.run(wanted("train.checkpoint_every=2"), place, callbacks=[look])
    assert set(modes) == {0o600}
    assert holds(place, fixed_key.secret) == [] and not (place / KEY_FILE).exists()
    assert "data" not in RunFolder.open(place).read_json("run.json")
    assert "NoiseKey()" in repr(fixed_key) and "7" not in repr(fixed_key)


def test_the_key_is_erased_before_a_run_counts_as_done(wanted, tmp_path, monkeypatch):
    write, noted = RunFolder.write_json, []

    def watched(self, name, value):
        if name == "run.json":
            noted.append((value["state"], (self.path / KEY_FILE).exists()))
        write(self, name, value)

    monkeypatch.setattr(RunFolder, "write_json", watched)
    runs.run(wanted("rounds=2"), tmp_path / "run")
    assert noted[0] == ("starting", False) and ("running", True) in noted
    assert noted[-1] == ("done", False) and ("done", True) not in noted


def test_a_run_of_an_earlier_format_is_not_read(wanted, tmp_path):
    """Its noise followed from the seed, but its configuration states no noise seed."""
    place = tmp_path / "run"
    runs.run(wanted("rounds=2"), place)
    info = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**info, "format": 2}))
    with pytest.raises(RunFolderError, match="Expected a run of format 3"):
        RunFolder.open(place)


def test_erasing_overwrites_the_bytes(tmp_path):
    write_key(tmp_path, NoiseKey(b"\7" * 32))
    os.link(tmp_path / KEY_FILE, tmp_path / "link")  # shows the bytes on disk after the file is gone
    erase_key(tmp_path)
    erase_key(tmp_path)
    assert (tmp_path / "link").read_bytes() == bytes(32) and read_key(tmp_path) is None


def test_an_existing_key_is_never_replaced_and_a_damaged_one_refused(tmp_path):
    write_key(tmp_path, NoiseKey(b"\7" * 32))
    with pytest.raises(FileError, match="Could not write"):
        write_key(tmp_path, NoiseKey(b"\10" * 32))
    (tmp_path / KEY_FILE).write_bytes(b"\7" * 31)
    with pytest.raises(FileError, match="got 31: it is damaged"):
        read_key(tmp_path)


@pytest.mark.parametrize("batch", ['"full"', "{poisson=9}"])
@pytest.mark.parametrize("after", [0, 7])  # before and after the first periodic checkpoint
def test_an_interrupted_run_continues_to_the_bits_of_the_unbroken_one(
    wanted, tmp_path, fixed_key, monkeypatch, batch, after
):
    settings = wanted(f"data.batch={batch}")
    whole = runs.run(settings, tmp_path / "whole")
    place = interrupted(settings, tmp_path / "broken", after)
    monkeypatch.undo()  # from now on, a new key would be another one
    resumed = runs.resume(place)
    assert torch.equal(resumed.estimates, whole.estimates) and resumed.metrics == whole.metrics
    assert holds(place, fixed_key.secret) == []


def test_a_killed_run_continues_to_the_bits_of_the_unbroken_one(basis, wanted, tmp_path, monkeypatch):
    place, more = (
        tmp_path / "run",
        ["rounds=3000", "train.checkpoint_every=1", "privacy.guarantee=worst-case"],
    )
    changes = [part for change in [*basis, *more] for part in ("--set", change)]
    command = [sys.executable, "-m", "topdp", "run", "--out", str(place), *changes]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (place / "checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    key = read_key(place)
    assert key is not None and RunFolder.open(place).state == "running"
    shorter = [file for file in place.iterdir() if holds(file.parent, key.secret) == [KEY_FILE]]
    assert shorter  # the key is in its file alone
    resumed = runs.resume(place)
    monkeypatch.setattr(NoiseKey, "fresh", classmethod(lambda cls: key))
    whole = runs.run(wanted(*more), tmp_path / "whole")
    assert torch.equal(resumed.estimates, whole.estimates)
    assert holds(place, key.secret) == holds(tmp_path / "whole", key.secret) == []


def test_without_its_key_a_run_does_not_continue(wanted, tmp_path):
    place = interrupted(wanted(), tmp_path / "run")
    (place / KEY_FILE).unlink()
    with pytest.raises(RunFolderError, match="Without it the run cannot continue"):
        runs.resume(place)


def test_with_another_key_a_run_does_not_continue(wanted, tmp_path):
    """The digest of records is keyed; a key of another run would also give other draws."""
    place = interrupted(wanted(), tmp_path / "run")
    (place / KEY_FILE).write_bytes(bytes(range(32)))
    with pytest.raises(RunFolderError, match="Expected the same records"):
        runs.resume(place)


def test_the_digest_of_records_tells_nothing_without_the_key(wanted, tmp_path):
    """Two runs on the same records have different digests."""
    noted = [RunFolder.open(interrupted(wanted(), tmp_path / name)).fact("data") for name in ("one", "other")]
    assert noted[0] != noted[1]


def test_a_copy_of_an_unfinished_run_shows_nothing_new(data, basis, tmp_path):
    """Copies cannot be prevented. The same key on the same records gives the same bits."""
    own = tmp_path / "own.npz"
    shutil.copy(data, own)
    settings = config.read(changes=[*basis, f'data.name="{own}"'])
    place = interrupted(settings, tmp_path / "run")
    for name in ("copy", "later"):
        shutil.copytree(place, tmp_path / name)
    assert torch.equal(runs.resume(place).estimates, runs.resume(tmp_path / "copy").estimates)
    arrays = dict(np.load(own))
    arrays["train_inputs"][0] = 0
    np.savez(own, **arrays)
    with pytest.raises(RunFolderError, match="Expected the same records"):
        runs.resume(tmp_path / "later")


def test_only_one_process_continues_a_run(wanted, tmp_path):
    place = interrupted(wanted(), tmp_path / "run")
    with exclusive_lock(place), pytest.raises(LockHeldError, match="another process is using it"):
        runs.resume(place)
    with exclusive_lock(place), pytest.raises(LockHeldError):
        runs.run_or_continue(RunOutline.of(wanted()), place)
    with exclusive_lock(place), pytest.raises(LockHeldError):
        runs.abandon(place)

    def again(run):
        with pytest.raises(LockHeldError):
            runs.resume(place)

    runs.resume(place, callbacks=[again])
    with pytest.raises(RunFolderError):
        runs.resume(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_training_in_python_continues_with_its_key_and_holds_the_lock(tmp_path, fixed_key, monkeypatch):
    whole = train(rounds=8)
    with pytest.raises(InterruptedRun):
        train(rounds=8, out=tmp_path / "run", progress=interrupt_after(5))
    monkeypatch.undo()
    with exclusive_lock(tmp_path / "run"), pytest.raises(LockHeldError):
        train(rounds=8, out=tmp_path / "run", resume=True)
    assert torch.equal(train(rounds=8, out=tmp_path / "run", resume=True).estimates, whole.estimates)


def test_an_abandoned_run_has_no_key_and_never_continues(wanted, tmp_path):
    place = interrupted(wanted(), tmp_path / "run")
    secret = read_key(place).secret
    done = CliRunner().invoke(app, ["run", "--abandon", str(place), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["state"] == "abandoned"
    assert holds(place, secret) == [] and not list(place.glob("checkpoint*"))
    with pytest.raises(RunFolderError, match="was abandoned"):
        runs.resume(place)
    with pytest.raises(RunFolderError, match="was abandoned"):
        runs.abandon(place)


def test_a_diverged_run_has_no_key(wanted, tmp_path, fixed_key):
    with pytest.raises(DivergedError):
        runs.run(wanted("train.learning_rate=1e30", "privacy.clip=1e30", "privacy.sigma=0"), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").state == "diverged"
    assert holds(tmp_path / "run", fixed_key.secret) == []


def test_a_stopped_run_keeps_its_key_until_it_is_continued(wanted, tmp_path, fixed_key, monkeypatch):
    whole = runs.run(wanted(), tmp_path / "whole")
    stopped = runs.run(
        wanted(), tmp_path / "run", callbacks=[lambda run: run.stop("now") if run.round == 3 else None]
    )
    assert stopped.stopped is not None and holds(tmp_path / "run", fixed_key.secret) == [KEY_FILE]
    monkeypatch.undo()
    assert torch.equal(runs.resume(tmp_path / "run").estimates, whole.estimates)
    assert holds(tmp_path / "run", fixed_key.secret) == []


def test_a_run_that_never_began_is_replaced_with_a_new_key(wanted, tmp_path, monkeypatch):
    """The process was killed between the key and the first round."""
    place, keys = tmp_path / "run", []

    def kill(self, *_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunFolder, "mark", kill)
        runs.run(wanted(), place)
    before = read_key(place)
    assert before is not None and RunFolder.open(place).state == "starting"
    with pytest.raises(RunFolderError, match="stopped before its first round"):
        runs.resume(place)

    def look(*_, **__):
        keys.append(read_key(place))

    runs.run_or_continue(RunOutline.of(wanted()), place, progress=look)
    assert before not in keys and RunFolder.open(place).state == "done" and read_key(place) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_reported(wanted, tmp_path):
    place = interrupted(wanted(), tmp_path / "run")
    place.chmod(0o500)
    try:
        with pytest.raises(FileError):
            runs.resume(place)
    finally:
        place.chmod(0o700)


# Sweeps


CONSTANT = 5  # a pixel that is 0 in all records, so that its weights have no gradient


@pytest.fixture
def two_budgets(data, basis, tmp_path):
    """The points of a sweep over ε = .5 and 1, on records with a constant pixel."""
    arrays = dict(np.load(data))
    for name in ("train_inputs", "test_inputs"):
        arrays[name] = arrays[name].reshape(len(arrays[name]), -1)
        arrays[name][:, CONSTANT] = 0
        arrays[name] = arrays[name].reshape(-1, 1, 4, 4)
    np.savez(tmp_path / "constant.npz", **arrays)

    def make(*changes):
        changed = [*basis, f'data.name="{tmp_path / "constant.npz"}"', *changes]
        request = sweep.SweepRequest(
            config.read(changes=changed).to_toml(), (Axis.of("privacy.epsilon=0.5,1"),), 1
        )
        return resolved_points(request.points())

    return make


def noise_left(place, points):
    """How much noise is left if one final model is subtracted from the other, scaled: a share of the noise.

    Weights of the constant pixel have moved by noise alone.
    """
    folders = [RunFolder.open(place / point.folder) for point in points]
    outline = RunOutline.of(points[0].config)
    from topdp.runs.assembly import Assembly

    start = Assembly.of(outline).start.numpy()
    moved = [(folder.estimates - start)[:, CONSTANT:48:16].flatten() for folder in folders]
    scale = [float(folder.plan.full_scale[0]) for folder in folders]
    difference = moved[0] * scale[1] - moved[1] * scale[0]
    return float(np.linalg.norm(difference) / np.linalg.norm(moved[0] * scale[1]))


@pytest.mark.parametrize("together", [True, False])
def test_subtracting_scaled_models_of_a_sweep_cancels_no_noise(two_budgets, tmp_path, monkeypatch, together):
    if not together:
        monkeypatch.setattr(sweep, "run_stacked", lambda *_: None)
    points = two_budgets()
    sweep.run_all(points, tmp_path / "secret", "cpu", silent, "again")
    assert noise_left(tmp_path / "secret", points) > 0.05  # about 1.4, of few independent numbers
    points = two_budgets("noise_seed=0")  # equal draws, on purpose
    sweep.run_all(points, tmp_path / "seeded", "cpu", silent, "again")
    assert noise_left(tmp_path / "seeded", points) < 1e-4


def test_a_sweep_with_a_noise_seed_has_no_bound_together(basis, tmp_path):
    changes = [part for change in basis for part in ("--set", change)]
    for seed, words in (("", "ε = "), ("0", "ε without bound")):
        place = tmp_path / f"sweep{seed}"
        more = ["--set", f"noise_seed={seed}"] if seed else []
        command = ["sweep", "--over", "privacy.epsilon=0.5,1", "--out", str(place), "--json", *changes, *more]
        told = json.loads(CliRunner().invoke(app, command).stdout)
        assert f"together {words}" in told["together"]
        assert {run["noise_seed"] for point in told["points"] for run in point["runs"]} == {
            int(seed) if seed else None
        }
        lines = (place / "runs.csv").read_text().splitlines()
        column = lines[0].split(",").index("noise_seed")
        assert {line.split(",")[column] for line in lines[1:]} == {seed}
        assert not list(place.rglob("*.key")) and not (place / "records.json").exists()


def test_seeds_of_a_sweep_with_a_noise_seed_have_different_noise(two_budgets):
    base = two_budgets("noise_seed=7")[0].config
    request = sweep.SweepRequest(base.to_toml(), (), 3)
    assert [point.config.noise_seed for point in request.points()] == [7, 8, 9]


def test_a_key_has_256_bits():
    with pytest.raises(ValueError, match="32 bytes, got 16"):
        NoiseKey(bytes(16))
    assert len({NoiseKey.fresh() for _ in range(20)}) == 20
    with pytest.raises(InputError, match="Expected a key for Poisson batches"):
        topdp.data.batch_selection.select([topdp.plan.Poisson(9, 3)], 0, 0)


def test_a_half_erased_key_is_no_key_and_erasing_follows_no_link(tmp_path):
    """A process can be killed after it has overwritten a key; zeros as a key would make noise public."""
    (tmp_path / "noise.key").write_bytes(bytes(32))
    assert read_key(tmp_path) is None
    (tmp_path / "noise.key").unlink()
    (tmp_path / "thesis.txt").write_text("precious")
    (tmp_path / "noise.key").symlink_to("thesis.txt")
    with pytest.raises(FileError):
        erase_key(tmp_path)
    with pytest.raises(FileError):
        read_key(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"

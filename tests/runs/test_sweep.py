"""Sweeps: points, stacked runs, interrupted sweeps, and the errors for wrong input."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from builders import blobs_file
from topdp.base.progress import silent
from topdp.runs import config, finished_run, planning, sweep
from topdp.runs import run as runs
from topdp.runs.config import ConfigError
from topdp.runs.finished_run import FinishedRun
from topdp.runs.run_folder import RunFolder
from topdp.runs.sweep_grid import Axis, points, resolved_points
from topdp.runs.training_loop import InterruptedRun


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 300)


@pytest.fixture
def small(data):
    return [
        f'data.name="{data}"', "topology.agents=6", "topology.connection=0.5", "rounds=8",
        "train.evaluate_every=4", "train.checkpoint_every=3", "privacy.sigma=0.05", "privacy.clip=1.0",
        "noise_seed=0",
    ]  # fmt: skip


@pytest.fixture
def grid(small):
    def make(*over, seeds=2, changes=()):
        base = config.read(changes=[*small, *changes]).to_toml()
        request = sweep.SweepRequest(base, tuple(map(Axis.of, over)), seeds)
        return resolved_points(request.points())

    return make


def run_all(points, place, progress=silent):
    sweep.run_all(points, place, "cpu", progress, "again")


def ends(place, points):
    return [RunFolder.open(place / point.folder).estimates for point in points]


@pytest.fixture
def command(small):
    def give(*arguments):
        return ["sweep", *(part for change in small for part in ("--set", change)), *map(str, arguments)]

    return give


RATES = "train.learning_rate=0.2,0.5"


def test_points_are_all_combinations_with_seeds_innermost(grid):
    found = grid("privacy.sigma=0.1,0.2", "method.name=plain,top", seeds=2)
    assert [(one.folder, *one.chosen.values(), one.seed) for one in found] == [
        ("1", "0.1", "plain", 0), ("2", "0.1", "plain", 1), ("3", "0.1", "top", 0), ("4", "0.1", "top", 1),
        ("5", "0.2", "plain", 0), ("6", "0.2", "plain", 1), ("7", "0.2", "top", 0), ("8", "0.2", "top", 1),
    ]  # fmt: skip
    assert found[6].config.privacy.sigma == 0.2 and found[6].config.method.name == "top"


def test_values_may_contain_commas_in_brackets_and_quotes():
    assert Axis.of("privacy.sigma=0.1,[0.1, 0.2]").values == ("0.1", "[0.1, 0.2]")
    assert Axis.of("data.name=\"a,b\",'c,d',e").values == ('"a,b"', "'c,d'", "e")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["top-dp", "correlated"])
def test_stacked_runs_give_the_results_of_the_runs_alone(grid, tmp_path, monkeypatch, method):
    wanted = grid(RATES, seeds=2, changes=[f"method.name={method}"])
    run_all(wanted, tmp_path / "stacked")
    monkeypatch.setattr(sweep, "run_stacked", lambda *_: pytest.fail("stacked"))
    monkeypatch.setattr(sweep, "MAX_STACKED_RUN_BYTES", -1)
    run_all(wanted, tmp_path / "alone")
    for one_stack, alone in zip(
        ends(tmp_path / "stacked", wanted), ends(tmp_path / "alone", wanted), strict=True
    ):
        np.testing.assert_allclose(one_stack, alone, rtol=1e-3, atol=1e-5)
    for point in wanted:
        folders = [RunFolder.open(tmp_path / place / point.folder) for place in ("stacked", "alone")]
        assert sorted(os.listdir(folders[0].path)) == sorted(os.listdir(folders[1].path))
        assert folders[0].config == folders[1].config == point.config
        assert folders[0].plan.digest() == folders[1].plan.digest()
        assert folders[0].read_json("privacy.json") == folders[1].read_json("privacy.json")
        for ours, theirs in zip(*(folder.metrics for folder in folders), strict=True):
            assert ours["round"] == theirs["round"]
            assert ours["accuracy"]["mean"] == pytest.approx(theirs["accuracy"]["mean"], abs=0.02)
        planning.account_of_run(folders[0].path)  # a complete run folder, like any other


def test_small_runs_are_stacked_if_possible(grid, tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        sweep, "_run_stack", lambda stack, *_: sizes.append([point.chosen for point in stack])
    )
    shared = ["method.name=correlated", "method.gossip=2"]
    tried = grid("train.optimiser=sgd,momentum,adam", seeds=2, changes=shared)
    run_all(tried, tmp_path / "a")
    assert sorted(map(len, sizes)) == [1, 1, 4]
    assert all(one["train.optimiser"] == "adam" for stack in sizes if len(stack) == 1 for one in stack)
    sizes.clear()
    run_all(grid("rounds=4,8", "privacy.clip=1.0,2.0", seeds=1), tmp_path / "b")
    assert list(map(len, sizes)) == [1, 1, 1, 1]
    sizes.clear()
    run_all(grid(seeds=3, changes=["data.validation=0.2"]), tmp_path / "c")  # different test records
    assert list(map(len, sizes)) == [1, 1, 1]
    sizes.clear()
    run_all(grid(seeds=3, changes=["model.name=test_sweep:with_dropout"]), tmp_path / "d")
    assert list(map(len, sizes)) == [1, 1, 1]


def with_dropout(shape, classes):
    import torch

    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(16, classes))


class Killed(BaseException):
    pass


def kills_at(monkeypatch, where, count):
    """End the process when `where` is called for the count-th time."""
    calls = []
    owner, name = where
    real = getattr(owner, name)

    def dies(*arguments, **options):
        calls.append(arguments)
        if len(calls) == count:
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, dies)


PLACES = {
    "before anything": ((sweep, "_run_stack"), 1),
    "in the middle of a stack": ((finished_run, "metrics_of"), 5),
    "before the first folder": ((FinishedRun, "write"), 1),
    "between two folders": ((FinishedRun, "write"), 3),
    "in a folder without estimates": ((finished_run, "end_folder"), 2),
    "while the plan is written": ((RunFolder, "_write"), 3),
    "while the estimates are written": ((RunFolder, "save_estimates"), 4),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a sweep that the first test runs once; no test changes it."""
    return tmp_path_factory.mktemp("whole")


@pytest.mark.slow
@pytest.mark.parametrize("where", list(PLACES))
def test_a_sweep_killed_anywhere_can_resume(grid, tmp_path, monkeypatch, where, whole):
    wanted = grid(RATES, seeds=2)
    run_all(wanted, whole)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        kills_at(patched, *PLACES[where])
        run_all(wanted, tmp_path / "killed")
    before = {
        point.folder: RunFolder.open(tmp_path / "killed" / point.folder).fact("seconds")
        for point in wanted
        if sweep.is_over(tmp_path / "killed", point)
    }
    run_all(wanted, tmp_path / "killed")
    assert {
        folder: RunFolder.open(tmp_path / "killed" / folder).fact("seconds") for folder in before
    } == before
    for ours, theirs in zip(ends(tmp_path / "killed", wanted), ends(whole, wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    monkeypatch.setattr(sweep, "_run_stack", lambda *_: pytest.fail("ran again"))
    run_all(wanted, tmp_path / "killed")


def test_runs_that_are_not_stacked_resume_from_their_checkpoints(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "MAX_STACKED_RUN_BYTES", -1)
    wanted = grid(RATES, seeds=1)
    run_all(wanted, tmp_path / "whole")
    titles, rounds = [], []

    def progress(stage, done=0, total=None, /, **details):
        title, _, work = stage.partition(": ")
        if work == "preparing":
            titles.append(title)
        if work != "training":
            return
        rounds.append((title, done))
        if (title, done) == ("run 2 of 2", 5) and len(titles) == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun, match="Continue with: again"):
        run_all(wanted, tmp_path / "broken", progress)
    rounds.clear()
    run_all(wanted, tmp_path / "broken", progress)
    assert titles == ["run 1 of 2", "run 2 of 2", "run 2 of 2"]
    assert [done for _, done in rounds] == [6, 7, 8]
    for ours, theirs in zip(ends(tmp_path / "broken", wanted), ends(tmp_path / "whole", wanted), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_diverged_run_is_reported_and_the_sweep_continues(topdp, command, tmp_path):
    done = topdp(*command("--over", "train.learning_rate=0.5,1e25", "--seeds", 2, "--out", tmp_path / "s"))
    assert done.code == 0, done.err
    assert "2 diverged" in " ".join(done.out.replace("│", " ").split())
    states = [RunFolder.open(tmp_path / "s" / number).state for number in "1234"]
    assert states == ["done", "done", "diverged", "diverged"]
    with open(tmp_path / "s" / "runs.csv") as file:
        assert [line["state"] for line in csv.DictReader(file)] == states
    again = topdp("sweep", "--resume", tmp_path / "s", "--json")
    assert again.code == 0 and "training" not in again.err


@pytest.mark.slow
def test_the_command_reports_spreads_in_table_csv_picture_and_json(topdp, command, tmp_path):
    asked = command("--over", "privacy.sigma=0.05,0.1", "--over", "method.name=plain,top", "--seeds", 3)
    done = topdp(*asked, "--out", tmp_path / "s")
    assert done.code == 0, done.err
    assert "±" in done.out and "runs 1 to 12 of 12: training" in done.err
    words = " ".join(done.out.split())
    assert "Each ε is that of one run alone." in words and "12 runs depends on all of them" in words
    assert (tmp_path / "s" / "sweep.png").stat().st_size > 10_000
    again = topdp(*asked, "--out", tmp_path / "s", "--json")
    told = json.loads(again.out)
    assert again.code == 0 and "training" not in again.err and told["out"] == str(tmp_path / "s")
    with open(tmp_path / "s" / "runs.csv") as file:
        each = list(csv.DictReader(file))
    with open(tmp_path / "s" / "sweep.csv") as file:
        over = list(csv.DictReader(file))
    assert len(each) == 12 and len(over) == 4 == len(told["points"])
    for number, (line, point) in enumerate(zip(over, told["points"], strict=True)):
        own = [float(run["accuracy"]) for run in each[3 * number : 3 * number + 3]]
        assert (line["privacy.sigma"], line["method.name"]) == tuple(point["chosen"].values())
        assert float(line["accuracy_mean"]) == pytest.approx(np.mean(own))
        assert float(line["accuracy_deviation"]) == pytest.approx(np.std(own, ddof=1))
        assert point["metrics"]["accuracy"] == {
            "mean": pytest.approx(np.mean(own)), "deviation": pytest.approx(np.std(own, ddof=1)), "n": 3
        }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--over", "privacy.epsilom=1,2"], "Did you mean 'epsilon'"),
        (["--over", "method.name=plain,tip"], "Did you mean 'top'"),
        (["--over", "model.name=mlp,mpl"], "Did you mean 'mlp'"),
        (["--over", "privacy.sigma=1,-2"], "privacy.sigma: expected a number from 0"),
        (
            ["--over", "data.batch={cycle=7},{cycle=1000}"],
            "batch = {cycle=1000}, seed 0: Expected batches of",
        ),
        (["--over", "topology.connection=0.5,0.01"], "connection = 0.01"),
        (["--over", "privacy.colluders=1,6"], "colluders = 6, seed 0"),
        (["--over", "train.optimiser=sgd,adam"], "optimiser = adam, seed 0: Expected a method"),
        (["--over", "privacy.sigma"], "--over key=value,value"),
        (["--over", "privacy.sigma=1,,2"], "--over key=value,value"),
        (["--over", "privacy.sigma=1,1"], "expected different values, got 1,1"),
        (["--over", "rounds=4,8", "--over", "rounds=16"], "got rounds twice"),
        (["--over", "seed=1,2", "--seeds", "2"], "got both. Remove one."),
        (["--over", "rounds=1,2", "--seeds", "6000"], "at most 10000 runs"),
        ([], "use topdp run"),
        (["--seeds", "0"], "greater than or equal to 1"),
        (["--resume", "nowhere"], "Remove the other options"),
    ],
)
def test_invalid_input_is_rejected_before_the_sweep(topdp, command, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    done = topdp(*command(*arguments))
    assert done.code == 2, done.err
    assert says in " ".join(done.err.split()) and "Traceback" not in done.err
    assert not list(tmp_path.glob("sweeps")) and "training" not in done.err


def test_folders_of_other_sweeps_or_files_are_rejected(topdp, command, tmp_path):
    two = ("--over", RATES)
    assert topdp(*command(*two, "--out", tmp_path / "s")).code == 0
    for wrong in (command("--over", "train.learning_rate=0.2,0.6"), command(*two, "--seeds", 2)):
        other = topdp(*wrong, "--out", tmp_path / "s")
        assert other.code == 2 and "--resume" in other.err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    assert "new or empty" in topdp(*command(*two, "--out", tmp_path / "other")).err
    assert "Expected a sweep" in topdp("sweep", "--resume", tmp_path / "other").err
    (tmp_path / "s" / "sweep.json").write_text('{"format": 99}')
    assert "another version" in topdp("sweep", "--resume", tmp_path / "s").err
    (tmp_path / "s" / "sweep.json").write_text("[1]")
    done = topdp("sweep", "--resume", tmp_path / "s")
    assert done.code == 2 and "Expected a sweep" in done.err


def test_a_foreign_run_in_the_folder_of_a_point_is_rejected(grid, tmp_path):
    wanted = grid(RATES, seeds=1)
    runs.run(wanted[1].config, tmp_path / wanted[0].folder)
    with pytest.raises(runs.RunFolderError, match=r"got other values of train\.learning_rate"):
        run_all(wanted, tmp_path)


def test_a_sweep_does_not_resume_with_other_records(small, tmp_path, monkeypatch):
    own = blobs_file(tmp_path / "own.npz", 300)
    base = config.read(changes=[*small, f'data.name="{own}"']).to_toml()
    wanted = resolved_points(sweep.SweepRequest(base, (Axis.of(RATES),), 1).points())

    def stop(stage, *_, **__):
        if "run 2 of 2" in stage:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_stacked", lambda *_: None)
    monkeypatch.setattr(sweep, "_stacks", lambda runs, *_: [[run] for run in runs])
    with pytest.raises(InterruptedRun):
        run_all(wanted, tmp_path / "s", stop)
    assert RunFolder.open(tmp_path / "s" / wanted[0].folder).state == "done"
    with np.load(own) as held:
        arrays = dict(held)
    arrays["train_inputs"] = arrays["train_inputs"][::-1].copy()
    np.savez(own, **arrays)
    with pytest.raises(
        runs.RunFolderError, match=r"the records of the finished runs in .*, got other records"
    ):
        run_all(wanted, tmp_path / "s")


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_process_leaves_a_sweep_that_can_resume(topdp, command, tmp_path, kill):
    """The runs are not stacked, and last long enough to be interrupted."""
    asked = command("--over", "rounds=8000,7999", "--set", "method.name=plain")
    process = subprocess.Popen(
        [sys.executable, "-m", "topdp", *asked, "--out", str(tmp_path / "s")],
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not (tmp_path / "s" / "1" / "checkpoint.safetensors").exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(kill)
    _, err = process.communicate(timeout=120)
    if kill == signal.SIGINT:
        assert process.returncode == 130
        assert f"Continue with: topdp sweep --resume {tmp_path / 's'}" in " ".join(err.split())
    assert RunFolder.open(tmp_path / "s" / "1").state in ("running", "interrupted")
    request = sweep.SweepRequest.read(tmp_path / "s")
    assert [axis.values for axis in request.axes] == [("8000", "7999")]
    point = resolved_points(request.points())[0]
    assert RunFolder.open(tmp_path / "s" / "1").checkpoint_size()
    assert not sweep.is_over(tmp_path / "s", point)


class TestCompare:
    @pytest.mark.slow
    def test_several_seeds_give_spreads_and_one_seed_gives_single_results(self, topdp, command, tmp_path):
        asked = ["compare", *command()[1:], "--methods", "plain,top"]
        done = topdp(*asked, "--seeds", 3, "--out", tmp_path / "c")
        assert done.code == 0, done.err
        assert "±" in done.out and (tmp_path / "c" / "compare.png").exists()
        assert sorted(os.listdir(tmp_path / "c" / "plain")) == ["seed-0", "seed-1", "seed-2"]
        told = json.loads(topdp(*asked, "--seeds", 3, "--out", tmp_path / "c", "--json").out)
        assert [point["chosen"] for point in told["points"]] == [{"method": "plain"}, {"method": "top"}]
        assert told["points"][0]["metrics"]["accuracy"]["n"] == 3
        alone = topdp(*asked, "--out", tmp_path / "one", "--json")
        assert list(json.loads(alone.out)["methods"]) == ["plain", "top"]
        first = RunFolder.open(tmp_path / "c" / "top" / "seed-0")
        np.testing.assert_allclose(
            first.estimates, RunFolder.open(tmp_path / "one" / "top").estimates, rtol=1e-3, atol=1e-5
        )

    @pytest.mark.slow
    def test_adding_seeds_keeps_finished_runs(self, topdp, command, tmp_path, monkeypatch):
        asked = ["compare", *command()[1:], "--methods", "plain,top", "--out", tmp_path / "c"]
        assert topdp(*asked, "--seeds", 2).code == 0
        made = []
        real = sweep._run_stack
        monkeypatch.setattr(
            sweep, "_run_stack", lambda stack, *rest: (made.extend(stack), real(stack, *rest))
        )
        assert topdp(*asked, "--seeds", 3).code == 0
        assert [(point.chosen["method"], point.seed) for point in made] == [("plain", 2), ("top", 2)]


def test_points_reads_each_combination_once():
    read = SimpleNamespace(count=0)

    def count(changes):
        read.count += 1
        return config.read(changes=changes)

    found = points(count, [Axis.of("rounds=1,2,3")], 4)
    assert read.count == 3 and len(found) == 12 and found[0].folder == "01"
    with pytest.raises(ConfigError, match="rounds"):
        points(count, [Axis.of("rounds=1,-1")], 1)


def test_models_with_dropout_inside_layers_are_not_stacked():
    """In a stack they would draw other masks than alone."""
    from torch import nn

    def random(module):
        return sweep._random(SimpleNamespace(flat=SimpleNamespace(module=module)))

    assert random(nn.LSTM(3, 4, num_layers=2, dropout=0.5)) and random(
        nn.MultiheadAttention(4, 2, dropout=0.1)
    )
    assert random(nn.Dropout()) and not random(nn.LSTM(3, 4))


def test_a_sweep_with_a_budget_and_noise_is_refused(topdp, tmp_path):
    done = topdp(
        "sweep", "--over", "privacy.sigma=0.1,1", "--set", "privacy.epsilon=1", "--out", tmp_path / "sweep"
    )
    assert done.code == 2 and "--set and --over: expected either privacy.epsilon" in " ".join(
        done.err.split()
    )

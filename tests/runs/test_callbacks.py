"""Callbacks: their arguments, when they are called, how they stop a run, and what happens if one fails."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.numpy import load_file

import topdp
from builders import blobs, linear_model
from topdp import topology
from topdp.errors import InputError
from topdp.runs import best_estimates
from topdp.runs import run as runs
from topdp.runs.callbacks import StopEarly
from topdp.runs.config import ConfigError
from topdp.runs.run_folder import RunFolder
from topdp.runs.run_outline import RunOutline
from topdp.runs.training_loop import InterruptedRun

ROUNDS = 12


def train(callbacks=(), **settings):
    given = {
        "noise_seed": 0,
        "method": "top-dp",
        "sigma": 0.05,
        "clip": 1.0,
        "rounds": ROUNDS,
        "evaluate_every": 3,
        "checkpoint_every": 5,
    }
    shards = settings.pop("shards", None) or blobs(5)
    return topdp.train(linear_model(), shards, topology.ring(5), callbacks=callbacks, **{**given, **settings})


class Recorder:
    def __init__(self):
        self.calls, self.seen = [], []

    def on_start(self, run):
        self.calls.append(("start", run.round))
        self.seen.append(run)

    def on_round(self, run):
        self.calls.append(("round", run.round))

    def on_evaluation(self, run):
        assert run.metrics["round"] == run.round and run.evaluated
        self.calls.append(("evaluation", run.round))

    def on_end(self, result):
        self.calls.append(("end", result.accuracy["mean"]))

    def on_break(self, error):
        self.calls.append(("break", type(error).__name__))


def test_the_methods_of_a_callback_are_called_in_order():
    recorder = Recorder()
    result = train([recorder])
    rounds = []
    for t in range(ROUNDS + 1):
        rounds += [("round", t)] + [("evaluation", t)] * (t % 3 == 0)
    assert recorder.calls == [("start", None), *rounds, ("end", result.accuracy["mean"])]
    (run,) = recorder.seen
    assert run.config == result.config and run.rounds == ROUNDS
    assert run.plan.digest() == result.plan.digest() and run.privacy.epsilon == result.privacy.epsilon


def test_a_function_is_called_after_every_round():
    rounds = []
    train([lambda run: rounds.append((run.round, run.evaluated))])
    assert rounds == [(t, t % 3 == 0) for t in range(ROUNDS + 1)]


def test_a_callback_cannot_change_the_run():
    def meddle(run):
        run.estimates.zero_()
        for parameter in run.model(0).parameters():
            parameter.data.zero_()
        if run.metrics:
            run.metrics.clear()
            run.history.clear()
        run.estimates.zero_()

    plain, meddled = train(), train([meddle])
    assert torch.equal(plain.estimates, meddled.estimates) and plain.metrics == meddled.metrics


def test_a_callback_gets_the_estimates_of_its_round():
    seen = {}
    result = train([lambda run: seen.update({run.round: run.estimates})])
    assert torch.equal(seen[ROUNDS], result.estimates)
    assert not torch.equal(seen[0], seen[1])  # copies, because the engine reuses its buffers
    assert torch.equal(seen[3], train(rounds=ROUNDS, callbacks=[stop_at(3)]).estimates)


def test_callbacks_get_no_statistics_of_training_records():
    given = []
    train([lambda run: given.append({name for name in dir(run) if not name.startswith("_")})])
    assert given[0] == {
        "advance", "config", "estimates", "evaluated", "flat", "folder", "history", "larger_is_better",
        "metrics", "model", "plan", "privacy", "round", "rounds", "stop", "stopped", "stopped_at",
    }  # fmt: skip
    lines = []
    train([lambda run: lines.append(run.metrics)])
    assert {key for line in lines for key in line} == {
        "round", "accuracy", "loss", "accuracy_per_agent", "loss_per_agent"
    }  # fmt: skip


def stop_at(round):
    def stop(run):
        if run.round == round:
            run.stop("enough")

    return stop


def test_a_stopped_run_reports_the_epsilon_of_the_whole_plan_and_can_resume(tmp_path):
    whole = train(out=tmp_path / "whole")
    stopped = train([stop_at(7)], out=tmp_path / "run")
    assert stopped.stopped == (7, "enough")
    assert stopped.privacy.epsilon == whole.privacy.epsilon
    assert stopped.summary()["stopped"] == {"round": 7, "reason": "enough"}
    assert "whole plan, an upper bound" in stopped.stopped.statement
    assert [line["round"] for line in stopped.metrics] == [0, 3, 6]
    folder = RunFolder.open(tmp_path / "run")
    assert (folder.state, folder.checkpoint_size()[0]) == ("stopped", 8)
    assert folder.fact("stopped") == {"round": 7, "reason": "enough"}
    assert torch.equal(torch.from_numpy(folder.estimates), stopped.estimates)
    resumed = train(out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.estimates, whole.estimates) and resumed.metrics == whole.metrics
    assert resumed.stopped is None
    folder = RunFolder.open(tmp_path / "run")
    assert (folder.state, folder.fact("stopped")) == ("done", None)
    assert not (folder.path / "checkpoint.safetensors").exists()


def test_a_stop_after_the_last_round_has_no_effect():
    assert train([stop_at(ROUNDS)]).stopped is None


def test_after_an_exception_the_run_resumes_from_the_same_round(tmp_path):
    recorder = Recorder()

    class Fails:
        def on_round(self, run):
            if run.round == 7:
                raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        train([recorder, Fails()], out=tmp_path / "run")
    assert raised.value.__notes__ == ["Raised by the callback Fails.on_round after round 7."]
    assert recorder.calls[-1] == ("break", "ZeroDivisionError")
    folder = RunFolder.open(tmp_path / "run")
    assert (folder.state, folder.checkpoint_size()[0]) == ("interrupted", 8)
    resumed = train(out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.estimates, train().estimates)


@pytest.mark.parametrize("where", ["on_start", "on_end", "on_evaluation"])
def test_after_an_exception_in_any_method_the_run_folder_is_usable(tmp_path, where):
    def fail(_):
        raise RuntimeError(where)

    with pytest.raises(RuntimeError, match=where):
        train([type("Fails", (), {where: staticmethod(fail)})()], out=tmp_path / "run")
    if where == "on_end":
        assert RunFolder.open(tmp_path / "run").state == "done"
    else:
        resumed = train(out=tmp_path / "run", resume=True)
        assert torch.equal(resumed.estimates, train().estimates)


def test_an_exception_in_on_break_does_not_hide_the_first():
    class Fails:
        def on_round(self, run):
            raise ZeroDivisionError("first")

        def on_break(self, error):
            raise KeyError("second")

    with pytest.raises(ZeroDivisionError, match="first") as raised:
        train([Fails()])
    assert "second" in raised.value.__notes__[-1]


def test_ctrl_c_in_a_callback_interrupts_the_run(tmp_path):
    def interrupt(run):
        if run.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        train([interrupt], out=tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").checkpoint_size()[0] == 5
    assert torch.equal(train(out=tmp_path / "run", resume=True).estimates, train().estimates)


@pytest.mark.parametrize(
    ("callbacks", "says"),
    [
        ([StopEarly], r"got the class StopEarly. Use StopEarly\(\)"),
        ([3], "expected functions, or objects"),
        (StopEarly(), r"expected a list of callbacks, got .*Use \[callback\]"),
        (print, r"expected a list of callbacks, got .*Use \[callback\]"),
        (3, r"expected a list of callbacks, got .*Use \[callback\]"),
        ([type("Wrong", (), {"on_epoch": print})()], "on_epoch.*which nothing calls"),
        ([type("Wrong", (), {"on_rounds": print})()], "Did you mean 'on_round'"),
    ],
)
def test_invalid_callbacks_are_rejected_before_the_run(tmp_path, callbacks, says):
    with pytest.raises(ConfigError, match=says):
        train(callbacks, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class TestStopEarly:
    def test_it_stops_a_run_that_does_not_improve(self):
        result = train([StopEarly(patience=2)], rounds=300, learning_rate=1e-9, sigma=0.0, evaluate_every=5)
        assert result.stopped.round == 10  # the first evaluation was equally good
        assert result.stopped.reason == "accuracy has not become better in 2 evaluations"

    def test_it_does_not_stop_a_run_that_improves(self):
        result = train([StopEarly(patience=2, metric="loss")], sigma=0.0, learning_rate=0.05)
        losses = [line["loss"]["mean"] for line in result.metrics]
        assert losses == sorted(losses, reverse=True) and result.stopped is None

    def test_a_resumed_run_stops_in_the_same_round(self, tmp_path):
        slow = {"rounds": 60, "learning_rate": 1e-9, "sigma": 0.0, "evaluate_every": 5}

        def interrupt(run):
            if run.round == 8:
                raise KeyboardInterrupt

        with pytest.raises(InterruptedRun):
            train([StopEarly(patience=3), interrupt], out=tmp_path / "run", **slow)
        again = train([StopEarly(patience=3)], out=tmp_path / "run", resume=True, **slow)
        assert again.stopped.round == 15 == train([StopEarly(patience=3)], **slow).stopped.round
        once_more = train([StopEarly(patience=3)], out=tmp_path / "run", resume=True, **slow)
        assert once_more.stopped.round == 35  # round 20 is its first evaluation, with full patience

    def test_it_rejects_missing_test_sets_unknown_metrics_and_invalid_patience(self):
        with pytest.raises(InputError, match="expected shards with a test set, got none"):
            train([StopEarly()], shards=topdp.Shards.from_arrays([(x, y) for x, y in _records(5)]))
        with pytest.raises(InputError, match="Did you mean 'accuracy'"):
            train([StopEarly(metric="acuracy")])
        for wrong in (0, 1.5, True, "3"):
            with pytest.raises(InputError, match="patience"):
                StopEarly(wrong)


def regression():
    torch.manual_seed(1)
    x = torch.randn(6, 60, 3)
    y = x.sum(2, keepdim=True) + 0.1 * torch.randn(6, 60, 1)
    return topdp.Shards.from_arrays(list(zip(x[:5], y[:5], strict=True)), test=(x[5], y[5]))


class TestOtherTasks:
    def train(self, callbacks=(), **settings):
        given = {"sigma": 0.02, "clip": 1.0, "rounds": 12, "evaluate_every": 3, "loss": "mse"}
        return topdp.train(
            torch.nn.Linear(3, 1),
            regression(),
            topology.ring(5),
            callbacks=callbacks,
            **{**given, **settings},
        )

    @pytest.mark.parametrize(("metric", "choose"), [("mae", min), ("r2", max)])
    def test_the_best_has_the_least_error_or_the_largest_score(self, metric, choose):
        result = self.train(metrics=[metric], sigma=0.5)
        values = {line["round"]: line[metric]["mean"] for line in result.metrics}
        assert result.best.metric == metric and result.best.value == choose(values.values())
        assert values[result.best.round] == result.best.value

    def test_a_metric_without_a_direction_cannot_choose_the_best(self):
        def bias(outputs, targets):
            return (outputs - targets).mean()

        result = self.train(metrics=[bias])
        assert result.best.metric == "loss"
        with pytest.raises(InputError, match="whether more is better, got 'bias'"):
            self.train([StopEarly(metric="bias")], metrics=[bias])

    def test_an_error_that_does_not_fall_stops_the_run(self):
        stopped = self.train(
            [StopEarly(2, "mae")], learning_rate=1e-12, sigma=0.0, rounds=60, metrics=["mae"]
        )
        assert stopped.stopped.round == 6
        assert (
            self.train([StopEarly(2, "mae")], sigma=0.0, learning_rate=0.05, metrics=["mae"]).stopped is None
        )


def _records(agents):
    torch.manual_seed(0)
    return [(torch.randn(20, 16), torch.arange(20) % 3) for _ in range(agents)]


class TestBest:
    def test_the_estimates_of_the_best_evaluation_are_stored(self, tmp_path):
        seen = {}
        result = train(
            [lambda run: seen.update({run.round: run.estimates})], out=tmp_path / "run", sigma=0.5, rounds=30
        )
        means = {line["round"]: line["accuracy"]["mean"] for line in result.metrics}
        best_estimates = max(means, key=means.get)  # the first if several are equal
        assert (result.best.round, result.best.metric, result.best.value) == (
            best_estimates,
            "accuracy",
            means[best_estimates],
        )
        assert torch.equal(result.best.estimates, seen[best_estimates])
        assert torch.equal(
            torch.from_numpy(load_file(tmp_path / "run" / "best.safetensors")["estimates"]),
            seen[best_estimates],
        )
        for module, row in (
            (result.best_model(2), seen[best_estimates][2]),
            (result.model(2), result.estimates[2]),
        ):
            assert torch.equal(torch.cat([p.detach().flatten() for p in module.parameters()]), row)

    @pytest.mark.slow
    @pytest.mark.parametrize("killed_at", [1, 5, 6, 11, 16, 29])
    def test_a_killed_and_resumed_run_ends_with_the_same_best(self, tmp_path, killed_at):
        class Killed(BaseException):
            pass

        def kill(run):
            if run.round == killed_at:
                raise Killed

        settings = {"sigma": 0.5, "rounds": 30}
        whole = train(**settings)
        with pytest.raises(Killed):
            train([kill], out=tmp_path / "run", **settings)
        again = train(out=tmp_path / "run", resume=True, **settings)
        assert again.best[:3] == whole.best[:3] and torch.equal(again.best.estimates, whole.best.estimates)

    @pytest.mark.parametrize("large", [best_estimates.MAX_COPIED_NUMBERS, 1], ids=["in memory", "on disk"])
    def test_a_kill_between_best_and_checkpoint_changes_nothing(self, tmp_path, monkeypatch, large):
        monkeypatch.setattr(best_estimates, "MAX_COPIED_NUMBERS", large)

        class Killed(BaseException):
            pass

        def kill(folder, releases, rows):
            if releases > 10:
                raise Killed
            real(folder, releases, rows)

        settings = {"sigma": 0.5, "rounds": 30}
        real = RunFolder.save_checkpoint
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(RunFolder, "save_checkpoint", kill)
            train(out=tmp_path / "run", **settings)
        again, whole = train(out=tmp_path / "run", resume=True, **settings), train(**settings)
        assert again.best[:3] == whole.best[:3] and torch.equal(again.best.estimates, whole.best.estimates)
        kept = best_estimates.read(RunFolder.open(tmp_path / "run"))
        assert kept[:3] == whole.best[:3] and torch.equal(kept.estimates, whole.best.estimates)
        assert not (tmp_path / "run" / best_estimates.PENDING_FILE).exists()

    def test_without_a_test_set_there_is_no_best(self, tmp_path):
        result = train(shards=topdp.Shards.from_arrays(_records(5)), out=tmp_path / "run")
        assert result.best is None and not (tmp_path / "run" / "best.safetensors").exists()
        with pytest.raises(InputError, match="test records"):
            result.best_model(0)


@pytest.mark.slow
def test_a_killed_process_leaves_a_run_that_can_resume(tmp_path):
    """There is no exception: the process ends in the middle of a callback."""
    code = """
import os, sys
from test_callbacks import train
def kill(run):
    if run.round == 8:
        os._exit(9)
train([kill], out=sys.argv[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        env={**__import__("os").environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 9
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "running"
    again = train(out=tmp_path / "run", resume=True)
    assert torch.equal(again.estimates, train().estimates)


def test_runs_of_a_configuration_accept_callbacks_too(tmp_path):
    from builders import blobs_file
    from topdp.runs import config

    data = blobs_file(tmp_path / "blobs.npz", 300)
    wanted = config.read(
        changes=[f'data.name="{data}"', "topology.agents=6", "topology.connection=0.5", "rounds=12",
                 "privacy.sigma=0.05"]
    )  # fmt: skip
    stopped = runs.run(wanted, tmp_path / "run", callbacks=[stop_at(4)])
    assert stopped.stopped.round == 4
    assert runs.resume(tmp_path / "run", callbacks=[stop_at(7)]).stopped.round == 7
    assert runs.run_or_continue(RunOutline.of(wanted), tmp_path / "run").stopped is None

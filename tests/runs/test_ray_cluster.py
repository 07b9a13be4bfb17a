"""Ray clusters: addresses, rejections, and one real cluster of two nodes on loopback (ray_jobs.py).

The cluster is one test: pytest may spread tests over several processes, and each would start a cluster.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import ray_jobs
from builders import blobs_file
from topdp.base.progress import silent
from topdp.runs import ray_cluster, sweep
from topdp.runs.best_estimates import read as read_best
from topdp.runs.code_fingerprint import fingerprint
from topdp.runs.ray_cluster import ClusterError
from topdp.runs.run_folder import RunFolder

TESTS = Path(__file__).parents[1]


def of_ours(folder):
    """Processes started for this folder, directly or indirectly: their environment contains its path."""
    found, mark = [], f"RAY_JOBS={folder}".encode()
    for one in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in one.read_bytes().split(b"\0"):
                found.append(int(one.parent.name))
    return found


@pytest.fixture
def jobs(tmp_path):
    """The folder of all finished jobs; in any case, no process is left."""
    blobs_file(tmp_path / "blobs.npz", 120)
    short = tempfile.mkdtemp(prefix="ray")  # paths of sockets must be short
    told = {
        "RAY_JOBS": str(tmp_path), "RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # nodes then listen on loopback only
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]),
    }  # fmt: skip
    command = [sys.executable, "-W", "error", str(TESTS / "ray_jobs.py"), str(tmp_path)]
    try:
        done = subprocess.run(
            command, env={**os.environ, **told}, capture_output=True, text=True, timeout=300
        )
        left = of_ours(tmp_path)
        assert done.returncode == 0, done.stderr
        assert not left
        yield tmp_path
    finally:
        for process in of_ours(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(short, ignore_errors=True)


def expect_as_here(folder, name, wanted):
    place = folder / f"{name} here"
    sweep.run_all(wanted, place, "cpu", silent, "again")
    for point in wanted:
        there, here = (RunFolder.open(one / point.folder) for one in (folder / name, place))
        assert np.array_equal(there.estimates, here.estimates)
        assert torch.equal(read_best(there).estimates, read_best(here).estimates)
        assert there.metrics == here.metrics and there.config == here.config
        assert there.plan.digest() == here.plan.digest()
        assert there.read_json("privacy.json") == here.read_json("privacy.json")
        assert {one.name for one in there.path.iterdir()} == {one.name for one in here.path.iterdir()}
        facts = [{**one.read_json("run.json"), "seconds": 0} for one in (there, here)]
        assert facts[0] == facts[1]


@pytest.mark.slow
def test_two_nodes_give_the_results_of_one_machine_despite_failures(jobs, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("RAY_JOBS", str(jobs))
    told = {file.stem: json.loads(file.read_text()) for file in jobs.glob("*.json")}
    assert set(told) == {"alone", "together", "failing", "worker", "always", "older", "node"}

    assert told["alone"]["code"] == 0 and len(set(told["alone"]["where"])) == 2  # on both nodes
    expect_as_here(jobs, "alone", ray_jobs.points(jobs, ray_jobs.RATES, changes=ray_jobs.ALONE))

    assert told["together"]["code"] == 0 and len(told["together"]["where"]) == 1  # one stack
    expect_as_here(jobs, "together", ray_jobs.points(jobs, ray_jobs.RATES, changes=[]))

    assert told["failing"]["code"] == 2
    assert "run 2 (ray_jobs:failing), seed 0: model.name: " in told["failing"]["error"]
    assert "no weights on this machine" in told["failing"]["error"]
    assert RunFolder.open(jobs / "failing" / "1").state == "done" and not (jobs / "failing" / "2").exists()

    assert told["worker"]["code"] == 0
    assert RunFolder.open(jobs / "worker" / "1").state == "done"

    assert told["always"]["code"] == 2 and "WorkerCrashedError: " in told["always"]["error"]
    assert RunFolder.open(jobs / "always" / "1").state == "done" and not (jobs / "always" / "2").exists()

    assert told["older"]["code"] == 2 and "is 0.1.0 there, 9.9.9 here" in told["older"]["error"]
    assert {file.name for file in (jobs / "older").iterdir()} <= {"records.json", "records.key"}

    assert told["node"]["code"] == 0
    assert len(set(told["node"]["where"])) == 1
    dying = [*ray_jobs.ALONE, "model.name=ray_jobs:on_a_node_that_dies"]
    expect_as_here(jobs, "node", ray_jobs.points(jobs, ray_jobs.RATES, changes=dying))
    torch.set_num_threads(before)


def test_joining_a_cluster_that_does_not_answer_times_out(monkeypatch):
    """Ray itself would wait for minutes: topdp stops the process that tries to join."""
    monkeypatch.setattr(ray_cluster, "JOIN_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(ClusterError, match="no answer within"), ray_cluster.ray_cluster("127.0.0.1:9"):
        pytest.fail("joined")


@pytest.mark.parametrize(
    ("err", "says"),
    [
        ("a\nConnectionError: Could not find any running Ray instance.\n", "find any running Ray instance"),
        ("", "Ray ended"),
    ],
)
def test_the_reason_why_ray_does_not_join_is_one_line(monkeypatch, err, says):
    done = SimpleNamespace(returncode=3, stdout="", stderr=err)
    monkeypatch.setattr(ray_cluster.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(ClusterError, match=says) as refused, ray_cluster.ray_cluster("auto"):
        pytest.fail("joined")
    assert "\n" not in str(refused.value)


class Nodes:
    """A substitute for Ray that only answers what nodes it has."""

    def __init__(self, *resources):
        self.held = [{"Alive": True, "Resources": one} for one in resources]

    def nodes(self):
        return [*self.held, {"Alive": False, "Resources": {"CPU": 100.0, "GPU": 100.0}}]

    def remote(self, function):
        return self

    def options(self, **_):
        return self


def test_a_request_for_more_cpus_than_any_node_has_is_rejected():
    with pytest.raises(ClusterError, match=r"Expected a node with 8 CPUs .* got nodes with 4 and 0; 2 and 1"):
        ray_cluster.RayCluster(Nodes({"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}), 8, 0.0)


@pytest.fixture
def on_a_node(monkeypatch):
    """The function that is sent to a node, called in this process."""
    context = SimpleNamespace(get_node_id=lambda: "0123456789")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "1")
    return ray_cluster.remote_function()


def test_a_node_with_other_code_computes_nothing(on_a_node, monkeypatch):
    said = on_a_node({**fingerprint(), "topdp": "9.9.9"}, (), 2, b"never looked at")
    assert "(node 01234567): topdp is" in said and "there, 9.9.9 here" in said
    assert os.environ["OMP_NUM_THREADS"] == "2" and os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setitem(sys.modules, "topdp.runs.code_fingerprint", None)
    assert "could not be imported, or is older" in on_a_node(fingerprint(), (), 1, b"never looked at")


def test_a_node_without_a_users_module_computes_nothing(on_a_node):
    told = {**fingerprint(("ray_jobs",)), "module mine": "0123"}
    assert "module mine is missing there, 0123 here" in on_a_node(told, ("ray_jobs", "mine"), 1, b"")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--executor", "rey"], "Did you mean 'ray'"),
        (["--address", "auto"], "--address needs --executor ray"),
        (["--cpus", "2"], "--cpus needs --executor ray"),
        (["--executor", "ray", "--device", "cpu"], "expected auto with --executor ray"),
        (["--executor", "ray", "--cpus", "0"], "greater than or equal to 1"),
    ],
)
def test_incompatible_options_are_rejected(topdp, tmp_path, arguments, says):
    done = ask(topdp, tmp_path, *arguments)
    assert done.code == 2 and says in " ".join(done.err.split()) and not (tmp_path / "s").exists()


def test_an_interrupt_prints_the_command_that_continues_on_the_cluster(topdp, tmp_path, monkeypatch):
    @contextmanager
    def joined(*given):
        assert given == ("head:6379", 2, 0.0)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(ray_cluster, "ray_cluster", joined)
    done = ask(topdp, tmp_path, "--executor", "ray", "--address", "head:6379", "--cpus", "2")
    again = f"topdp sweep --resume {tmp_path / 's'} --executor ray --address head:6379 --cpus 2"
    assert done.code == 130 and again in " ".join(done.err.split())


def test_without_ray_one_line_states_what_to_install(topdp, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = ask(topdp, tmp_path, "--executor", "ray")
    assert (
        done.code == 2
        and "pip install -c constraints.txt '.[ray]'" in done.err
        and "Traceback" not in done.err
    )
    assert not (tmp_path / "s").exists()


def ask(topdp, tmp_path, *arguments):
    blobs_file(tmp_path / "blobs.npz", 120)
    few = [f'data.name="{tmp_path / "blobs.npz"}"', *ray_jobs.BASE]
    changes = [part for change in few for part in ("--set", change)]
    return topdp("sweep", *changes, "--over", "rounds=2,3", "--out", tmp_path / "s", *arguments)

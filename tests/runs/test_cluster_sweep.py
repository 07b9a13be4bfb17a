"""Sweeps on a cluster, tested with a substitute for Ray that computes tasks in this process."""

import os
import pickle
import shutil
from types import SimpleNamespace

import pytest
import torch

from builders import blobs_file
from topdp.base.files import FileError, LockHeldError, exclusive_lock
from topdp.base.progress import silent
from topdp.errors import DataError, InputError
from topdp.plan.noise_key import NoiseKey
from topdp.runs import config, ray_cluster, sweep
from topdp.runs.cluster_tasks import StackResult, StackTask, compute
from topdp.runs.config import ConfigError
from topdp.runs.ray_cluster import ClusterError, RayCluster
from topdp.runs.run_folder import RunFolder
from topdp.runs.sweep_grid import Axis, resolved_points
from topdp.runs.training_loop import InterruptedRun
from topdp.topology import ring

RATES = "train.learning_rate=0.1,0.2,0.4"
ALONE = ("train.optimiser=adam", "method.name=muffliato", "method.gossip=2")


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Restore the number of threads, which tasks set for their own process."""
    monkeypatch.setenv("TOPDP_CORES", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 120)


@pytest.fixture
def grid(data):
    def make(*over, seeds=1, changes=ALONE):
        few = [
            f'data.name="{data}"', "topology.agents=4", "topology.kind=ring", "rounds=4",
            "privacy.sigma=0.05", "privacy.clip=1.0", "privacy.guarantee=worst-case",
            "train.evaluate_every=2", "noise_seed=0",
        ]  # fmt: skip
        base = config.read(changes=[*few, *changes]).to_toml()
        return resolved_points(sweep.SweepRequest(base, tuple(map(Axis.of, over)), seeds).points())

    return make


class RayTaskError(Exception):
    """As Ray's."""


class RayError(Exception):
    """As Ray's."""


class FakeRay:
    """Computes tasks in this process when it waits for them; `instead`: results or errors by task number."""

    exceptions = SimpleNamespace(RayTaskError=RayTaskError, RayError=RayError)

    def __init__(self, instead=None, cpus=2.0):
        self.instead, self.cpus = instead or {}, cpus
        self.tasks, self.stored, self.most, self.cancelled = {}, [], 0, []

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": self.cpus}}]

    def cluster_resources(self):
        return {"CPU": self.cpus}

    def put(self, value):
        self.stored.append(value)
        return len(self.stored) - 1

    def remote(self, *arguments):
        if callable(arguments[0]):
            return self
        _, _, _, task, *records = arguments
        self.tasks[len(self.tasks) + 1] = task, [self.stored[number] for number in records]
        return len(self.tasks)

    def options(self, **_):
        return self

    def wait(self, handles, num_returns, timeout):
        self.most = max(self.most, len(handles))
        return handles[:1], handles[1:]

    def get(self, handle):
        outcome = self.instead.get(handle)
        if isinstance(outcome, BaseException):
            raise outcome
        # Serialised, as on a real cluster.
        return outcome or pickle.loads(pickle.dumps(compute(*self.tasks[handle])))

    def cancel(self, handle, force):
        self.cancelled.append(handle)

    @property
    def configs(self):
        return [pickle.loads(task).runs[0].config for task, _ in self.tasks.values()]


def run_all(points, place, ray=None, progress=silent):
    cluster = None if ray is None else RayCluster(ray, 1, 0.0)
    sweep.run_all(points, place, "cpu" if cluster is None else "auto", progress, "again", cluster)


def states(place, points):
    folders = [place / point.folder for point in points]
    return [RunFolder.open(one).state if (one / "run.json").exists() else None for one in folders]


def expect_equal(place, other, points):
    for point in points:
        ours, theirs = (RunFolder.open(one / point.folder) for one in (place, other))
        assert sorted(os.listdir(ours.path)) == sorted(os.listdir(theirs.path))
        for name in os.listdir(ours.path):
            if name not in ("run.json", "plan.npz"):
                assert (ours.path / name).read_bytes() == (theirs.path / name).read_bytes(), name
        assert ours.plan.digest() == theirs.plan.digest()
        facts = [{**one.read_json("run.json"), "seconds": 0} for one in (ours, theirs)]
        assert facts[0] == facts[1]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [ALONE, ()], ids=["alone", "together"])
def test_folders_equal_those_of_a_local_sweep(grid, tmp_path, changes):
    wanted = grid("train.learning_rate=0.1,0.2", seeds=2, changes=changes)
    ray = FakeRay()
    run_all(wanted, tmp_path / "there", ray)
    run_all(wanted, tmp_path / "here")
    expect_equal(tmp_path / "there", tmp_path / "here", wanted)
    assert len(ray.tasks) == (4 if changes else 1)
    assert len(ray.stored) == 2  # once per seed
    assert ray.most <= ray.cpus + ray_cluster.QUEUED_TASKS


def test_runs_on_the_same_records_follow_each_other(grid, tmp_path):
    ray = FakeRay()
    run_all(grid("train.learning_rate=0.1,0.2", seeds=2), tmp_path, ray)
    assert [config.seed for config in ray.configs] == [0, 0, 1, 1]


def test_tasks_do_not_read_files_of_the_user(grid, tmp_path, data):
    graph, own = tmp_path / "graph.txt", tmp_path / "own.npz"
    graph.write_text("".join(f"{i} {j}\n" for i, j in ring(4).edges))
    shutil.copy(data, own)
    files = ["topology.kind=file", f'topology.path="{graph}"', f'data.name="{own}"']
    wanted = grid(RATES, changes=[*ALONE, *files])
    ray = FakeRay()
    real = ray.wait

    def wait(*arguments, **options):
        for file in (graph, own):
            file.unlink(missing_ok=True)
        return real(*arguments, **options)

    ray.wait, ray.cpus = wait, 3.0
    run_all(wanted, tmp_path / "there", ray)
    assert states(tmp_path / "there", wanted) == ["done"] * 3


@pytest.mark.parametrize(
    ("outcome", "error", "says"),
    [
        (
            StackResult([], DataError("Expected records."), "there"),
            DataError,
            "run 2 .*0.2.*: Expected records.",
        ),
        (StackResult([], InputError("Expected less."), "there"), ValueError, "Expected less"),
        (RayTaskError("Traceback: a fault"), RuntimeError, "failed on another machine:\nTraceback: a fault"),
        (RayError("The node died. More."), ClusterError, "RayError: The node died, also after 3 retries"),
    ],
)
def test_a_failing_task_is_reported_after_the_others(grid, tmp_path, outcome, error, says):
    wanted = grid(RATES)
    with pytest.raises(error, match=f"(?s){says}.* All other runs are done"):
        run_all(wanted, tmp_path, FakeRay({2: outcome}))
    assert states(tmp_path, wanted) == ["done", None, "done"]
    again = FakeRay()
    run_all(wanted, tmp_path, again)
    assert len(again.tasks) == 1 and states(tmp_path, wanted) == ["done"] * 3


def test_errors_of_topdp_are_results_and_others_are_raised(grid):
    (point,) = grid()

    def task(device):
        return StackTask(runs=(point.run,), keys=(NoiseKey.of_seed(0),), records=(), device=device, threads=1)

    with pytest.raises(ValueError, match="argument 2 is longer"):  # one set of records too many
        compute(pickle.dumps(task("cpu")), [b""])
    result = compute(pickle.dumps(task("cuda:99")), [])
    assert result.error.code == 2 and "cuda:99" in str(result.error)


def test_a_machine_with_other_code_ends_the_sweep(grid, tmp_path):
    wanted, ray = grid(RATES), FakeRay({2: "topdp is 0.0.1 there"})
    with pytest.raises(ClusterError, match=r"0.0.1 there"):
        run_all(wanted, tmp_path, ray)
    assert ray.cancelled and states(tmp_path, wanted) == ["done", None, None]


def test_an_interrupt_cancels_tasks_and_keeps_finished_runs(grid, tmp_path):
    wanted, ray = grid(RATES), FakeRay({2: KeyboardInterrupt()})
    with pytest.raises(InterruptedRun, match="Continue with: again"):
        run_all(wanted, tmp_path, ray)
    assert ray.cancelled and states(tmp_path, wanted) == ["done", None, None]
    again = FakeRay()
    run_all(wanted, tmp_path, again)
    assert len(again.tasks) == 2


def test_a_full_disk_ends_the_sweep_and_cancels_tasks(grid, tmp_path, monkeypatch):
    wanted, ray = grid(RATES), FakeRay()
    with monkeypatch.context() as patched, pytest.raises(FileError, match="No space"):
        patched.setattr(RunFolder, "save_estimates", full)
        run_all(wanted, tmp_path, ray)
    assert ray.cancelled
    run_all(wanted, tmp_path, FakeRay())
    assert states(tmp_path, wanted) == ["done"] * 3


def full(*_):
    raise FileError("Could not write: No space left on device.")


def test_a_run_that_began_locally_continues_on_the_cluster(grid, tmp_path):
    wanted = grid(changes=[*ALONE, "train.checkpoint_every=1"])

    def interrupt(stage, done=0, total=None, /, **details):
        if stage.endswith("training") and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        run_all(wanted, tmp_path / "there", progress=interrupt)
    assert states(tmp_path / "there", wanted) == ["interrupted"]
    run_all(wanted, tmp_path / "there", FakeRay())
    run_all(wanted, tmp_path / "here")
    expect_equal(tmp_path / "there", tmp_path / "here", wanted)


def test_a_diverged_run_does_not_fail_the_sweep(grid, tmp_path):
    wanted = grid("train.learning_rate=0.2,1e25", changes=())
    run_all(wanted, tmp_path, FakeRay())
    assert states(tmp_path, wanted) == ["done", "diverged"]
    found = sweep.spreads_of(tmp_path, wanted)
    assert [run["state"] for one in found for run in one.runs] == ["done", "diverged"]


def test_sinks_are_rejected(grid, tmp_path):
    wanted = grid(RATES, changes=[*ALONE, 'report.sinks=["tensorboard"]'])
    with pytest.raises(ConfigError, match=r"got tensorboard. Remove them, or use --executor local"):
        run_all(wanted, tmp_path, FakeRay())


def test_two_sweeps_cannot_use_one_folder_at_once(grid, tmp_path):
    with exclusive_lock(tmp_path), pytest.raises(LockHeldError, match="another process is using it"):
        run_all(grid(RATES, changes=ALONE), tmp_path, FakeRay())

"""Sweeps by other machines, without any: a stand-in for the cluster carries orders out in this process."""

import os
import pickle
import shutil
from collections import Counter

import numpy as np
import pytest
import torch

from builders import blobs_file
from topdp.base.files import FileError, LockHeldError, exclusive_lock
from topdp.base.progress import silent
from topdp.errors import DataError
from topdp.runs import cluster_orders, cluster_sweep, config, sweep
from topdp.runs.cluster_orders import Differs, Failed, Lost, answer, packed, unpacked
from topdp.runs.cluster_sweep import Cluster, ClusterError
from topdp.runs.config import ConfigError
from topdp.runs.run_folder import RunFolder
from topdp.runs.sweep_grid import Axis, checked
from topdp.runs.training_loop import InterruptedRun
from topdp.topology import ring

RATES = "train.learning_rate=0.1,0.2,0.4"
ALONE = ("train.optimiser=adam", "method.name=muffliato", "method.gossip=2")


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Orders set threads, for their own process."""
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
            "train.evaluate_every=2",
        ]  # fmt: skip
        base = config.read(changes=[*few, *changes]).to_toml()
        return checked(sweep.Request(base, tuple(map(Axis.of, over)), seeds).points())

    return make


class StandIn(Cluster):
    """Carries out orders when it is asked for answers; `instead`: what comes back of the n-th."""

    device, cpus = "cpu", 1

    def __init__(self, instead=None, places=2):
        self.instead, self.room = instead or {}, places
        self.out, self.puts, self.given, self.most, self.cancelled = {}, [], [], 0, False

    def put(self, records):
        self.puts.append(pickle.dumps(records))
        return len(self.puts) - 1

    def give(self, order, records):
        self.given.append(order)
        self.out[len(self.given)] = pickle.dumps(order), [self.puts[one] for one in records]
        self.most = max(self.most, len(self.out))
        return len(self.given)

    def answers(self, seconds):
        if not self.out:
            return []
        number = next(iter(self.out))
        order, records = self.out.pop(number)
        found = self.instead.get(number)
        if isinstance(found, type):
            raise found
        if found is None:  # through bytes, as on the way
            found = pickle.loads(pickle.dumps(answer(order, [pickle.loads(one) for one in records])))
        return [(number, found)]

    def places(self):
        return self.room

    def cancel(self):
        self.cancelled = True


def run_all(points, place, cluster=None, progress=silent):
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
def test_folders_are_those_of_a_sweep_on_this_machine(grid, tmp_path, changes):
    wanted = grid("train.learning_rate=0.1,0.2", seeds=2, changes=changes)
    cluster = StandIn()
    run_all(wanted, tmp_path / "there", cluster)
    run_all(wanted, tmp_path / "here")
    expect_equal(tmp_path / "there", tmp_path / "here", wanted)
    assert len(cluster.given) == (4 if changes else 1)
    assert len(cluster.puts) == 2  # of each seed once
    assert cluster.most <= cluster.room + cluster_sweep.AHEAD


def test_runs_on_the_same_records_come_together(grid, tmp_path):
    cluster = StandIn()
    run_all(grid("train.learning_rate=0.1,0.2", seeds=2), tmp_path, cluster)
    assert [order.configs[0].seed for order in cluster.given] == [0, 0, 1, 1]


def test_a_machine_needs_no_file_of_the_user(grid, tmp_path, data):
    graph, own = tmp_path / "graph.txt", tmp_path / "own.npz"
    graph.write_text("".join(f"{i} {j}\n" for i, j in ring(4).edges))
    shutil.copy(data, own)
    files = ["topology.kind=file", f'topology.path="{graph}"', f'data.name="{own}"']
    wanted = grid(RATES, changes=[*ALONE, *files])
    cluster = StandIn()
    real = cluster.answers

    def answers(seconds):
        for file in (graph, own):
            file.unlink(missing_ok=True)
        return real(seconds)

    cluster.answers, cluster.room = answers, 3
    run_all(wanted, tmp_path / "there", cluster)
    assert states(tmp_path / "there", wanted) == ["done"] * 3


def test_what_is_lost_is_given_out_again(grid, tmp_path):
    said = []

    def progress(stage, *counts, **details):
        said.append(stage)

    wanted = grid(RATES)
    cluster = StandIn({1: Lost("the node is gone"), 2: Lost("so is this one")})
    run_all(wanted, tmp_path, cluster, progress)
    assert states(tmp_path, wanted) == ["done"] * 3 and len(cluster.given) == 5
    assert "run 1 (learning_rate = 0.1), seed 0: the node is gone; given out again (1 of 3)" in said


def test_what_is_lost_again_and_again_is_said_and_the_others_are_done(grid, tmp_path):
    wanted = grid(RATES)
    cluster = StandIn(places=1)
    real = cluster.answers

    def answers(seconds):
        found = real(seconds)
        second = [n for n, _ in found if cluster.given[n - 1].configs[0].train.learning_rate == 0.2]
        return [(n, Lost("gone") if n in second else one) for n, one in found]

    cluster.answers = answers
    with pytest.raises(ClusterError, match=r"run 2 .* gone, 4 times in a row. What did not fail is done"):
        run_all(wanted, tmp_path, cluster)
    assert states(tmp_path, wanted) == ["done", None, "done"]
    tried = Counter(order.configs[0].train.learning_rate for order in cluster.given)
    assert tried == {0.1: 1, 0.2: cluster_sweep.TRIES, 0.4: 1}
    again = StandIn()
    run_all(wanted, tmp_path, again)
    assert len(again.given) == 1 and states(tmp_path, wanted) == ["done"] * 3


@pytest.mark.parametrize(
    ("failed", "error", "says"),
    [
        (Failed("Expected records.", 5), DataError, "run 2 .*0.2.* seed 0: Expected records. What"),
        (Failed("Expected less.", 2), ValueError, "Expected less"),
        (Failed("Traceback: a fault", None), RuntimeError, "failed on another machine:\nTraceback: a fault"),
    ],
)
def test_an_order_that_fails_ends_as_here_after_the_others(grid, tmp_path, failed, error, says):
    wanted = grid(RATES)
    with pytest.raises(error, match=says):
        run_all(wanted, tmp_path, StandIn({2: failed}))
    assert states(tmp_path, wanted) == ["done", None, "done"]


def test_errors_there_come_back_in_words(grid):
    (point,) = grid()
    order = cluster_orders.Order((point.config,), (), {}, "cpu", 1)
    assert "Traceback" in answer(pickle.dumps(order), [{}]).message  # one set of records too many
    gone = answer(pickle.dumps(cluster_orders.Order((point.config,), (), {}, "cuda:99", 1)), [])
    assert gone.code == 2 and "cuda:99" in gone.message


def test_a_machine_with_other_code_stops_all(grid, tmp_path):
    wanted, cluster = grid(RATES), StandIn({2: Differs("topdp is 0.0.1 there")})
    with pytest.raises(ClusterError, match=r"0.0.1 there"):
        run_all(wanted, tmp_path, cluster)
    assert cluster.cancelled and states(tmp_path, wanted) == ["done", None, None]


def test_an_interruption_cancels_and_keeps_what_is_back(grid, tmp_path):
    wanted, cluster = grid(RATES), StandIn({2: KeyboardInterrupt})
    with pytest.raises(InterruptedRun, match="Continue with: again"):
        run_all(wanted, tmp_path, cluster)
    assert cluster.cancelled and states(tmp_path, wanted) == ["done", None, None]
    again = StandIn()
    run_all(wanted, tmp_path, again)
    assert len(again.given) == 2


def test_a_full_disk_ends_the_sweep_and_cancels(grid, tmp_path, monkeypatch):
    wanted, cluster = grid(RATES), StandIn()
    with monkeypatch.context() as patched, pytest.raises(FileError, match="No space"):
        patched.setattr(RunFolder, "save_estimates", full)
        run_all(wanted, tmp_path, cluster)
    assert cluster.cancelled
    run_all(wanted, tmp_path, StandIn())
    assert states(tmp_path, wanted) == ["done"] * 3


def full(*_):
    raise FileError("Could not write: No space left on device.")


def test_a_cluster_without_room_is_given_up(grid, tmp_path, monkeypatch):
    (point,) = grid()
    with pytest.raises(ClusterError, match="nodes are gone"):
        cluster_sweep.dispatched(
            [[point]],
            StandIn(places=0),
            sweep.Dealer(torch.device("cpu")),
            tmp_path,
            silent,
            0,
            1,
            0.0,
        )


def test_a_run_that_was_begun_here_is_done_there(grid, tmp_path):
    wanted = grid(changes=[*ALONE, "train.checkpoint_every=1"])

    def interrupt(stage, done=0, total=None, /, **details):
        if stage.endswith("training") and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        run_all(wanted, tmp_path / "there", progress=interrupt)
    assert states(tmp_path / "there", wanted) == ["interrupted"]
    run_all(wanted, tmp_path / "there", StandIn())
    run_all(wanted, tmp_path / "here")
    expect_equal(tmp_path / "there", tmp_path / "here", wanted)


def test_a_run_that_diverges_is_no_failure(grid, tmp_path):
    wanted = grid("train.learning_rate=0.2,1e25", changes=())
    run_all(wanted, tmp_path, StandIn())
    assert states(tmp_path, wanted) == ["done", "diverged"]
    found = sweep.found(tmp_path, wanted)
    assert [run["state"] for one in found for run in one.runs] == ["done", "diverged"]


def test_sinks_are_refused(grid, tmp_path):
    wanted = grid(RATES, changes=[*ALONE, 'report.sinks=["tensorboard"]'])
    with pytest.raises(ConfigError, match="got tensorboard: metrics"):
        run_all(wanted, tmp_path, StandIn())


def test_records_arrive_as_they_were_sent(grid):
    (point,) = grid()
    shards = sweep.Dealer(torch.device("cpu")).shards(point.config)
    sent = packed(shards)
    for value in sent.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False  # as Ray hands it over
    back = unpacked(sent)
    assert back.digest() == shards.digest() and torch.equal(back.test_inputs, shards.test_inputs)
    assert back.inputs.data_ptr() != shards.inputs.data_ptr() and back.counts == shards.counts


def test_one_sweep_at_a_time_in_a_folder(grid, tmp_path):
    with exclusive_lock(tmp_path), pytest.raises(LockHeldError, match="another process is using it"):
        run_all(grid(RATES, changes=ALONE), tmp_path, StandIn())

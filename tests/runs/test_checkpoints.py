"""Checkpoint files of several ranks: a run continues from the newest one that all ranks have written."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from builders import PROTOCOLS, constant_schedule
from topdp import topology
from topdp.plan import prune
from topdp.runs.checkpoints import Checkpoints
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.simulation import State

PLAN = prune(PROTOCOLS["top-sync"](0.25).plan(topology.ring(6), constant_schedule(5), np.ones(6), 0))
TWO, THREE = np.array([0, 0, 0, 1, 1, 1]), np.array([2, 0, 1, 1, 0, 2])


class Together:
    """Ranks as threads: `all` waits for the values of all of them."""

    def __init__(self, size):
        self.size, self.said = size, [None] * size
        self.barrier = threading.Barrier(size)

    def rank(self, rank):
        def every(value):
            self.said[rank] = value
            self.barrier.wait(30)
            said = list(self.said)
            self.barrier.wait(30)
            return said

        def together(step):
            found = step()
            every(None)
            return found

        return SimpleNamespace(
            rank=rank,
            size=self.size,
            leads=rank == 0,
            all=every,
            led=lambda v: every(v)[0],
            together=together,
        )


def on_all(home, path, act):
    """The result of `act(checkpoints)` on each rank."""
    size = int(home.max()) + 1
    together, found = Together(size), [None] * size

    def one(rank):
        try:
            found[rank] = act(Checkpoints(path, RowLayout(PLAN, home, rank), together.rank(rank)))
        except RunFolderError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def rows_of(layout, releases):
    """Every row contains its number and its release."""
    return torch.tensor([[row, releases] for row in layout.made(releases - 1)], dtype=torch.float32)


@pytest.fixture
def folder(tmp_path):
    RunFolder(tmp_path).write_json("run.json", {"format": 3, "state": "running"})
    return RunFolder(tmp_path)


def save(folder, home, releases):
    def act(checkpoints):
        state = State(releases, rows_of(checkpoints.layout, releases))
        checkpoints.save(folder if checkpoints.group.leads else None, state)

    on_all(home, folder.path, act)


def names(folder):
    return sorted(file.name for file in folder.path.glob("checkpoint*"))


@pytest.mark.parametrize("later", [TWO, THREE], ids=["as many", "others"])
def test_ranks_resume_from_the_newest_checkpoint_of_ranks(folder, later):
    save(folder, TWO, 2)
    save(folder, TWO, 4)
    assert names(folder) == ["checkpoint-4.0-of-2.safetensors", "checkpoint-4.1-of-2.safetensors"]
    assert folder.fact("checkpoint") == {"releases": 4, "ranks": 2}
    for rank, found in enumerate(on_all(later, folder.path, Checkpoints.newest)):
        assert found.releases == 4
        assert np.array_equal(found.rows, rows_of(RowLayout(PLAN, later, rank), 4).numpy())


def test_one_process_resumes_from_parts_and_ranks_from_one_file(folder):
    save(folder, THREE, 3)
    alone = Checkpoints(folder.path, RowLayout(PLAN))
    found = alone.newest()
    assert np.array_equal(found.rows, rows_of(RowLayout(PLAN), 3).numpy())
    alone.save(folder, State(5, rows_of(RowLayout(PLAN), 5)))
    assert names(folder) == ["checkpoint.safetensors"]
    for rank, found in enumerate(on_all(TWO, folder.path, Checkpoints.newest)):
        assert np.array_equal(found.rows, rows_of(RowLayout(PLAN, TWO, rank), 5).numpy())


def test_a_checkpoint_that_one_rank_lacks_is_not_used(folder):
    """The ranks were killed while they wrote: rank 1 has only the older checkpoint, which still exists."""
    save(folder, TWO, 2)
    kept = {file.name: file.read_bytes() for file in folder.path.glob("checkpoint*")}
    save(folder, TWO, 4)
    (folder.path / "checkpoint-4.1-of-2.safetensors").unlink()
    for name, content in kept.items():
        (folder.path / name).write_bytes(content)
    folder.mark("running", checkpoint={"releases": 2, "ranks": 2})
    assert [found.releases for found in on_all(TWO, folder.path, Checkpoints.newest)] == [2, 2]


@pytest.mark.parametrize("damage", ["gone", "half"])
def test_a_lost_part_of_a_complete_checkpoint_is_reported_with_its_rank(folder, damage):
    save(folder, TWO, 4)
    file = folder.path / "checkpoint-4.1-of-2.safetensors"
    content = file.read_bytes()
    file.unlink() if damage == "gone" else file.write_bytes(content[: len(content) // 2])
    for error in on_all(TWO, folder.path, Checkpoints.newest):
        assert isinstance(error, RunFolderError)
        assert "after 4 releases" in str(error) and "ranks [1] do not find" in str(error)


def test_without_checkpoints_there_is_nothing_to_resume(folder):
    assert on_all(TWO, folder.path, Checkpoints.newest) == [None, None]


def test_forgetting_removes_all_parts(folder):
    save(folder, TWO, 2)
    Checkpoints(folder.path, RowLayout(PLAN)).forget()
    assert names(folder) == []


def test_parts_with_different_number_types_are_not_joined(tmp_path):
    """Otherwise the bits of bfloat16 would be read as other numbers."""
    kinds = torch.float32, torch.bfloat16

    def write(checkpoints):
        rows = rows_of(checkpoints.layout, 3).to(kinds[checkpoints.group.rank])
        checkpoints.save(None, State(3, rows))

    on_all(TWO, tmp_path, write)
    found = on_all(np.array([0, 1, 0, 1, 0, 1]), tmp_path, Checkpoints.newest)
    assert all("Expected parts of one run" in str(one) for one in found)

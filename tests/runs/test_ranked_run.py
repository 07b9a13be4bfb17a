"""Runs over several ranks: three processes are started once and execute all jobs of rank_jobs.py."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

import rank_jobs
from builders import blobs_file
from topdp.plan.noise_key import NoiseKey
from topdp.runs import ranked_run, run
from topdp.runs.best_estimates import read as read_best
from topdp.runs.run_folder import RunFolder
from topdp.simulator.ranks.torchrun_environment import RankError

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder with the results of all runs, after the last one."""
    folder = tmp_path_factory.mktemp("ranks")
    blobs_file(folder / "blobs.npz", 200)
    with np.load(folder / "blobs.npz") as arrays:
        np.savez(folder / "blobs.npz", **arrays, train_person=np.arange(200) // 3)
    # As with torchrun: a separate store, which exists longer than its clients.
    store = TCPStore("localhost", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    told = {
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TOPDP_RANK_TIMEOUT": "60", "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]),
    }  # fmt: skip
    script = [sys.executable, str(TESTS / "rank_jobs.py"), str(folder)]
    processes = [
        subprocess.Popen([*script, str(rank)], env={**os.environ, **told}, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    ends = [process.communicate(timeout=300)[1] for process in processes]
    del store
    assert [process.returncode for process in processes] == [0, 9, 0], "\n".join(ends)
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    """The ranks use one thread, too, because the last digits of matrix products may depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def said(folder, job, rank):
    return json.loads((folder / f"{job}.{rank}.json").read_text())


def expect_as_of_one_process(folder, name, changes, tmp_path):
    whole = run.run(rank_jobs.settings(folder, changes), tmp_path / "whole")
    found, alone = RunFolder.open(folder / name), RunFolder.open(tmp_path / "whole")
    assert np.array_equal(found.estimates, alone.estimates)
    assert found.metrics == alone.metrics == whole.metrics
    assert torch.equal(read_best(found).estimates, read_best(alone).estimates)
    assert found.plan.digest() == alone.plan.digest()
    for folder in (found, alone):
        assert "data" not in folder.read_json("run.json")
    assert found.read_json("privacy.json") == alone.read_json("privacy.json")
    assert {one.name for one in found.path.iterdir()} == {one.name for one in alone.path.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", rank_jobs.EQUAL)
def test_ranks_end_where_one_process_ends(folder, tmp_path, name):
    ranks, changes = rank_jobs.EQUAL[name]
    expect_as_of_one_process(folder, name, changes, tmp_path)
    assert [said(folder, name, rank)["found"] for rank in range(ranks)] == [True, *[False] * (ranks - 1)]
    assert RunFolder.open(folder / name).fact("ranks") == ranks


def test_all_ranks_use_the_key_of_rank_0_and_no_file_keeps_it(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(NoiseKey, "fresh", classmethod(lambda cls: NoiseKey.of_seed(40)))
    wanted = rank_jobs.settings(folder, ["method.name=top"]).model_copy(update={"noise_seed": None})
    alone = run.run(wanted, tmp_path / "alone")
    assert torch.equal(alone.estimates, torch.from_numpy(RunFolder.open(folder / rank_jobs.SECRET).estimates))
    secret = NoiseKey.of_seed(40).secret
    for file in (folder / rank_jobs.SECRET).iterdir():
        assert secret not in file.read_bytes() and secret.hex().encode() not in file.read_bytes()
    assert not list(folder.rglob("*.key"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "job, code, words",
    [
        ("more ranks than agents", 2, "3 ranks for 2 agents"),
        ("another seed on rank 1", 2, "the same configuration on all ranks, got another one on rank 1"),
        ("an attack", 2, "attack.name: expected none with several ranks, got 'drift'"),
        ("all records in one place", 2, "got 'central', which has all records in one place"),
        ("features", 2, "data.features: expected none with several ranks, got 'scattering'"),
        ("no memory", 2, "GB of rows and"),
        ("no GPU", 2, "cuda"),
        ("diverged", 2, "finite norm, got an infinite or undefined norm for agents"),
        ("dropout", 2, "expected a model without dropout with several ranks"),
    ],
)
def test_every_rank_reports_invalid_settings(folder, job, code, words):
    for rank in range(rank_jobs.REFUSED[job][0]):
        found = said(folder, job, rank)
        assert found["code"] == code and words in found["said"], found


def test_a_failure_on_one_rank_ends_all_ranks_and_is_reported(folder):
    first, second = (said(folder, "no such file on rank 1", rank) for rank in (0, 1))
    assert (second["kind"], second["code"]) == ("DataError", 5)
    assert (first["code"], first["said"]) == (5, f"Rank 1 ended: {second['said']}")


def test_rejected_runs_leave_no_run_folder(folder):
    for job in ("more ranks than agents", "another seed on rank 1", "no such file on rank 1", "an attack"):
        assert not (folder / job / "run.json").exists()
    assert RunFolder.open(folder / "diverged").state == "diverged"


def test_a_signal_to_one_rank_stops_all_and_another_number_of_ranks_resumes(folder, tmp_path):
    assert [said(folder, "stopped 2", rank)["kind"] for rank in (0, 1)] == ["InterruptedRun"] * 2
    assert "the same command" in said(folder, "stopped 2", 0)["said"]
    assert said(folder, "stopped 3", 0)["code"] == 0
    expect_as_of_one_process(folder, "stopped", ["method.name=top"], tmp_path)


def test_after_the_death_of_a_rank_one_process_resumes_from_the_checkpoint(folder, tmp_path):
    found = said(folder, "lost 2", 0)
    assert found["code"] == 2 and "lost another rank: its connection is closed" in found["said"]
    assert not (folder / "lost 2.1.json").exists()
    lost = RunFolder.open(folder / "lost")
    assert (lost.state, lost.fact("checkpoint")) == ("running", {"releases": 3, "ranks": 2})
    run.resume(folder / "lost")
    expect_as_of_one_process(folder, "lost", ["method.name=top"], tmp_path)


@pytest.mark.parametrize(
    ("size", "words"), [(4, ["waiting for 3 other ranks"]), (2, ["waiting for 1 other rank"])]
)
def test_a_rank_that_waits_for_others_reports_it(monkeypatch, tmp_path, size, words):
    def nobody(place):
        raise RankError("Could not join the other ranks.")

    said = []
    monkeypatch.setenv("WORLD_SIZE", str(size))
    monkeypatch.setattr(ranked_run, "join_group", nobody)
    with pytest.raises(RankError):
        ranked_run.run_on_ranks(None, tmp_path, "cpu", lambda stage, *_, **details: said.append(stage))
    assert said == words

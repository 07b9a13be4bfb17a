"""The check that a run fits into memory, before it allocates any."""

import pytest
import torch

from builders import batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.plan.noise_key import NoiseKey
from topdp.protocols import Dsgd
from topdp.runs import memory_check
from topdp.simulator.engine import Engine


@pytest.fixture
def engine():
    shards = blobs(4)
    plan = Dsgd().plan(topology.ring(4), constant_schedule(2), torch.ones(4).numpy(), 0)
    return Engine(
        plan,
        ClippedGradients(linear_model(), 1.0),
        shards,
        batches_of(shards),
        seed=0,
        key=NoiseKey.of_seed(0),
    )


def test_rows_are_counted_twice_and_with_padding(engine):
    need = memory_check.need_of(engine)
    assert engine.gradients.flat.dimension == 51
    assert need.rows == 2 * 4 * 64 * 4  # 51 numbers, in rows of 64


def test_a_run_that_does_not_fit_is_rejected_with_both_numbers(engine, monkeypatch):
    monkeypatch.setattr(memory_check, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(memory_check, "free_on", lambda device: 3000)
    words = r"4 agents with 51 parameters each: .* GB of rows .* got 0\.0 GB of free memory"
    with pytest.raises(InputError, match=words):
        memory_check.expect_room(engine)


@pytest.mark.parametrize("free", [None, 10**6])
def test_a_run_that_fits_or_with_unknown_free_memory_is_accepted(engine, monkeypatch, free):
    monkeypatch.setattr(memory_check, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(memory_check, "free_on", lambda device: free)
    memory_check.expect_room(engine)


def test_small_runs_are_not_checked(engine, monkeypatch):
    monkeypatch.setattr(memory_check, "free_on", lambda device: 0)
    memory_check.expect_room(engine)


def test_records_that_do_not_fit_on_the_gpu_are_rejected(monkeypatch):
    shards, gpu = blobs(4), torch.device("cuda")
    held = 4 * 40 * (16 * 4 + 8) + 200 * (16 * 4 + 8)
    monkeypatch.setattr(memory_check, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(memory_check, "free_on", lambda device: held)
    memory_check.expect_room_for_records(shards, gpu)
    monkeypatch.setattr(memory_check, "free_on", lambda device: held - 1)
    memory_check.expect_room_for_records(shards, torch.device("cpu"))
    words = r"GB of free memory on cuda for the records of 4 agents, got .* --device cpu"
    with pytest.raises(InputError, match=words):
        memory_check.expect_room_for_records(shards, gpu)
    monkeypatch.setattr(memory_check, "free_on", lambda device: None)
    memory_check.expect_room_for_records(shards, gpu)

"""Audits of runs whose unit is the person: a canary replaces a person with all of its records."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from subjects import Audited, network, settings

from builders import blobs
from topdp import topology
from topdp.audit import AuditRequest
from topdp.data import Shards, person_records
from topdp.learning.tasks import Task
from topdp.plan.noise_key import NoiseKey
from topdp.runs.assembly import Assembly
from topdp.runs.planning import plan_and_account
from topdp.runs.run_outline import RunOutline
from topdp.simulator.simulated_noise import SimulatedDraws

AGENTS, PERSONS = 3, 240
BATCHES = {"full": "full", "cycle": {"cycle": 40}, "poisson": {"poisson": 40}}
CASES = [*((kind, "add-remove") for kind in BATCHES), ("full", "replace-one"), ("cycle", "replace-one")]


def shards_with_persons():
    """Persons have 1 to 4 records; one has 60."""
    sizes = 1 + np.arange(PERSONS) % 4
    sizes[100] = 60
    plain = blobs(AGENTS, int(sizes.sum()))
    persons = [
        np.random.default_rng(agent).permutation(np.repeat(np.arange(PERSONS), sizes)) + 1000 * agent
        for agent in range(AGENTS)
    ]
    return Shards.from_arrays(
        [plain.records(agent) for agent in range(AGENTS)],
        (plain.test_inputs, plain.test_targets),
        3,
        persons=persons,
    )


def audited(rounds=8, **sections):
    privacy = {"unit": "person", **sections.pop("privacy", {})}
    config = settings(AGENTS, rounds, method={"name": "plain"}, privacy=privacy, **sections)
    outline = RunOutline.of(config, topology.ring(AGENTS))
    task = Task.of(config.train.loss, None)
    parts = Assembly.given(outline, network(40), shards_with_persons(), torch.device("cpu"), task)
    return Audited.given(AuditRequest(canaries=180), parts, *plan_and_account(parts.run))


@pytest.mark.parametrize(("batches", "adjacency"), CASES)
def test_a_person_as_canary_shows_no_more_than_was_proved(batches, adjacency):
    made = audited(data={"batch": BATCHES[batches]}, privacy={"adjacency": adjacency})
    found = made.run(0)
    assert found.exceeds == [] and found.lower <= found.proved == pytest.approx(4.0, abs=1e-3)
    assert found.lower > 0.4 * found.proved or batches != "full"
    assert not any(check.flagged for check in found.checks)
    assert {"canaries", "records"} <= {check.name for check in found.checks}


def test_noise_that_is_drawn_once_is_found_with_persons():
    class DrawnOnce(SimulatedDraws):
        def names(self, round, draws):
            return super().names(0, draws)

    made = audited()
    found = made.run(0, DrawnOnce(NoiseKey.of_seed(0), made.plan.draws, made.plan.releases))
    assert "proved" in found.exceeds


def test_records_that_are_not_weighted_are_found():
    with mock.patch.object(person_records, "person_weights", lambda sizes: np.ones(len(sizes), np.float32)):
        made = audited()
        found = made.run(0)
    assert "records" in [check.name for check in found.checks if check.flagged]

"""Tests of rehearsals: recordings of agents score as the simulator does, even after crashes; errors."""

import json
import shutil

import numpy as np
import pytest
import torch
from history import federation, live, on_virtual_time

from builders import SETTINGS
from topdp.agents.development.development_hooks import Rehearsal
from topdp.agents.development.rehearsal_audit import MANIFEST_FILE, of_recordings, plant
from topdp.audit import Audit, AuditError, AuditRequest
from topdp.audit.rehearsal_record import CANARIES_FILE, RECORDING_FOLDER, AgentRecording, RehearsalCanaries
from topdp.base.progress import silent
from topdp.learning.tasks import Task
from topdp.runs.assembly import Assembly
from topdp.runs.planning import accounted
from topdp.runs.run_outline import RunOutline

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def few_canaries_suffice(monkeypatch):
    monkeypatch.setattr("topdp.audit.canaries.MIN_CANARIES", 10)


def rehearsed(folder, *changes, seeded=True, failpoints=None, options=None, **job):
    """A federation that has rehearsed; its folder looks like that of a demonstration."""
    made = federation(folder, *changes, **{"agents": 4, "rounds": 5, "guarantee": None, **job})
    planted = plant(made.setup, (1, 4, 4), made.shards.classes, AuditRequest())
    made.setup.manifest.write(folder / MANIFEST_FILE)
    planted.save(folder / CANARIES_FILE)
    given = {
        i: {
            "seeded": seeded,
            "rehearsal": Rehearsal(
                RehearsalCanaries.load(folder / CANARIES_FILE),
                AgentRecording(folder / name / "state" / RECORDING_FOLDER),
            ),
            **(options or {}).get(i, {}),
        }
        for i, name in enumerate(made.names)
    }
    on_virtual_time(live(made, failpoints=failpoints, options=given))
    return made


def simulated(made, asked):
    config = made.setup.manifest.config.model_copy(update={"noise_seed": 0})  # as the seeded agents
    plan = made.setup.plan
    model = made.setup.model((1, 4, 4), made.shards.classes)
    task, device = Task.of(config.train.loss, None), torch.device("cpu")
    parts = Assembly.given(
        RunOutline.of(config, made.setup.manifest.topology), model, made.shards, device, task
    )
    found = accounted(made.setup.run, plan, None, silent)
    return Audit.of(plan, found, config.privacy, parts.flat.dimension, asked).run(parts, config.seed)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", SETTINGS)
def test_recordings_of_agents_score_as_the_simulator_does(tmp_path, protocol):
    made = rehearsed(tmp_path, *SETTINGS[protocol])
    noted, expected = of_recordings(tmp_path, AuditRequest()).execute(silent), simulated(made, AuditRequest())
    for kind in expected.kinds:
        np.testing.assert_array_equal(noted.kinds[kind].present, expected.kinds[kind].present)
        np.testing.assert_allclose(noted.kinds[kind].scores, expected.kinds[kind].scores, atol=2e-3)
    assert noted.proved == pytest.approx(expected.proved)
    for asked in (AuditRequest(), AuditRequest(sees="received"), AuditRequest(observer="all", sees="all")):
        noted = of_recordings(tmp_path, asked).execute(silent)
        assert all(np.isfinite(kind.scores).all() for kind in noted.kinds.values())


@pytest.mark.parametrize("batch", ["{cycle=10}", "{poisson=15}"])
def test_canaries_are_in_the_same_batches_as_in_the_simulator(tmp_path, batch):
    made = rehearsed(tmp_path, "method.name=plain", f"data.batch={batch}")
    noted, expected = of_recordings(tmp_path, AuditRequest()).execute(silent), simulated(made, AuditRequest())
    for kind in expected.kinds:
        np.testing.assert_allclose(noted.kinds[kind].scores, expected.kinds[kind].scores, atol=2e-3)


def test_recordings_contain_the_sent_rows_even_after_crashes(tmp_path):
    """With unseeded noise: a round that was computed twice has one recording, of the row that was sent."""
    crashes = {1: ["before_ledger:2", "after_ledger:1"], 2: ["in_ledger:3"]}
    made = rehearsed(tmp_path, seeded=False, failpoints=crashes)
    notes = [AgentRecording(tmp_path / name / "state" / RECORDING_FOLDER) for name in made.names]
    for round in range(made.setup.plan.releases - 1):
        for one in notes:
            for row, values in one.received(round).items():
                sender = notes[made.setup.plan.owner[row]]
                np.testing.assert_array_equal(values, sender.made(round)[row])
    of_recordings(tmp_path, AuditRequest()).execute(silent)


def test_scores_use_the_rows_that_the_observer_received(tmp_path):
    """The sender's own recording of a row does not matter: the observer did not see it."""
    federated = rehearsed(tmp_path)
    owner = int(RehearsalCanaries.load(tmp_path / CANARIES_FILE).canaries.owner)
    asked = AuditRequest(observer=str((owner + 1) % 4), sees="received")
    before = of_recordings(tmp_path, asked).execute(silent)
    notes = AgentRecording(tmp_path / federated.names[owner] / "state" / RECORDING_FOLDER)
    made = notes.made(2)
    notes.keep(2, {row: values + 1e3 for row, values in made.items()}, notes.received(1), notes.gradient(2))
    after = of_recordings(tmp_path, asked).execute(silent)
    np.testing.assert_array_equal(before.kinds["aimed"].scores, after.kinds["aimed"].scores)


def test_unsuitable_requests_and_missing_recordings_are_refused(tmp_path):
    made = rehearsed(tmp_path)
    owner = int(RehearsalCanaries.load(tmp_path / CANARIES_FILE).canaries.owner)
    for asked in (AuditRequest(seed=1), AuditRequest(canaries=20), AuditRequest(owner=(owner + 1) % 4)):
        with pytest.raises(AuditError, match="this rehearsal has its canaries"):
            of_recordings(tmp_path, asked)
    state = tmp_path / made.names[1] / "state" / RECORDING_FOLDER
    (state / "round-000003.npz").unlink()
    with pytest.raises(AuditError, match="could not read"):
        of_recordings(tmp_path, AuditRequest()).execute(silent)
    shutil.rmtree(state)
    with pytest.raises(AuditError, match="recordings of every agent"):
        of_recordings(tmp_path, AuditRequest())
    (tmp_path / CANARIES_FILE).write_bytes(b"nothing")
    with pytest.raises(AuditError, match="the canaries of an audit"):
        of_recordings(tmp_path, AuditRequest())


def test_a_rehearsal_in_which_a_budget_ended_is_refused(tmp_path):
    made = rehearsed(tmp_path, options={2: {"epsilon": 1.0}})
    assert made.results()[2]["stopped_at"] is not None
    with pytest.raises(AuditError, match="the budget of agent 2 was used up before round"):
        of_recordings(tmp_path, AuditRequest()).execute(silent)


def test_canaries_of_another_plan_are_refused(tmp_path):
    first = federation(tmp_path / "one", agents=4, rounds=3)
    second = federation(tmp_path / "two", agents=4, rounds=4)
    planted = plant(first.setup, (1, 4, 4), 3, AuditRequest())
    with pytest.raises(AuditError, match="of another plan"):
        second.context(0, rehearsal=Rehearsal(planted, AgentRecording(tmp_path / RECORDING_FOLDER)))


def test_without_a_rehearsal_nothing_is_recorded(tmp_path):
    made = federation(tmp_path, agents=3, rounds=2)
    on_virtual_time(live(made))
    assert not list(tmp_path.rglob(RECORDING_FOLDER)) and json.dumps(made.results())

"""Tests of commands for a running agent: status, pause, resume, stop, export and quarantine."""

import asyncio
import json
import math
import os
import shutil
import time

import pytest
import torch
from history import NAMES, Wire, federation, on_virtual_time

from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.node import agent_model_file
from topdp.agents.node.agent_status import ProcessStatus, describe_status, process_birth, read_status
from topdp.agents.node.node_monitor import NodeMonitor
from topdp.agents.node.operator_orders import PAUSE_FILE, STOP_FILE, OperatorOrders
from topdp.agents.node.owner_evaluation import OwnerEvaluation
from topdp.agents.wire.link_refusals import REPEAT_SECONDS, RefusalLog
from topdp.agents.wire.transport import ReplyCode
from topdp.base.files import FileError
from topdp.cli import operator_commands
from topdp.data import Dataset
from topdp.errors import InputError

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def state(tmp_path):
    """The state folder of ada after one release, as a process wrote it."""
    folder = tmp_path / "state"
    ledger = Ledger(folder, "federation", "ada")
    ledger.release(0, ReleaseCost(0.25, 0.5, 0.1), {"bob": b"row"}, b"state")
    ledger.close()
    return folder


def write_status(folder, **changes):
    """A status file, as if the process of this test had written it."""
    facts = {
        "process": os.getpid(),
        "begun": process_birth(os.getpid()),
        "written": time.time(),
        "state": "waits",
    }
    found = ProcessStatus(**{**facts, "round": 0, "rounds": 8, "budget": 1.0, **changes})
    found.write(folder)
    return found


def status(topdp, state, code=0):
    done = topdp("agent", "status", "--state", state, "--json")
    assert done.code == code, done.err
    return json.loads(done.out)


# What a process reports about itself


def test_status_shows_what_the_process_reports(topdp, state):
    write_status(state, waits_for={"bob": time.time() - 200}, heard={"bob": time.time() - 190})
    found = status(topdp, state)
    assert (found["process"], found["doing"], found["rounds"], found["budget"]) == (
        "running",
        "waits",
        8,
        1.0,
    )
    said = " ".join(topdp("agent", "status", "--state", state).out.split())
    assert "waits for │ bob since 3 min" in said and "heard │ bob 3 min ago" in said
    assert "0.25 of 1" in said and "0 of 8" in said and "quarantined │ none" in said


FOREIGN = {
    "begun": [3, None],
    "process": ["7", 1.5, True, 10**400],
    "written": [None, "now", "NaN", "Infinity", 10**400],
    "state": ["asleep", ["waits"]],
    "round": ["0", 0.5],
    "rounds": [None, 10**400],
    "budget": [None, "much", 10**400, "NaN"],
    "waits_for": [
        ["bob"],
        {"bob": None},
        {"bob": "NaN"},
        {"bob": "Infinity"},
        {"\ud800": 1.0},
        {"\x1b[2J": 1.0},
    ],
    "heard": [3, {"bob": {}}],
    "scores": ["good", [1], {"accuracy": 10**400}, {"a": {"b": {"c": {"d": {}}}}}],
    "code": ["0", 10**400],
    "more": [1],
}


@pytest.mark.parametrize("field", FOREIGN)
def test_a_status_file_with_invalid_values_gives_one_line_of_error(topdp, state, field):
    """Values of a type, size or encoding that would fail where they are shown."""
    write_status(
        state, waits_for={"bob": 1.0}, scores={"round": 0, "loss": math.nan, "metrics": {"accuracy": [None]}}
    )
    assert topdp("agent", "status", "--state", state).code == 0
    whole = json.loads((state / "status.json").read_text())
    for value in FOREIGN[field]:
        text = json.dumps({**whole, field: value})
        text = text.replace('"NaN"', "NaN").replace('"Infinity"', "Infinity")
        (state / "status.json").write_text(text)
        for more in ((), ("--json",)):
            done = topdp("agent", "status", "--state", state, *more)
            assert done.code == 2 and done.err.count("\n") == 1, (value, done.err)
            assert "status.json" in done.err and "remove the file" in done.err


DAMAGED = [
    b"",
    b"{",
    b"[1]",
    b"{}",
    b"null",
    b"\xff\xfe",
    b'{"process": [' * 3000,
    b"1" * 10**5,
    b" " * 2**21,
]


@pytest.mark.parametrize("bytes", DAMAGED)
def test_a_damaged_status_file_gives_one_line_of_error(topdp, state, bytes):
    (state / "status.json").write_bytes(bytes)
    done = topdp("agent", "status", "--state", state)
    assert done.code == 2 and done.err.count("\n") == 1 and "status.json" in done.err


def test_a_status_file_that_is_a_pipe_is_refused_without_waiting(topdp, state):
    os.mkfifo(state / "status.json")
    assert topdp("agent", "status", "--state", state).code == 2


def test_status_omits_what_does_not_apply(topdp, state):
    said = topdp("agent", "status", "--state", state).out
    assert not any(word in said for word in ("seeded", "departed", "waits for", "scores", "False"))
    ledger = Ledger(state, "federation", "ada")
    ledger.stop_data(0)
    ledger.end_with(4)
    ledger.close()
    write_status(state)
    said = " ".join(topdp("agent", "status", "--state", state).out.split())
    assert "stopped │ 0 │" in said and "0 of 4: this run was amended, and ends with round 4" in said


def test_status_shows_delta_beside_epsilon(tmp_path):
    ledger = Ledger(tmp_path / "books", "federation", "ada")
    ledger.database.remember(start_choices.DELTA_KEY, repr(2e-6))
    ledger.close()
    facts = read_status(tmp_path / "books")
    assert facts["delta"] == 2e-6 and "at delta 2e-06" in describe_status(facts)["epsilon"]


@pytest.mark.parametrize(
    "changes",
    [
        {"begun": process_birth(os.getpid()) + "1"},  # the number of a dead process, reused by this one
        {"process": 2**22 + 1},
        {"state": "ended", "code": 0},
        {"begun": "another machine 77", "written": time.time() - 60},
    ],
)
def test_the_status_of_a_dead_process_is_recognised(topdp, state, changes):
    write_status(state, waits_for={"bob": time.time()}, **changes)
    found = status(topdp, state, 0 if "code" in changes else 6)
    assert found["process"] == "not running" and found["waits_for"] == {} and found["id"] is None
    assert "not running" in topdp("agent", "status", "--state", state).out


def test_a_silent_process_is_reported_as_not_answering(topdp, state):
    write_status(state, written=time.time() - 100)
    assert status(topdp, state, 6)["process"] == "not answering"


def test_status_exits_with_4_for_a_tampered_ledger_and_2_for_a_missing_one(topdp, state, tmp_path):
    import sqlite3

    with sqlite3.connect(state / "ledger.sqlite") as db:
        db.execute("UPDATE charges SET entry = 'nothing'")
    db.close()
    done = topdp("agent", "status", "--state", state)
    assert done.code == 4 and "does not follow from the previous one" in done.err
    done = topdp("agent", "status", "--state", tmp_path / "nowhere")
    assert done.code == 2 and "there is none" in done.err


def test_watching_reports_changes_and_ends_with_the_agent(topdp, state, monkeypatch):
    write_status(state)
    changes = iter([{}, {"heard": {"bob": 5.0}}, {"round": 1}, {"state": "ended", "code": 0, "rounds": 0}])
    monkeypatch.setattr(operator_commands.time, "sleep", lambda _: write_status(state, **next(changes)))
    done = topdp("agent", "status", "--state", state, "--watch", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0 and [line["process"] for line in lines] == ["running", "not running"]


def test_watching_a_folder_that_vanishes_ends_with_an_error(topdp, state, monkeypatch):
    monkeypatch.setattr(operator_commands.time, "sleep", lambda _: shutil.rmtree(state))
    done = topdp("agent", "status", "--state", state, "--watch")
    assert done.code == 2 and "there is none" in done.err and "Traceback" not in done.err


@pytest.mark.slow
def test_status_and_orders_import_neither_torch_nor_grpc(state):
    import subprocess
    import sys

    code = (
        "import sys; from topdp.cli.app import app; sys.argv = ['topdp', 'agent', *sys.argv[1:]]\n"
        "app(standalone_mode=False); assert 'torch' not in sys.modules and 'grpc' not in sys.modules"
    )
    for command in (["status"], ["pause"], ["resume"], ["stop"], ["quarantine", "list"]):
        done = subprocess.run([sys.executable, "-c", code, *command, "--state", state], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()


# Orders


def test_repeated_pauses_and_resumes_are_reported(topdp, state):
    assert "will be paused when started" in topdp("agent", "pause", "--state", state).out
    assert "was paused already" in topdp("agent", "pause", "--state", state).out
    assert status(topdp, state)["paused"] is not None
    assert "continues" in topdp("agent", "resume", "--state", state).out
    assert "was not paused" in topdp("agent", "resume", "--state", state).out
    assert status(topdp, state)["paused"] is None


def test_a_very_long_path_works(topdp, state, tmp_path):
    long = tmp_path / ("a" * 120) / ("b" * 120) / "state"
    shutil.copytree(state, long)
    assert topdp("agent", "pause", "--state", long).code == 0 and OperatorOrders(long).is_paused()


def test_stopping_an_agent_that_does_not_run_succeeds(topdp, state):
    done = topdp("agent", "stop", "--state", state)
    assert done.code == 0 and "is not running" in done.out and not (state / STOP_FILE).exists()


def test_a_stop_that_is_not_obeyed_times_out(topdp, state):
    write_status(state)  # this process, which obeys no order
    done = topdp("agent", "stop", "--state", state, "--timeout", "0.2")
    assert done.code == 130 and f"kill -9 {os.getpid()}" in done.err


def test_only_the_owner_of_the_state_folder_may_give_orders(topdp, state, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    done = topdp("agent", "pause", "--state", state)
    assert done.code == 4 and "nobody else gives orders" in " ".join(done.err.split())


def test_an_order_of_another_user_is_not_obeyed(state, monkeypatch, caplog):
    (state / "target").write_text("")
    (state / PAUSE_FILE).symlink_to(state / "target")
    orders = OperatorOrders(state)
    with caplog.at_level("WARNING", logger="topdp.agents"):
        assert not orders.is_paused() and not orders.is_paused()
    assert caplog.text.count("is not obeyed") == 1
    (state / PAUSE_FILE).unlink()
    (state / PAUSE_FILE).write_text("")
    assert orders.is_paused()
    os.chown(state / PAUSE_FILE, 12345, 12345) if os.geteuid() == 0 else None
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert not orders.is_paused()


def test_orders_for_a_folder_without_a_ledger_exit_with_2(topdp, tmp_path):
    for command in ("pause", "resume", "stop"):
        done = topdp("agent", command, "--state", tmp_path)
        assert done.code == 2 and "state folder" in done.err


def test_orders_that_cannot_be_written_exit_with_2(topdp, state, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = topdp("agent", "pause", "--state", state)
    assert done.code == 2 and "Could not write" in done.err and "Traceback" not in done.err


# A federation in this process


def run_scene(tmp_path, scene, agents=3, rounds=4, **how):
    """The result of `scene` beside a federation that runs on virtual time."""
    made = federation(tmp_path, agents=agents, rounds=rounds, **how)
    wire = Wire()

    async def whole():
        lives = [made.agent(i, wire.transport(NAMES[i])) for i in range(agents)]
        tasks = [asyncio.create_task(agent.run()) for agent in lives]
        try:
            return await scene(lives, tasks)
        finally:
            for agent in lives:
                agent.stop()
            await asyncio.gather(*tasks, return_exceptions=True)

    return made, on_virtual_time(whole())


async def until(condition, limit=2000):
    for _ in range(limit):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the condition did not become true")


@pytest.mark.parametrize("tolerates_silence", [False, True])
def test_a_paused_agent_releases_nothing_and_keeps_answering(tmp_path, tolerates_silence):
    async def scene(lives, tasks):
        held = [1]
        lives[0].loop.paused = lambda: bool(held) and lives[0].ledger.round >= 1
        await asyncio.sleep(1)
        before = lives[0].ledger.round
        await asyncio.sleep(40)  # ten idle timeouts
        stood = lives[0].ledger.round, [list(agent.loop.waits.started) for agent in lives[1:]]
        waited, departed = lives[1].ledger.round, [agent.ledger.departed for agent in lives]
        held.clear()
        lives[0].peers.changed.set()
        outcomes = await asyncio.gather(*tasks)
        return before, stood, waited, departed, outcomes

    _, (before, stood, waited, departed, outcomes) = run_scene(
        tmp_path, scene, rounds=6, tolerates_silence=tolerates_silence
    )
    assert 1 <= before < 6 and stood[0] == before and waited <= before + 1
    assert all("ada" in names for names in stood[1])
    assert departed == [None] * 3  # an agent that answers is live, and others wait for it under either rule
    assert all(outcome.finished and outcome.result["releases"] == 7 for outcome in outcomes)


def test_a_pause_survives_a_restart_and_a_stop_ends_it(tmp_path, caplog):
    made = federation(tmp_path, agents=3, rounds=3)

    async def scene():
        wire = Wire()
        agent = made.agent(0, wire.transport("ada"))
        orders = OperatorOrders(agent.folder)
        orders.give(PAUSE_FILE)
        orders.give(STOP_FILE)  # an earlier order: not for this process
        monitor = NodeMonitor(agent, orders, agent.stop, report=5.0)
        beside = asyncio.create_task(monitor.run())
        task = asyncio.create_task(agent.run())
        await asyncio.sleep(20)
        assert not task.done() and agent.ledger.round == -1
        seen = ProcessStatus.read(agent.folder)
        orders.give(STOP_FILE)
        outcome = await asyncio.wait_for(task, 10)
        beside.cancel()
        monitor.end(int(outcome.code))
        return seen, outcome, ProcessStatus.read(agent.folder), orders

    with caplog.at_level("INFO", logger="topdp.agents"):
        seen, outcome, last, orders = on_virtual_time(scene())
    assert seen.state == "paused" and seen.liveness == "running" and not outcome.finished
    assert last.state == "ended" and last.code == 0 and last.liveness == "not running"
    assert orders.is_paused() and not (orders.folder / STOP_FILE).exists()
    assert "is paused since before this start" in caplog.text and "asked to stop" in caplog.text
    assert "no release yet" in caplog.text  # the progress line


def test_a_pause_after_the_last_round_has_no_effect(tmp_path):
    async def scene(lives, tasks):
        await until(lambda: lives[0].loop.activity == "ends")
        lives[0].loop.paused = lambda: True
        monitor = NodeMonitor(lives[0], OperatorOrders(lives[0].folder), lives[0].stop)
        lives[0].loop.paused = lambda: True
        found = monitor.status()
        return found, await asyncio.gather(*tasks)

    _, (found, outcomes) = run_scene(tmp_path, scene)
    assert found.state == "ends" and all(outcome.finished for outcome in outcomes)


def test_an_agent_continues_if_its_status_file_cannot_be_written(tmp_path, monkeypatch, caplog):
    def full(self, folder):
        raise FileError("No space left on device")

    monkeypatch.setattr(ProcessStatus, "write", full)

    async def scene(lives, tasks):
        monitor = NodeMonitor(lives[0], OperatorOrders(lives[0].folder), lives[0].stop)
        for _ in range(3):
            monitor.poll()
        return await asyncio.gather(*tasks)

    with caplog.at_level("INFO", logger="topdp.agents"):
        _, outcomes = run_scene(tmp_path, scene)
    assert all(outcome.finished for outcome in outcomes)
    assert caplog.text.count("could not write its status") == 1


def test_evaluation_does_not_change_the_sent_rows(tmp_path):
    """Compares digests of all rows of a seeded run with and without evaluation."""

    def digests(folder, every):
        made = federation(folder, agents=3, rounds=4)
        wire, found = Wire(), []

        async def whole():
            lives = [made.agent(i, wire.transport(NAMES[i])) for i in range(3)]
            inputs, targets = made.shards.inputs[0].numpy(), made.shards.targets[0].numpy()
            dataset = Dataset(
                name="own",
                train_inputs=inputs,
                train_targets=targets,
                test_inputs=None,
                test_targets=None,
                classes=made.shards.classes,
            )
            monitor = None
            if every:
                scores = OwnerEvaluation(made.setup, dataset, "ada", every)
                monitor = NodeMonitor(
                    lives[0], OperatorOrders(lives[0].folder), lives[0].stop, evaluation=scores
                )

            over = asyncio.Event()

            async def beside():
                while monitor is not None and not over.is_set():
                    monitor.poll()
                    if monitor._evaluating is not None:
                        await asyncio.wait([monitor._evaluating], timeout=60)
                        found.append(monitor.scores)
                    await asyncio.sleep(0.01)

            task = asyncio.create_task(beside())
            await asyncio.gather(*(agent.run() for agent in lives))
            over.set()  # a cancellation would be lost if it arrived while a score became ready
            await task

        asyncio.run(whole())
        sent = sorted({(e.sender, e.receiver, e.round, e.digest) for e in wire.events if e.kind == "row"})
        return sent, found

    plain, _ = digests(tmp_path / "plain", 0)
    watched, found = digests(tmp_path / "watched", 1)
    assert plain == watched and len(plain) > 10
    assert found[-1]["on"] == "training" and 0 <= found[-1]["metrics"]["accuracy"] <= 1


# The model


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_the_exported_model_is_the_estimate_of_the_agent(topdp, tmp_path, ending):
    async def scene(lives, tasks):
        agent_model_file.write_model_facts(lives[0].folder, lives[0].context, 3)
        await until(lambda: lives[0].ledger.round >= 1)
        return lives[0].folder, agent_model_file.export_model(lives[0].folder, tmp_path / f"early{ending}")

    made, (folder, round) = run_scene(tmp_path, scene)
    assert round >= 1
    outcomes = asyncio.run(_to_the_end(made))
    assert all(outcome.finished for outcome in outcomes)
    done = topdp(
        "agent", "model", "export", "--state", folder, "--out", tmp_path / f"model{ending}", "--json"
    )
    assert done.code == 0 and json.loads(done.out)["round"] == 4
    if ending == ".pt":
        found = torch.load(tmp_path / "model.pt", weights_only=True)
    else:
        from safetensors.torch import load_file

        found = load_file(tmp_path / "model.safetensors")
    flat = torch.cat([value.flatten() for value in found.values()])
    expected = made.estimates()[0]
    assert torch.equal(flat.sort().values, expected.sort().values)


async def _to_the_end(made):
    wire = Wire()
    lives = [made.agent(i, wire.transport(NAMES[i])) for i in range(3)]
    return await asyncio.gather(*(agent.run() for agent in lives))


def test_an_export_without_a_model_exits_with_2(topdp, state, tmp_path):
    done = topdp("agent", "model", "export", "--state", state, "--out", tmp_path / "model.pt")
    assert done.code == 2 and "model.json" in done.err
    Ledger(tmp_path / "new", "federation", "ada").close()
    with pytest.raises(InputError, match="nothing to export"):
        agent_model_file.export_model(tmp_path / "new", tmp_path / "model.pt")


# Quarantine


def test_the_ledger_records_a_lifted_quarantine_and_departures_stay(topdp, state):
    ledger = Ledger(state, "federation", "ada")
    ledger.quarantine("bob", ReplyCode.EQUIVOCATION, "sent two different rows for round 3")
    ledger.note_departure("round 4: nothing from bob")
    ledger.close()
    lift = ("agent", "quarantine", "lift", "bob", "--state", state)
    assert topdp(*lift, "--reason", " ").code == 2
    done = topdp(*lift, "--reason", "a disk was changed")
    assert done.code == 0 and "charges stay by worst-case" in done.out
    found = json.loads(topdp("agent", "quarantine", "list", "--state", state, "--json").out)
    assert found["quarantined"] == {} and found["lifted"][0]["reason"] == "a disk was changed"
    assert found["lifted"][0]["words"] == "sent two different rows for round 3"
    ledger = Ledger(state, writable=False)
    assert ledger.departed == "round 4: nothing from bob" and ledger.quarantined("bob") is None
    assert verify(ledger) == 1
    ledger.close()
    assert topdp(*lift, "--reason", "again").code == 2
    assert "lifted" in topdp("agent", "quarantine", "list", "--state", state).out


def test_a_quarantine_cannot_be_lifted_while_the_agent_runs(topdp, state):
    ledger = Ledger(state, "federation", "ada")
    ledger.quarantine("bob", ReplyCode.EQUIVOCATION, "two rows")
    try:
        done = topdp("agent", "quarantine", "lift", "bob", "--state", state, "--reason", "a disk was changed")
    finally:
        ledger.close()
    assert done.code == 2 and "Another process uses" in done.err


# The log


def test_repeated_refusals_are_logged_once_an_hour_with_a_count(caplog):
    clock = [0.0]
    refusals = RefusalLog("ada", clock=lambda: clock[0])
    with caplog.at_level("INFO", logger="topdp.agents"):
        for _ in range(5 * 3600):
            refusals.report("bob", "stranger", "it showed another certificate")
            clock[0] += 1.0
    lines = caplog.messages
    assert len(lines) == 5 and "times" not in lines[0] and REPEAT_SECONDS == 3600
    assert lines[1].endswith("(3600 times since this was last logged)")
    assert refusals.counts["bob", "stranger"] == 5 * 3600


def test_every_json_line_has_agent_event_and_round(capsys):
    import logging

    from topdp.agents.node import agent_log

    logger = logging.getLogger("topdp.agents")
    before = logger.handlers, logger.propagate, logger.level
    try:
        speaker = agent_log.log_to_stderr(True)
        logger.info("first")
        speaker.agent, speaker.round = "ada", lambda: 7
        logger.info("second")
        RefusalLog("ada").report("bob", "linked", "words")
        logger.info("third", extra={"event": "progress", "round": 9, "facts": {"rounds": 20}})
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        logger.setLevel(before[2])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all({"agent", "event", "round", "time", "level", "message"} <= set(line) for line in lines)
    assert [(line["agent"], line["event"], line["round"]) for line in lines] == [
        (None, "note", None), ("ada", "note", 7), ("ada", "linked", 7), ("ada", "progress", 9)
    ]  # fmt: skip
    assert lines[3]["rounds"] == 20 and lines[2]["peer"] == "bob"

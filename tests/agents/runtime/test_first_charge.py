"""Tests that nothing is charged, and no data enter, before every neighbour has the same terms."""

import asyncio
import contextlib
import shutil
from dataclasses import replace

import pytest
from history import Wire, abandon, federation, live, on_virtual_time
from test_planned_loop import alone, ended, message, newcomer

from topdp import topology
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.wire.transport import MessageKind, Reply, ReplyCode
from topdp.errors import TrustError

pytestmark = pytest.mark.usefixtures("quick")
RULES = pytest.mark.parametrize("tolerates_silence", [False, True], ids=["wait", "go-on"])


def kinds(made, number):
    with contextlib.closing(Ledger(made.state(number), writable=False)) as ledger:
        return [entry.kind for entry in ledger.entries()]


def answering(agent, peer, **changes):
    """A handler of `peer` that answers greetings; `changes` of its greeting."""

    async def handle(sender, message):
        body = newcomer(agent, peer, **{"round": -1, **changes}) if message.kind is MessageKind.HELLO else b""
        return Reply(ReplyCode.OK, body=body)

    return handle


@RULES
def test_both_folders_restored_from_their_first_day_enter_no_data_before_all_are_heard(
    tmp_path, tolerates_silence, caplog
):
    """ada's rows reach only bob. Her folders are put back to the day of `init`, and bob is away."""
    made = federation(
        tmp_path,
        graph=topology.complete(3),
        rounds=600,
        tolerates_silence=tolerates_silence,
        idle_timeout=4.0,
    )

    async def scene():
        wire = Wire(delay=0.1)
        lost = lambda sender, to, sent: sent.kind is MessageKind.ROW and (sender, to) == ("ada", "cleo")  # noqa: E731
        wire.lose = lambda *facts: "request" if lost(*facts) else None
        others = [made.agent(number, wire.transport(made.names[number])) for number in (1, 2)]
        tasks = [asyncio.create_task(agent.run()) for agent in others]
        ada = made.agent(0, wire.transport("ada"))
        life = asyncio.create_task(ada.run())
        while others[0].ledger.last_received("ada") < 0:
            await asyncio.sleep(0.01)
        abandon(ada)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        shutil.rmtree(made.state(0))
        shutil.rmtree(made.private(0).folder)
        wire.cut, wire.lose = {frozenset(("ada", "bob"))}, None
        ada = made.agent(0, wire.transport("ada"))
        life = asyncio.create_task(ada.run())
        await asyncio.sleep(30)
        entered, waits = [entry.kind for entry in ada.ledger.entries()], set(ada.loop.waits.started)
        wire.cut = set()
        with pytest.raises(TrustError, match=r"bob has a row of round .* that this agent has signed"):
            await life
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return entered, waits

    entered, waits = on_virtual_time(scene())
    assert "release" not in entered and bool(entered) == tolerates_silence
    assert "bob" in waits or tolerates_silence
    assert "bob: not heard" in caplog.text


@RULES
def test_nothing_is_charged_before_every_neighbour_has_answered(tmp_path, tolerates_silence, caplog):
    made = federation(tmp_path, graph=topology.complete(3), rounds=4, tolerates_silence=tolerates_silence)

    async def scene():
        wire = Wire()
        agent, task = await alone(made, 0, wire, answered=False)
        wire.handlers["bob"] = answering(agent, "bob")
        await asyncio.sleep(100)
        before, waits = agent.ledger.round, set(agent.loop.waits.started)
        wire.handlers["cleo"] = answering(agent, "cleo")
        await asyncio.sleep(20)
        after = agent.ledger.round
        await ended(agent, task)
        return before, waits, after

    assert on_virtual_time(scene()) == (-1, {"cleo"}, 0)
    assert kinds(made, 0) == ["release"]
    assert "cleo: not heard yet, and nothing is spent" in caplog.text


def test_under_go_on_a_run_that_has_begun_continues_with_noise_without_a_neighbour_that_is_gone(tmp_path):
    """Otherwise an agent that was late would wait for ever for one that is gone, and the others for it."""
    made = federation(tmp_path, graph=topology.complete(3), rounds=4, tolerates_silence=True)

    async def scene():
        wire = Wire()
        agent, task = await alone(made, 0, wire, answered=False)
        wire.handlers["bob"] = answering(agent, "bob", round=1, charged=1)
        await asyncio.sleep(100)
        await ended(agent, task)

    on_virtual_time(scene())
    assert kinds(made, 0) and set(kinds(made, 0)) == {"noise"}


@RULES
@pytest.mark.parametrize("before", [False, True], ids=["first start", "restart"])
def test_one_neighbour_that_contradicts_ends_no_agent_that_waits_for_others(
    tmp_path, tolerates_silence, before, caplog
):
    """A liar that is alone with an agent at its start says that it has other terms."""
    made = federation(tmp_path, graph=topology.complete(3), rounds=4, tolerates_silence=tolerates_silence)

    async def scene():
        if before:
            agent, task = await alone(made, 0, Wire())
            await ended(agent, task)
        agent, task = await alone(made, 0, Wire(), answered=False)
        terms = replace(agent.peers.terms, plan="another")
        for _ in range(10):
            greeting = newcomer(agent, "bob", terms=terms)
            await agent.requests.handle("bob", message(0, greeting, MessageKind.HELLO))
            await asyncio.sleep(10)
        assert not task.done()
        return await ended(agent, task)

    assert on_virtual_time(scene()).code == 0
    assert kinds(made, 0) == ["release"] * before
    assert before or "bob has other terms" in caplog.text


def test_agents_that_all_contradict_end_with_an_empty_ledger(tmp_path):
    made = federation(tmp_path / "one", agents=3, rounds=2)
    other = federation(tmp_path / "two", agents=3, rounds=3)

    async def scene():
        wire = Wire()
        agents = [made.agent(0, wire.transport("ada"))]
        agents += [other.agent(k, wire.transport(made.names[k])) for k in (1, 2)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        with pytest.raises(TrustError, match="got only neighbours with others: bob, cleo"):
            await tasks[0]
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    on_virtual_time(scene())
    assert kinds(made, 0) == []


def test_a_handshake_with_another_manifest_is_no_quarantine_of_who_has_begun_the_next_run(tmp_path):
    made = federation(tmp_path, graph=topology.complete(3), rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        agent.peers.beliefs.reported.add("bob")
        for peer in ("bob", "cleo"):
            agent.peers.transport.on_other_manifest(peer)
        await asyncio.sleep(10)
        found = agent.ledger.quarantined("bob"), agent.peers.fault
        await ended(agent, task)
        return found

    assert on_virtual_time(scene()) == (None, None)


def test_the_first_start_of_all_agents_waits_for_the_slowest_and_charges_the_same(tmp_path):
    made = federation(tmp_path, agents=3, rounds=3)
    run = on_virtual_time(live(made, failpoints={1: "before_ledger:1"}, restart_after=200.0))
    assert {outcome.code for outcome in run.outcomes.values()} == {0}
    assert kinds(made, 0) == ["release"] * made.setup.plan.releases

"""Tests of rows that a neighbour acknowledged and then lost: sent again unchanged, but not without end."""

import asyncio
import shutil

import pytest
import torch
from history import Wire, abandon, faults, federation, on_virtual_time
from test_planned_loop import alone, ended, message, newcomer

from topdp import topology
from topdp.agents.runtime.peer_contacts import MAX_RESENDS_PER_ROUND
from topdp.agents.wire.transport import MessageKind, Reply, ReplyCode

pytestmark = pytest.mark.usefixtures("quick")


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


def test_a_neighbour_with_an_old_copy_gets_acknowledged_rows_again(tmp_path):
    """Bob has all his own rounds but lacks ada's row of round 2; without it all agents would wait."""
    made = federation(tmp_path, graph=topology.complete(3), rounds=5)
    withheld = {"ada", "cleo"}

    async def scene():
        wire = Wire(delay=0.01)
        wire.lose = lambda sender, to, sent: (
            "request"
            if to == "bob" and sender in withheld and sent.kind is MessageKind.ROW and sent.round >= 2
            else None
        )
        agents = [made.agent(number, wire.transport(made.names[number])) for number in range(3)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        ada, bob, _ = agents
        await until(lambda: bob.ledger.round == 2)
        bob.ledger.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copytree(made.state(1), tmp_path / "copy")
        withheld.discard("ada")
        await until(lambda: bob.ledger.last_received("ada") == 2 and ada.ledger.round == 3)
        del wire.handlers["bob"]
        abandon(bob)
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        shutil.rmtree(made.state(1))
        shutil.copytree(tmp_path / "copy", made.state(1))
        withheld.clear()
        tasks[1] = asyncio.create_task(made.agent(1, wire.transport("bob")).run())
        return wire, await asyncio.gather(*tasks)

    wire, outcomes = on_virtual_time(scene())
    assert all(outcome.finished and outcome.result["departed"] is None for outcome in outcomes)
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6)
    sent = [e for e in wire.events if (e.what, e.sender, e.receiver, e.round) == ("sent", "ada", "bob", 2)]
    rows = [event.digest for event in sent if event.kind == "row"]
    assert len(rows) > 1 and len(set(rows)) == 1
    run = type("Run", (), {"federation": made, "wire": wire})()
    assert faults(run) == []


def test_a_neighbour_that_requests_rows_without_end_gets_them_a_few_times(tmp_path):
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        wire, bodies = Wire(), []

        async def bob(sender, asked):
            if asked.kind is MessageKind.HELLO:
                return Reply(ReplyCode.OK, body=newcomer(agent, "bob"))  # who has seen nothing, whenever
            bodies.append(asked.body)
            return Reply(ReplyCode.OK)

        wire.handlers["bob"] = bob
        agent = made.agent(0, wire.transport("ada"))
        agent.peers.beliefs.answered.update(agent.peers.neighbours)
        task = asyncio.create_task(agent.run())
        for _ in range(200):
            await asyncio.sleep(0.5)
            await agent.requests.handle("bob", message(0, newcomer(agent, "bob"), MessageKind.HELLO))
        await ended(agent, task)
        return bodies

    bodies = on_virtual_time(scene())
    assert len(bodies) == 1 + MAX_RESENDS_PER_ROUND and len(set(bodies)) == 1


def test_an_unrequested_greeting_does_not_show_what_the_neighbour_has(tmp_path):
    """It may be older than the last row of an earlier process, and says nothing about that row."""
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        await asyncio.sleep(1)
        await ended(agent, task)
        wire = Wire()
        agent, task = await alone(made, 0, wire, answered=False)
        doubts = [agent.peers.beliefs.unheard_peers()]
        await agent.requests.handle("bob", message(0, newcomer(agent, "bob"), MessageKind.HELLO))
        doubts.append(agent.peers.beliefs.unheard_peers())

        async def bob(sender, asked):
            return Reply(ReplyCode.OK, body=newcomer(agent, "bob"))

        wire.handlers["bob"] = bob
        await asyncio.sleep(5)
        doubts.append(agent.peers.beliefs.unheard_peers())
        await ended(agent, task)
        return doubts

    assert on_virtual_time(scene()) == [["bob", "cleo"], ["bob", "cleo"], ["cleo"]]

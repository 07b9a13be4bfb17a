"""Tests of neighbours that invent rounds under the rule `go-on`, and of runs that skip most of theirs."""

import asyncio

import pytest
from history import Wire, federation, on_virtual_time
from test_planned_loop import alone, ended, message, newcomer, row

from topdp import topology
from topdp.agents.wire.transport import MessageKind, Reply, ReplyCode

pytestmark = pytest.mark.usefixtures("quick")
ROUNDS, REAL, INVENTED = 200, 6, 200


async def with_bob(made, pause):
    """ada makes `REAL` rounds with bob alone, who is silent for `pause` and then sends one far row."""
    wire = Wire()
    agent, task = await alone(made, 0, wire, answered=False)
    state = {"round": -1}

    async def bob(sender, asked):
        greeting = newcomer(agent, "bob", round=state["round"], charged=INVENTED)
        body = greeting if asked.kind is MessageKind.HELLO else b""
        return Reply(ReplyCode.OK, body=body)

    wire.handlers["bob"] = bob
    while agent.ledger.round < REAL:
        state["round"] = agent.ledger.round
        await agent.requests.handle("bob", message(max(agent.ledger.round, 0), row(made)))
        await asyncio.sleep(1)
    if pause:
        wire.handlers.pop("bob")
        await asyncio.sleep(pause)
    reply = await agent.requests.handle("bob", message(INVENTED, row(made)))
    if pause:
        return await task
    await asyncio.sleep(5)
    await agent.requests.handle("bob", message(INVENTED, row(made)))
    await asyncio.sleep(5)
    found = reply, agent.ledger.round
    await ended(agent, task)
    return found


def test_a_row_of_a_round_that_its_sender_cannot_have_reached_is_not_believed(tmp_path, caplog):
    made = federation(
        tmp_path, graph=topology.complete(2), rounds=ROUNDS, tolerates_silence=True, idle_timeout=4.0
    )
    reply, round = on_virtual_time(with_bob(made, 0.0))
    assert reply.code is ReplyCode.LATER and round == REAL
    assert "which it cannot have reached" in caplog.text


def test_a_run_that_skipped_most_of_its_rounds_is_no_success(tmp_path):
    """After a silence bob may be anywhere: ada follows him, and says how that ended."""
    made = federation(
        tmp_path, graph=topology.complete(2), rounds=ROUNDS, tolerates_silence=True, idle_timeout=4.0
    )

    outcome = on_virtual_time(with_bob(made, 20.0))
    assert outcome.code == 4 and outcome.result["finished"] is False
    assert outcome.result["made"] == REAL + 1 and outcome.result["skipped"] == ROUNDS - REAL


@pytest.mark.parametrize("silence", [0.5, 12.0])
def test_an_agent_that_was_away_still_takes_up_the_round_of_the_others(tmp_path, silence):
    made = federation(
        tmp_path, graph=topology.complete(3), rounds=300, tolerates_silence=True, idle_timeout=4.0
    )

    async def scene():
        wire = Wire(delay=0.1)
        agents = [made.agent(number, wire.transport(made.names[number])) for number in range(3)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await asyncio.sleep(2)
        wire.cut = {frozenset(("ada", peer)) for peer in ("bob", "cleo")}
        await asyncio.sleep(silence)
        wire.cut = set()
        return await asyncio.gather(*tasks)

    outcomes = on_virtual_time(scene())
    skipped = outcomes[0].result["skipped"]
    assert (skipped > 10) == (silence > 4) and all(outcome.finished for outcome in outcomes)
    assert [outcome.code for outcome in outcomes[1:]] == [0, 0]

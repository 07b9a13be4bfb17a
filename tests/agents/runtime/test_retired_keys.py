"""Tests that the keys of earlier cards prove nothing new about an agent's rows, and end no agent."""

import asyncio

import pytest
from history import IDENTITIES, Wire, federation, on_virtual_time
from test_first_charge import answering
from test_planned_loop import ended, message, newcomer

from topdp import topology
from topdp.agents.agreement.card_succession import CardDirectory, sign_successor
from topdp.agents.agreement.identity import generate
from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.runtime.agent import Agent
from topdp.agents.runtime.agent_context import PrivateFiles
from topdp.agents.wire.transport import MessageKind, ReplyCode
from topdp.errors import TrustError

pytestmark = pytest.mark.usefixtures("quick")
OLD = IDENTITIES["ada"]
NEW = generate("ada", OLD.card.address)


async def renewed(made, wire):
    """Starts ada under her second card; the test plays bob and cleo."""
    directory = CardDirectory(made.setup.manifest)
    directory.accept(sign_successor(1, OLD, NEW))
    private = PrivateFiles(NEW, made.private(0).folder)
    agent = Agent(
        made.context(0), made.state(0), transport=wire.transport("ada"), private=private, directory=directory
    )
    task = asyncio.create_task(agent.run())
    await asyncio.sleep(0.1)
    return agent, task


def forged(agent, signer):
    """bob's greeting, with a row of round 3 that ada has not made and `signer` has signed."""
    proof = RowSignatures(agent.peers.signatures.directory, signer).sign("bob", 3, "0" * 64)
    return {"seen": 3, "seen_digest": "0" * 64, "seen_signature": proof.hex()}


def test_a_retired_key_proves_nothing_once_all_neighbours_were_heard_under_the_new_one(tmp_path):
    made = federation(tmp_path, graph=topology.complete(3), rounds=4)

    async def scene(first):
        wire = Wire()
        agent, task = await renewed(made, wire)
        if first:
            wire.handlers |= {peer: answering(agent, peer) for peer in ("bob", "cleo")}
            await asyncio.sleep(20)
            assert agent.ledger.round == 0
        greeting = newcomer(agent, "bob", **forged(agent, OLD))
        await agent.requests.handle("bob", message(0, greeting, MessageKind.HELLO))
        await asyncio.sleep(20)
        standing = agent.ledger.quarantined("bob")
        await ended(agent, task)
        return standing.code

    assert on_virtual_time(scene(True)) is ReplyCode.NOT_A_GREETING
    assert on_virtual_time(scene(False)) is ReplyCode.NOT_A_GREETING, "after a restart, too"


def test_before_all_were_heard_a_retired_key_neither_ends_an_agent_nor_counts_as_an_answer(tmp_path, caplog):
    """The state folder might be an old copy, and the row be genuine."""
    made = federation(tmp_path, graph=topology.complete(3), rounds=4)

    async def scene():
        wire = Wire()
        agent, task = await renewed(made, wire)
        wire.handlers["cleo"] = answering(agent, "cleo")
        wire.handlers["bob"] = answering(agent, "bob", **forged(agent, OLD))
        await asyncio.sleep(100)
        found = agent.ledger.round, agent.ledger.quarantined("bob"), set(agent.loop.waits.started)
        wire.handlers["bob"] = answering(agent, "bob")
        await asyncio.sleep(20)
        later = agent.ledger.round
        await ended(agent, task)
        return found, later

    assert on_virtual_time(scene()) == ((-1, None, {"bob"}), 0)
    assert "let the others sign an amendment without bob" in caplog.text


@pytest.mark.parametrize("heard", [False, True])
def test_the_present_key_proves_that_a_ledger_is_an_old_copy(tmp_path, heard):
    made = federation(tmp_path, graph=topology.complete(3), rounds=4)

    async def scene():
        wire = Wire()
        agent, task = await renewed(made, wire)
        if heard:
            wire.handlers |= {peer: answering(agent, peer) for peer in ("bob", "cleo")}
            await asyncio.sleep(20)
        greeting = newcomer(agent, "bob", **forged(agent, NEW))
        await agent.requests.handle("bob", message(0, greeting, MessageKind.HELLO))
        with pytest.raises(TrustError, match="old copy"):
            await task

    on_virtual_time(scene())

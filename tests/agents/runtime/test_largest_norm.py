"""Tests of rows near the largest norm: an agent that mixes them sends none that others would refuse."""

import asyncio

import numpy as np
import pytest
import torch
from history import Wire, abandon, federation, on_virtual_time
from memory_transport import MemoryNetwork
from test_planned_loop import alone, ended, message, newcomer

from topdp.agents.runtime.agent import Agent
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import MessageKind

pytestmark = pytest.mark.usefixtures("quick")
LARGEST = 50.0


def longest(d):
    return np.full(d, LARGEST * (1 - 1e-6) / np.sqrt(d), np.float32)


def test_an_agent_that_mixes_the_longest_accepted_rows_sends_only_accepted_rows(tmp_path, caplog):
    """With step and noise the third such row would exceed the bound, and honest agents would refuse it."""
    made = federation(tmp_path, "method.name=plain", agents=3, rounds=16, largest_norm=LARGEST)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        d = len(agent.context.start)
        for peer in ("bob", "cleo"):
            await agent.requests.handle(peer, message(0, newcomer(agent, peer), MessageKind.HELLO))
        for round in range(16):
            for peer in ("bob", "cleo"):
                await agent.requests.handle(peer, message(round, row_payload.encode(longest(d))))
            await asyncio.sleep(0.1)
        assert agent.ledger.round == 16
        bodies = agent.ledger.database.rows("SELECT body FROM outbox WHERE body IS NOT NULL")
        norms = [np.linalg.norm(row_payload.decode(body, d, "float32", LARGEST)) for (body,) in bodies]
        await ended(agent, task)
        return norms

    assert max(on_virtual_time(scene())) > 0.99 * LARGEST
    assert "was shortened" in caplog.text


def test_an_agent_with_live_pairing_sends_only_accepted_rows(tmp_path):
    made = federation(
        tmp_path, "method.name=plain", "method.mode=async", agents=3, rounds=2, largest_norm=LARGEST
    )
    agent = Agent(
        made.context(0),
        made.state(0),
        transport=MemoryNetwork().transport("ada"),
        live_pairing=True,
        private=made.private(0),
    )
    agent.loop._job = lambda *facts: lambda: 2 * torch.from_numpy(longest(len(agent.context.start)))
    on_virtual_time(agent.loop._round(0, None))
    assert LARGEST * 0.99 < float(torch.linalg.vector_norm(agent.loop.estimate())) < LARGEST
    abandon(agent)

"""Tests of what one neighbour cannot do: end an agent or its budget, avoid checks, fill disk or log."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from history import Wire, federation, live, on_virtual_time, sharing
from test_planned_loop import alone, ended, message, newcomer, row

from topdp import topology
from topdp.agents.agreement.signatures import Notice, encode_notices
from topdp.agents.ledger.pairing_records import PairingRecords
from topdp.agents.ledger.stored_rows import MAX_RESENT_ROWS
from topdp.agents.runtime import planned_loop
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import Message, MessageKind, ReplyCode

pytestmark = pytest.mark.usefixtures("quick")
HELLO = MessageKind.HELLO


def test_a_row_that_is_left_out_for_its_distance_is_covered_by_the_reserve(tmp_path, monkeypatch):
    graph = topology.complete(5)
    how = {"guarantee": "adaptive", "departures": 1, "largest_drift": 6.0}
    made = federation(tmp_path, "method.name=top", "method.offline=0.0", graph=graph, rounds=6, **how)
    assert not made.context(0).meter.in_the_open and made.setup.reserve
    release = planned_loop.PlannedLoop._release

    def far(self, round, kind, cost, bodies, *others, **more):
        if self.name == "bob" and round == 3:
            large = np.full(len(self.context.start), 1e3, np.float32)
            bodies = dict.fromkeys(bodies, row_payload.encode(large))
        release(self, round, kind, cost, bodies, *others, **more)

    monkeypatch.setattr(planned_loop.PlannedLoop, "_release", far)
    on_virtual_time(live(made))
    left = [result for result in made.results() if result["departures"]]
    assert left and all(list(result["departures"]) == ["bob"] for result in left)
    assert all(result["departed"] is None and result["stopped_at"] is None for result in made.results())


def test_a_finished_agent_makes_no_further_exchange(tmp_path):
    """After a restart, no agent asks a finished one which rows it has."""
    made = federation(
        tmp_path, "method.name=plain", "method.mode=async", agents=3, rounds=6, tolerates_silence=True
    )

    async def scene():
        agent, task = await alone(made, 0, Wire(), live_pairing=True)
        while agent.ledger.round < 0:
            await asyncio.sleep(0.1)
        pairing = PairingRecords(agent.ledger)
        before = pairing.accept("one", "cleo")
        await agent.requests.handle("bob", message(0, b"", MessageKind.BYE))
        after = pairing.accept("two", "bob")
        await ended(agent, task)
        return before, after

    assert on_virtual_time(scene()) == (True, False)


def test_a_neighbour_that_changes_its_terms_is_quarantined_and_ends_no_agent(tmp_path):
    made = federation(tmp_path, graph=topology.from_edges([(0, 1)], 2), rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        await agent.requests.handle("bob", message(0, newcomer(agent, "bob"), HELLO))
        await agent.requests.handle("bob", message(0, row(made)))
        await asyncio.sleep(1)
        terms = replace(agent.peers.terms, start="another")
        reply = await agent.requests.handle("bob", message(0, newcomer(agent, "bob", terms=terms), HELLO))
        standing, fault = agent.ledger.quarantined("bob"), agent.peers.fault
        outcome = await task  # works alone up to the end
        return reply.code, standing.code, fault, outcome.finished

    other = ReplyCode.OTHER_TERMS
    assert on_virtual_time(scene()) == (other, other, None, True)


def test_an_authors_name_is_one_line_in_log_and_ledger(tmp_path, caplog):
    made = sharing(tmp_path, agents=3, rounds=2)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        author = "x\x1b[2K\r\n2026-11-17 INFO ada: cleo: a line that bob made"
        body = encode_notices([Notice.of_parts((author, "", "key of the run", "x", "00"))])
        await agent.requests.handle("bob", Message.of(MessageKind.NOTICES, 1, body))
        words = agent.ledger.quarantined("bob").words
        await ended(agent, task)
        return words

    words = on_virtual_time(scene())
    assert "cannot have said" in words and words.isprintable()
    assert all(record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.parametrize("how", ["never acknowledges", "says goodbye first"])
def test_rows_do_not_pile_up_for_a_neighbour_that_accepts_none(tmp_path, how):
    """bob sends his rows in time, but accepts none of ada's."""
    made = federation(tmp_path, "method.name=plain", graph=topology.from_edges([(0, 1)], 2), rounds=40)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        await agent.requests.handle("bob", message(0, newcomer(agent, "bob"), HELLO))
        if how == "says goodbye first":
            await agent.requests.handle("bob", message(0, b"", MessageKind.BYE))
        for round in range(40):
            await agent.requests.handle("bob", message(round, row(made, round / 100)))
            await asyncio.sleep(0.1)
        kept = "SELECT count(*) FROM outbox WHERE receiver = 'bob' AND body IS NOT NULL"
        found = agent.ledger.round, agent.ledger.database.one(kept)[0], agent.ledger.quarantined("bob")
        await ended(agent, task)
        return found

    round, bodies, standing = on_virtual_time(scene())
    assert round == 40 and bodies <= MAX_RESENT_ROWS + 4 and standing is None

"""Tests of what an agent believes of its neighbours: old copies, invented rounds, and values out of range."""

import asyncio
import itertools
import json
import shutil

import pytest
from history import Wire, abandon, federation, on_virtual_time
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_planned_loop import alone, ended, message, newcomer, row

from topdp import topology
from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost, digest_of
from topdp.agents.ledger.stored_rows import ANY_RECEIVER
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode
from topdp.errors import TrustError

pytestmark = pytest.mark.usefixtures("quick")


def entries(made, number):
    ledger = Ledger(made.state(number), writable=False)
    found = [(entry.round, entry.kind) for entry in ledger.entries()]
    ledger.close()
    return found


async def put_back_by_one_round(made, wire, copy, whole):
    """ada's round 3 reaches only bob; she is put back to round 2 and started while bob is unreachable."""
    lost = lambda sender, to, sent: sent.kind is MessageKind.ROW and (sender, to) == ("ada", "cleo")  # noqa: E731
    wire.lose = lambda *facts: "request" if lost(*facts) and facts[2].round >= 3 else None
    others = [made.agent(number, wire.transport(made.names[number])) for number in (1, 2)]
    tasks = [asyncio.create_task(agent.run()) for agent in others]
    ada = made.agent(0, wire.transport("ada"))
    life = asyncio.create_task(ada.run())
    while others[0].ledger.last_received("ada") < 3:
        await asyncio.sleep(0.01)
        if ada.ledger.round == 2 and not copy.exists():
            ada.ledger.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copytree(made.state(0), copy)
    abandon(ada)
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    assert ada.ledger.last_entry.round == 3 and others[1].ledger.last_received("ada") == 2
    shutil.rmtree(made.state(0))
    shutil.copytree(copy, made.state(0))
    if whole:
        shutil.rmtree(made.private(0).folder)
    wire.cut, wire.lose = {frozenset(("ada", "bob"))}, None
    return tasks


@pytest.mark.parametrize("tolerates_silence", [True, False])
def test_a_state_folder_put_back_by_one_round_is_refused_before_anything_is_made(tmp_path, tolerates_silence):
    made = federation(tmp_path, graph=topology.complete(3), rounds=12, tolerates_silence=tolerates_silence)

    async def scene():
        wire = Wire(delay=0.1)
        tasks = await put_back_by_one_round(made, wire, tmp_path / "copy", whole=False)
        with pytest.raises(TrustError, match="old copy"):
            made.agent(0, wire.transport("ada"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    on_virtual_time(scene())
    assert entries(made, 0)[-1] == (2, "release")


@pytest.mark.parametrize("tolerates_silence", [True, False])
def test_a_machine_put_back_by_one_round_makes_no_second_draw_while_the_reader_is_away(
    tmp_path, tolerates_silence, caplog
):
    """Under `go-on` her rows contain only noise. In both cases the first draw finally ends the agent."""
    made = federation(
        tmp_path,
        graph=topology.complete(3),
        rounds=120,
        tolerates_silence=tolerates_silence,
        idle_timeout=4.0,
    )

    async def scene():
        wire = Wire(delay=0.1)
        tasks = await put_back_by_one_round(made, wire, tmp_path / "copy", whole=True)
        ada = made.agent(0, wire.transport("ada"))
        life = asyncio.create_task(ada.run())
        await asyncio.sleep(12)
        made_meanwhile = [entry.kind for entry in ada.ledger.entries()][3:]
        wire.cut = set()
        with pytest.raises(TrustError, match="bob has a row of round 3 that this agent has signed"):
            await life
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return made_meanwhile

    kinds = on_virtual_time(scene())
    assert "bob: not heard since the start" in caplog.text
    assert (
        set(kinds) <= ({"noise", "skip"} if tolerates_silence else set()) and bool(kinds) == tolerates_silence
    )


@pytest.mark.slow
@pytest.mark.parametrize("cut", [True, False])
def test_after_a_restart_data_enter_again_once_all_neighbours_are_heard(tmp_path, cut):
    made = federation(
        tmp_path, graph=topology.complete(3), rounds=200, tolerates_silence=True, idle_timeout=2.0
    )

    async def scene():
        wire = Wire(delay=0.2)
        others = [made.agent(number, wire.transport(made.names[number])) for number in (1, 2)]
        tasks = [asyncio.create_task(agent.run()) for agent in others]
        for stay in (3.0, 12.0, 5.0):
            ada = made.agent(0, wire.transport("ada"))
            life = asyncio.create_task(ada.run())
            await asyncio.sleep(stay)
            wire.cut = {frozenset(("ada", "bob"))} if cut and stay == 3.0 else set()
            if stay == 12.0:
                await asyncio.sleep(10)
            await ended(ada, life)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    on_virtual_time(scene())
    kinds = [kind for _, kind in entries(made, 0)]
    first = kinds.index("noise") if cut else None
    assert ("noise" in kinds) == cut and kinds[-1] == kinds[0] == "release"
    assert first is None or kinds[first:].count("release") > 3


def test_an_agent_that_made_a_round_twice_is_detected_by_the_digest(tmp_path):
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        await agent.requests.handle("bob", message(0, row(made)))
        twice = newcomer(agent, "bob", sent=0, sent_digest="1" * 64)
        reply = await agent.requests.handle("bob", message(0, twice, MessageKind.HELLO))
        standing = agent.ledger.quarantined("bob")
        # In reverse: cleo has another row of ada's round 0, with ada's signature.
        proof = RowSignatures(CardDirectory(made.setup.manifest), made.private(0).identity).sign(
            "cleo", 0, "2" * 64
        )
        seen = {"seen": 0, "seen_digest": "2" * 64, "seen_signature": proof.hex()}
        await agent.requests.handle("cleo", message(0, newcomer(agent, "cleo", **seen), MessageKind.HELLO))
        with pytest.raises(TrustError, match="cleo has a row of round 0"):
            await task
        return reply, standing

    reply, standing = on_virtual_time(scene())
    assert reply.code is standing.code is ReplyCode.ROLLED_BACK


@pytest.mark.parametrize("asked", [False, True])
def test_an_outdated_greeting_is_requested_again_before_a_neighbour_is_quarantined(tmp_path, asked):
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        wire = Wire()

        async def bob(sender, sent):
            return Reply(ReplyCode.OK, body=newcomer(agent, "bob", charged=-1 if asked else 0))

        agent, task = await alone(made, 0, wire)
        await agent.requests.handle("bob", message(0, row(made)))
        wire.handlers["bob"] = bob
        old = newcomer(agent, "bob", charged=-1)
        await agent.requests.handle("bob", message(0, old, MessageKind.HELLO))
        before = agent.ledger.quarantined("bob")
        await asyncio.sleep(10)
        after = agent.ledger.quarantined("bob")
        await ended(agent, task)
        return before, after

    before, after = on_virtual_time(scene())
    assert before is None and (after is not None) == asked


@pytest.mark.parametrize("neighbours", [1, 2])
@pytest.mark.parametrize("how", ["word", "row"])
def test_rounds_without_evidence_are_not_skipped(tmp_path, neighbours, how):
    """bob claims, or shows by a row, that he is at the end; cleo, if present, is where ada is."""
    made = federation(tmp_path, graph=topology.complete(neighbours + 1), rounds=12, tolerates_silence=True)
    last = made.setup.plan.releases - 1

    async def scene():
        agent, task = await alone(made, 0, Wire())
        for peer in ("bob", "cleo")[:neighbours]:
            await agent.requests.handle(peer, message(0, row(made)))
        if how == "word":
            for far in (10**30, 999_999, last):
                body = newcomer(agent, "bob", round=far, charged=far)
                await agent.requests.handle("bob", message(0, body, MessageKind.HELLO))
        else:
            await agent.requests.handle("bob", message(last - 1, row(made)))
        await asyncio.sleep(1)
        return agent.ledger.round, await ended(agent, task)

    round, outcome = on_virtual_time(scene())
    counts = {key: outcome.result[key] for key in ("releases", "made", "skipped")}
    if how == "row" and neighbours == 1:  # no other neighbour: bounded by the plan, and reported
        assert round == last - 1 and counts == {"releases": last, "made": 1, "skipped": last - 1}
    elif (
        neighbours == 1
    ):  # who says that it owes nothing more is not waited for: ada works alone, every round
        assert round == last and counts == {"releases": last + 1, "made": last + 1, "skipped": 0}
    else:
        assert round == 1 and counts == {"releases": 2, "made": 2, "skipped": 0}


NUMBERS = (-2, -(10**30), 10**30, 2**31, 2**63, 2**64, 1.5, float("nan"), True, None)
TEXTS = (
    "",
    "x" * 9000,
    "\ud800",
    "0" * 63,
    "A" * 64,
    "é" * 64,
    "\x00",
    "[" * 3000,
    "9" * 400,
    "-1",
    "mallory",
)
EXTREMES = st.sampled_from((*NUMBERS, *TEXTS)) | st.builds(list) | st.builds(dict)


def statement(made):
    return ["bob", "", "run key", json.dumps(["plan", "0" * 64, "0" * 64]), "00" * 70]


def words_of(made, agent):
    """One valid message of each kind: its kind, its round, and its body as a tree."""
    greeting = json.loads(newcomer(agent, "bob"))
    yield MessageKind.HELLO, 0, greeting
    yield MessageKind.NOTICES, 1, [statement(made)]
    for kind in (MessageKind.ROW, MessageKind.BYE, MessageKind.PROPOSE, MessageKind.COMMIT):
        yield kind, 0, [0, "exchange", ""]
    yield MessageKind.RESOLVE, 0, "exchange"


def packed(kind, tree, body):
    """The message as sent; a row in an exchange has a header."""
    if kind is MessageKind.COMMIT:
        head = json.dumps(tree).encode()[:60000]
        return len(head).to_bytes(2, "big") + head + body
    return body if kind is MessageKind.ROW else json.dumps(tree).encode("utf-8", "surrogatepass")


def places(tree, path=()):
    yield path
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*path, key))


def replace_at(tree, path, value):
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = replace_at(tree[path[0]], path[1:], value)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("live_pairing", [False, True])
def test_no_field_of_no_message_ends_an_agent(tmp_path, live_pairing, caplog):
    """Valid messages with one field replaced, as requests and replies; detects missing checks of ranges."""
    method = ("method.mode=async",) if live_pairing else ("method.name=correlated", "method.secrets=all")
    guarantee = "worst-case" if live_pairing else "adaptive"
    made = federation(tmp_path, *method, graph=topology.complete(3), rounds=4, guarantee=guarantee)

    fresh, good = itertools.count(), row(made)

    async def scene(data):
        made.folder = tmp_path / str(next(fresh))
        agent = made.agent(0, Wire().transport("ada"), live_pairing=live_pairing)
        agent.ledger.release(0, ReleaseCost(0.1), {ANY_RECEIVER: good} if live_pairing else {}, b"state")
        try:
            for kind, round, tree in words_of(made, agent):
                path = data.draw(st.sampled_from([("round",), *places(tree)]), label=f"{kind.name} field")
                value = data.draw(EXTREMES, label="value")
                if path == ("round",) and type(value) is int:
                    round = value
                elif path != ("round",):
                    tree = replace_at(tree, path, value)
                body = packed(kind, tree, good)
                sent = Message.of(
                    kind, round, body, data.draw(st.sampled_from([b"", b"x" * 72, b"y" * 9000]))
                )
                reply = await agent.requests.handle("bob", sent)
                assert reply.code is not ReplyCode.FAILED
                agent.peers.peers_with_other_terms.clear()  # an agent ends if all neighbours have other terms

                code = data.draw(st.sampled_from(list(ReplyCode)), label="answer")

                async def answered(peer, asked, body=body, code=code):
                    return Reply(code, "é" * 50, body)

                agent.peers.transport.request, agent.peers.transport.reaches = answered, lambda peer: True
                await agent.sender._greet("cleo")
                agent.peers.peers_with_other_terms.clear()
                if live_pairing and not agent.loop.pairing.busy:
                    await agent.loop._propose_to_neighbours()
                assert agent.peers.fault is None
        finally:
            agent.ledger.close()

    @settings(
        max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    @given(st.data())
    def check(data):
        on_virtual_time(scene(data))

    check()
    assert "by our fault" not in caplog.text and "an error in this agent" not in caplog.text


def test_an_internal_error_fails_one_request_and_ends_no_agent(tmp_path, monkeypatch):
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())

        def broken(*_):
            raise OverflowError("Python int too large to convert to SQLite INTEGER")

        monkeypatch.setattr(agent.peers.beliefs, "judge", broken)
        reply = await agent.requests.handle("bob", message(0, newcomer(agent, "bob"), MessageKind.HELLO))
        fault = agent.peers.fault
        await ended(agent, task)
        return reply, fault

    reply, fault = on_virtual_time(scene())
    assert reply.code is ReplyCode.FAILED and fault is None


def test_rows_are_signed_and_invalid_signatures_are_not_stored(tmp_path):
    made = federation(tmp_path, agents=3, rounds=4)
    body, bob = row(made), RowSignatures(CardDirectory(made.setup.manifest), made.private(1).identity)
    good = bob.sign("ada", 0, digest_of(body))

    async def scene():
        agent, task = await alone(made, 0, Wire())
        taken = await agent.requests.handle("bob", Message.of(MessageKind.ROW, 0, body, good))
        greeting = agent.peers.greeting("bob")
        forged = await agent.requests.handle("cleo", Message.of(MessageKind.ROW, 0, body, good))
        unsigned = agent.peers.greeting("cleo")
        await ended(agent, task)
        return taken, greeting, forged, unsigned

    taken, greeting, forged, unsigned = on_virtual_time(scene())
    assert taken.ok and bytes.fromhex(greeting.seen_signature) == good and greeting.seen_digest
    assert forged.ok and unsigned.seen == 0 and unsigned.seen_signature == ""
    assert not bob.verify("bob", "ada", 1, digest_of(body), good)
    assert bob.verify("bob", "ada", 0, digest_of(body), good)


def test_a_neighbour_that_omits_a_row_is_quarantined_and_stops_nobody(tmp_path):
    """It will never send that row: bob has reported what he has of ada, and sends round 2 after round 0."""
    made = federation(tmp_path, graph=topology.complete(3), rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        await agent.requests.handle("bob", message(0, newcomer(agent, "bob"), MessageKind.HELLO))
        for r in range(5):
            if r != 1:
                await agent.requests.handle("bob", message(r, row(made)))
            await agent.requests.handle("cleo", message(r, row(made)))
            await asyncio.sleep(1)
        return agent.ledger.round, agent.ledger.quarantined("bob"), await ended(agent, task)

    round, why, outcome = on_virtual_time(scene())
    assert round == 4 and why.code is ReplyCode.GAP and "left out 1" in why.words
    assert outcome.result["departed"] == "round 2: nothing from bob"

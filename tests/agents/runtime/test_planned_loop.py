"""Tests of the planned loop: slow, dead and returning agents, lies, strangers and old copies of a ledger."""

import asyncio
import random
import shutil
from dataclasses import replace

import pytest
import torch
from history import Crash, Wire, abandon, faults, federation, live, on_virtual_time

from topdp import topology
from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger import inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.runtime.peer_contacts import MAX_OMISSIONS_OF_A_ROW
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode, Unreachable
from topdp.errors import TrustError

pytestmark = pytest.mark.usefixtures("quick")


def row(made, value=1.0):
    return row_payload.encode(torch.full_like(made.context(0).start, value).numpy())


def message(round, body, kind=MessageKind.ROW):
    return Message.of(kind, round, body)


async def alone(made, number, wire, answered=True, **options):
    """Starts one agent; the test plays its neighbours, which have `answered` its first greeting."""
    agent = made.agent(number, wire.transport(made.names[number]), **options)
    agent.peers.beliefs.answered.update(agent.peers.neighbours if answered else ())
    task = asyncio.create_task(agent.run())
    for _ in range(20):
        await asyncio.sleep(0)
    return agent, task


def newcomer(agent, peer, **changes):
    """The greeting of a neighbour with the same terms that has seen and sent nothing."""
    nothing = {"seen": -1, "seen_digest": "", "seen_signature": "", "sent": -1, "sent_digest": ""}
    return replace(agent.peers.greeting(peer), **{**nothing, **changes}).encode()


async def ended(agent, task):
    agent.stop()
    return await task


def test_agents_wait_for_a_slow_neighbour(tmp_path):
    """The delay exceeds any idle timeout: the rule is to wait."""
    made = federation(tmp_path, agents=3, rounds=3)
    run = on_virtual_time(live(made, failpoints={1: "after_ledger:2"}, restart_after=200.0))
    assert {outcome.code for outcome in run.outcomes.values()} == {0}
    assert all(outcome.result["departed"] is None for outcome in run.outcomes.values())
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_agents_continue_without_a_dead_neighbour_under_the_rule_go_on(tmp_path, mode, caplog):
    made = federation(
        tmp_path, f"method.mode={mode}", graph=topology.complete(4), rounds=6, tolerates_silence=True
    )
    run = on_virtual_time(live(made, failpoints={3: "before_ledger:1"}, for_good=[3]))
    assert {outcome.code for outcome in run.outcomes.values()} == {0}
    departed = [outcome.result["departed"] for outcome in run.outcomes.values()]
    assert any(departed) and all(why is None or "nothing from dan" in why for why in departed)
    assert "own estimate replaces it" in caplog.text and "dan" in caplog.text
    run.federation.state(3).mkdir(exist_ok=True)
    shutil.rmtree(run.federation.state(3))
    assert faults(run) == []


def test_a_missing_row_is_replaced_by_the_own_estimate():
    from topdp.agents.runtime.agent_rows import mix_rows

    own, other = torch.ones(3), torch.full((3,), 5.0)
    assert mix_rows([(0, 0.25), (7, 0.75)], {0: own, 7: other}, own).tolist() == [4.0] * 3
    assert mix_rows([(0, 0.25), (7, 0.75)], {0: own}, own).tolist() == [1.0] * 3


def test_who_comes_back_takes_up_the_round_where_the_others_are(tmp_path):
    made = federation(
        tmp_path, graph=topology.complete(4), rounds=40, tolerates_silence=True, idle_timeout=2.0
    )
    run = on_virtual_time(
        live(made, wire=Wire(delay=0.4), failpoints={3: "after_ledger:3"}, restart_after=6.0)
    )
    assert faults(run) == []
    ledger = Ledger(made.state(3), writable=False)
    kinds = [entry.kind for entry in ledger.entries()]
    assert "skip" in kinds and kinds.count("release") > 10
    skipped = next(entry for entry in ledger.entries() if entry.kind == "skip")
    assert skipped.charge == 0 and skipped.digests == {}
    ledger.close()
    applied = Ledger(made.state(0), writable=False)
    after = applied.database.rows("SELECT 1 FROM inbox WHERE sender = 'dan' AND applied > ?", skipped.round)
    applied.close()
    assert len(after) > 5, "the others use its rows again"


def test_replays_are_acknowledged_and_applied_once(tmp_path):
    made = federation(tmp_path, agents=3, rounds=4)
    wire = Wire()
    sent = []
    wire.lose = lambda sender, receiver, message: sent.append((sender, receiver, message))

    async def scene():
        run = await live(made, wire=wire)
        return run

    run = on_virtual_time(scene())
    first = next(s for s in sent if s[2].kind is MessageKind.ROW and s[2].round == 0 and s[1] == "ada")

    async def replay():
        agent = made.agent(0, Wire().transport("ada"))
        replies = [await agent.requests.handle(first[0], first[2]) for _ in range(3)]
        applied = agent.ledger.database.rows(
            "SELECT applied FROM inbox WHERE sender = ? AND round = 0", first[0]
        )
        agent.ledger.close()
        return replies, applied

    replies, applied = on_virtual_time(replay())
    assert [(reply.ok, reply.code) for reply in replies] == [(True, ReplyCode.AGAIN)] * 3
    assert applied == [(1,)]
    assert faults(run) == []


def test_without_the_check_of_the_inbox_the_ledger_refuses_a_replay(tmp_path, monkeypatch):
    """The inbox detects replays; without that check, the ledger would still refuse to store a row twice."""
    from topdp.agents.ledger.ledger_entries import LedgerError

    monkeypatch.setattr(inbox.Inbox, "judge", lambda self, *facts: ReplyCode.OK)
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        agent = made.agent(0, Wire().transport("ada"))
        assert (await agent.requests.handle("bob", message(0, row(made)))).code is ReplyCode.OK
        with pytest.raises(LedgerError):
            await agent.requests.handle("bob", message(0, row(made)))
        agent.ledger.close()

    on_virtual_time(scene())


def equivocated(tmp_path):
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        replies = [
            await agent.requests.handle("bob", message(0, row(made, value))) for value in (1.0, 2.0, 1.0)
        ]
        reason = agent.ledger.quarantined("bob")
        await ended(agent, task)
        return replies, reason

    return on_virtual_time(scene())


def test_two_different_rows_for_one_round_are_quarantined_and_logged_once(tmp_path, caplog):
    replies, reason = equivocated(tmp_path)
    assert [reply.ok for reply in replies] == [True, False, False]
    assert [reply.code for reply in replies[1:]] == [ReplyCode.EQUIVOCATION, ReplyCode.QUARANTINED]
    assert reason.code is ReplyCode.EQUIVOCATION and "two different rows for round 0" in reason.words
    assert sum("equivocation" in record.message for record in caplog.records) == 1


def test_without_the_check_two_different_rows_for_one_round_would_pass(tmp_path, monkeypatch):
    original = inbox.Inbox.judge

    def credulous(self, sender, round, digest):
        verdict = original(self, sender, round, digest)
        return ReplyCode.AGAIN if verdict is not ReplyCode.OK else verdict

    monkeypatch.setattr(inbox.Inbox, "judge", credulous)
    replies, reason = equivocated(tmp_path)
    assert all(reply.ok for reply in replies) and reason is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        row_payload.encode(torch.zeros(3).numpy()),
        row_payload.encode(torch.zeros(51).numpy())[:-4],
    ],
    ids=["empty", "garbage", "another shape", "cut"],
)
def test_an_invalid_row_quarantines_its_sender_and_the_round_continues(tmp_path, body, caplog):
    made = federation(tmp_path, graph=topology.complete(3), rounds=2)

    async def scene():
        wire = Wire()
        agent, task = await alone(made, 0, wire)
        assert not (await agent.requests.handle("bob", message(0, body))).ok
        for r in range(3):
            await agent.requests.handle("cleo", message(r, row(made)))
            await asyncio.sleep(1)
        rounds = agent.ledger.round
        await ended(agent, task)
        return rounds

    assert on_virtual_time(scene()) == 2
    assert sum("not_a_row" in record.message and "bob" in record.message for record in caplog.records) == 1


def test_a_neighbour_that_refuses_rows_makes_the_agent_charge_by_worst_case(tmp_path):
    """The neighbour mixes no refused row, so accounts of the plan no longer hold, and are not reported."""
    made = federation(
        tmp_path, "privacy.guarantee=view", "privacy.epsilon=1.0", graph=topology.ring(6), rounds=8
    )

    async def scene():
        wire = Wire()

        async def bob(sender, message):
            if message.kind is MessageKind.HELLO:
                return Reply(ReplyCode.OK, body=newcomer(agent, "bob"))
            return Reply(ReplyCode.OK if message.round < 3 else ReplyCode.QUARANTINED)

        wire.handlers["bob"] = bob
        agent = made.agent(0, wire.transport("ada"))
        agent.peers.beliefs.answered.update(agent.peers.neighbours)
        task = asyncio.create_task(agent.run())
        await asyncio.sleep(1)
        for r in range(3):
            for peer in ("bob", "fay"):
                await agent.requests.handle(peer, message(r, row(made)))
            await asyncio.sleep(1)
        return agent.ledger.last_entry, await ended(agent, task)

    last, outcome = on_virtual_time(scene())
    assert last.round == 3 and last.total < last.worst_case
    assert outcome.result["departed"] == "round 3: bob refused the row"
    assert outcome.result["spent"]["charged_by"] == "worst-case"
    assert outcome.result["spent"]["epsilon"] == last.worst_case


@pytest.mark.parametrize("own", [None, 0.6], ids=["data still enter", "data enter no more"])
def test_an_agent_charges_by_worst_case_from_the_first_departure_on(tmp_path, own):
    """The `view` answer holds only for the plan as written. After a departure the ledger charges the
    difference.
    """
    made = federation(
        tmp_path, "privacy.guarantee=view", "privacy.epsilon=1.0", graph=topology.ring(6), rounds=8
    )
    views = made.context(0).meter.by_plan

    async def scene():
        agent, task = await alone(made, 0, Wire(), epsilon=own)
        for r in range(5):
            for peer in ("bob", "fay"):
                await agent.requests.handle(peer, message(r, row(made)))
            await asyncio.sleep(1)
        before = agent.ledger.last_entry
        assert not (await agent.requests.handle("bob", message(5, b"garbage"))).ok
        for r in range(5, 9):
            await agent.requests.handle("fay", message(r, row(made)))
            await asyncio.sleep(1)
        found = (
            list(agent.ledger.entries()),
            agent.ledger.stopped_at,
            agent.ledger.departed,
            verify(agent.ledger),
        )
        outcome = await ended(agent, task)
        return before, *found, outcome

    before, entries, stopped, departed, checked, outcome = on_virtual_time(scene())
    assert checked == 9 and departed == "round 6: nothing from bob"
    data = [entry.round for entry in entries if entry.kind == "release"]
    assert data == list(range(stopped)) and (stopped <= before.round) == (own is not None)
    assert before.round == 5 and before.total == pytest.approx(views[data[-1] if own else 5])
    assert before.total < before.worst_case
    # From round 6 on, all releases are charged by worst case, whether data still enter or not.
    assert all(entry.total == pytest.approx(entry.worst_case, rel=1e-12) for entry in entries[6:])
    if own:
        assert entries[6].kind == "noise" and entries[6].charge > 0 and entries[7].charge == 0
    assert outcome.code == 3 and outcome.result["spent"]["charged_by"] == "worst-case"


@pytest.mark.parametrize(
    ("code", "times"),
    [(ReplyCode.LATER, 3), (ReplyCode.GAP, MAX_OMISSIONS_OF_A_ROW), (ReplyCode.EQUIVOCATION, 1)],
    ids=["too early", "too early again and again", "refused"],
)
def test_rows_that_arrive_too_early_are_sent_again_and_refused_rows_are_not(tmp_path, code, times):
    made = federation(tmp_path, agents=3, rounds=4)

    async def scene():
        wire, bodies, seen = Wire(), [], {}

        async def bob(sender, message):
            if message.kind is MessageKind.HELLO:
                return Reply(ReplyCode.OK, body=newcomer(agent, "bob", **seen))
            bodies.append(message.body)
            if code is ReplyCode.LATER and len(bodies) == 3:
                seen.update(seen=0, seen_digest=message.digest)
                return Reply(ReplyCode.OK)
            return Reply(code)

        wire.handlers["bob"] = bob
        agent = made.agent(0, wire.transport("ada"))
        agent.peers.beliefs.answered.update(agent.peers.neighbours)
        task = asyncio.create_task(agent.run())
        await asyncio.sleep(10)
        owed, refused = agent.sender.rounds_owed("bob"), "bob" in agent.peers.refused_by
        await ended(agent, task)
        return bodies, owed, refused

    bodies, owed, refused = on_virtual_time(scene())
    assert len(bodies) == times and len(set(bodies)) == 1
    assert owed == [] and refused == (code is not ReplyCode.LATER)


def test_strangers_and_invalid_requests_are_refused(tmp_path, caplog):
    made = federation(tmp_path, agents=4, rounds=2)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        replies = [
            await agent.requests.handle("cleo", message(0, row(made))),  # no neighbour in the ring
            await agent.requests.handle("mallory", message(0, row(made))),
            await agent.requests.handle(
                "cleo", message(0, agent.peers.greeting("cleo").encode(), kind=MessageKind.HELLO)
            ),
            await agent.requests.handle("cleo", message(0, b"", kind=MessageKind.BYE)),
            await agent.requests.handle("bob", message(0, b"", kind=MessageKind.PROPOSE)),
            await agent.requests.handle(
                "bob", Message(kind=MessageKind.ROW, round=0, digest="0" * 64, body=row(made))
            ),
            await agent.requests.handle("bob", message(0, b"[" * 5000, kind=MessageKind.HELLO)),
            await agent.requests.handle("bob", message(0, b'{"terms": 3}', kind=MessageKind.HELLO)),
            await agent.requests.handle("bob", message(1, row(made))),  # round 0 is missing
            await agent.requests.handle("bob", message(99, row(made))),
        ]
        seen = agent.ledger.last_received("bob")
        await ended(agent, task)
        return replies, seen

    replies, seen = on_virtual_time(scene())
    assert [reply.code for reply in replies] == [
        *[ReplyCode.STRANGER] * 4,
        ReplyCode.UNKNOWN_KIND,
        ReplyCode.DAMAGED,
        *[ReplyCode.NOT_A_GREETING] * 2,
        ReplyCode.GAP,
        ReplyCode.UNKNOWN_ROUND,
    ]
    assert not any(reply.ok for reply in replies) and seen == -1


def test_the_mark_beside_the_key_reveals_an_old_copy_of_the_ledger(tmp_path):
    made = federation(tmp_path, agents=3, rounds=40)
    with pytest.raises(BaseExceptionGroup) as raised:
        on_virtual_time(_rolled_back(made, tmp_path, whole=False))
    (error,) = raised.value.exceptions
    assert isinstance(error, TrustError) and "state folder is an old copy" in str(error)


def test_neighbours_reveal_an_old_copy_of_the_ledger(tmp_path):
    """The mark beside its key is an old copy too."""
    made = federation(tmp_path, agents=3, rounds=40)

    # The restored copy knows of round 1; bob and cleo have seen later rounds of ada.
    with pytest.raises(BaseExceptionGroup) as raised:
        on_virtual_time(_rolled_back(made, tmp_path, whole=True))
    (error,) = raised.value.exceptions
    assert isinstance(error, TrustError) and "old copy" in str(error)
    for number in (1, 2):
        ledger = Ledger(made.state(number), writable=False)
        assert ledger.last_received("ada") > 1 and ledger.quarantined("ada") is None, (
            "the newest copy may return"
        )
        ledger.close()


async def _rolled_back(made, tmp_path, whole):
    """ada runs to the middle, is put back to an early copy of her ledger, and meets her neighbours again."""
    wire = Wire(delay=0.1)

    async def others(number):
        agent = made.agent(number, wire.transport(made.names[number]))
        return await agent.run()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(others(number)) for number in (1, 2)]
        ada = made.agent(0, wire.transport("ada"))
        life = asyncio.create_task(ada.run())
        copied = False
        while ada.ledger.round < 3:
            await asyncio.sleep(0.01)
            if ada.ledger.round == 1 and not copied:
                ada.ledger.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                shutil.copytree(made.state(0), tmp_path / "copy")
                copied = True
        await asyncio.sleep(1)
        abandon(ada)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        shutil.rmtree(made.state(0))
        shutil.copytree(tmp_path / "copy", made.state(0))
        if whole:
            shutil.rmtree(made.private(0).folder)
        try:
            again = made.agent(0, wire.transport("ada"))
        except TrustError:
            for task in tasks:
                task.cancel()
            raise
        try:
            await again.run()
        finally:
            for task in tasks:
                task.cancel()


def greeted(made, peers=("bob",), **changes):
    """How ada reacts to greetings of `peers`: her last reply, her own fault, and bob's quarantine."""

    async def scene():
        agent = made.agent(0, Wire().transport("ada"))
        for peer in peers:
            body = replace(agent.peers.greeting(peer), **changes).encode()
            reply = await agent.requests.handle(peer, message(0, body, kind=MessageKind.HELLO))
        standing = agent.ledger.quarantined("bob")
        agent.ledger.close()
        return reply, agent.peers.fault, standing

    return on_virtual_time(scene())


def proof_of_row(made, round=2, digest="0" * 64, signer="ada"):
    """The part of bob's greeting that shows a row of ada, signed by `signer`."""
    private = made.private(made.names.index(signer))
    proof = RowSignatures(CardDirectory(made.setup.manifest), private.identity).sign("bob", round, digest)
    return {"seen": round, "seen_digest": digest, "seen_signature": proof.hex()}


def test_a_neighbour_with_proof_of_a_later_row_stops_the_agent(tmp_path):
    """This holds even if the neighbour itself would continue."""
    made = federation(tmp_path, agents=3, rounds=4)
    assert greeted(made)[1:] == (None, None)
    _, fault, _ = greeted(made, **proof_of_row(made))
    assert isinstance(fault, TrustError) and "old copy" in str(fault)


@pytest.mark.parametrize("signature", ["none", "bob's own", "of another row"])
def test_a_neighbour_that_only_claims_to_have_seen_more_is_a_liar(tmp_path, signature):
    made = federation(tmp_path, agents=3, rounds=4)
    claims = {
        "none": {**proof_of_row(made), "seen_signature": ""},
        "bob's own": proof_of_row(made, signer="bob"),
        "of another row": {**proof_of_row(made), "seen": 3},
    }
    reply, fault, standing = greeted(made, **claims[signature])
    assert fault is None and standing.code is ReplyCode.NOT_A_GREETING and "cannot show it" in standing.words
    assert reply.code is ReplyCode.QUARANTINED and reply.body, "the reply still states what this agent has"


@pytest.mark.parametrize("key", ["federation", "plan", "start"])
def test_other_terms_are_refused_and_end_an_agent_if_all_neighbours_have_them(tmp_path, key):
    made = federation(tmp_path, agents=3, rounds=4)
    same = made.agent(0, Wire().transport("ada"))
    terms = replace(same.peers.terms, **{key: "another"})
    same.ledger.close()
    reply, fault, _ = greeted(made, terms=terms)
    assert reply.code is ReplyCode.OTHER_TERMS and fault is None, "one neighbour ends no agent"
    reply, fault, _ = greeted(made, peers=("bob", "cleo"), terms=terms)
    assert not reply.ok and isinstance(fault, TrustError) and "others: bob, cleo." in str(fault)


def test_an_agent_without_any_neighbour_waits_and_spends_nothing_more(tmp_path):
    made = federation(tmp_path, graph=topology.complete(3), rounds=8, tolerates_silence=True)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        await asyncio.sleep(200)
        rounds = agent.ledger.round
        await ended(agent, task)
        return rounds

    assert on_virtual_time(scene()) == 0


@pytest.mark.parametrize(
    "changes, rules",
    [((), {"idle_timeout": 5.0}), (("data.feature_groups=9",), {}), (("data.features=scattering",), {})],
)
def test_two_agents_with_different_manifests_refuse_each_other(changes, rules, tmp_path, monkeypatch):
    """This includes a manifest that differs only in the features that agents compute from their records."""
    monkeypatch.setenv("TOPDP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("topdp.data.featured_shards.of_records", lambda records, *_: records)
    made = federation(tmp_path / "one", agents=2, graph=topology.complete(2), rounds=2)
    other = federation(tmp_path / "two", *changes, graph=topology.complete(2), rounds=2, **rules)

    async def scene():
        wire = Wire()
        agents = [made.agent(0, wire.transport("ada")), other.agent(1, wire.transport("bob"))]
        return await asyncio.gather(*(agent.run() for agent in agents), return_exceptions=True)

    found = on_virtual_time(scene())
    assert all(
        isinstance(error, TrustError) and "got only neighbours with others" in str(error) for error in found
    )


def test_an_agent_that_is_asked_to_stop_ends_and_later_continues(tmp_path):
    made = federation(tmp_path, agents=3, rounds=6)

    async def scene():
        wire = Wire(delay=0.1)
        agents = [made.agent(i, wire.transport(made.names[i])) for i in range(3)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        while agents[0].ledger.round < 2:
            await asyncio.sleep(0.001)
        for agent in agents:
            agent.stop()
        return await asyncio.gather(*tasks)

    outcomes = on_virtual_time(scene())
    assert [(outcome.code, outcome.finished) for outcome in outcomes] == [(0, False)] * 3
    run = on_virtual_time(live(made))
    assert faults(run) == []
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6)


def test_a_process_that_slept_holds_no_silence_against_others(tmp_path):
    """SIGSTOP for longer than the idle timeout, or a clock that jumps, counts as a single tick."""
    made = federation(tmp_path, agents=3, rounds=3, tolerates_silence=True, idle_timeout=4.0)

    async def scene():
        agent, task = await alone(made, 0, Wire())
        asyncio.get_running_loop().now += 200.0
        await asyncio.sleep(0.01)
        silent = dict(agent.peers.silent_ticks)
        await ended(agent, task)
        return silent

    assert all(ticks <= 2 for ticks in on_virtual_time(scene()).values())


@pytest.mark.parametrize("what", ["request", "reply"])
def test_lost_requests_and_replies_change_nothing(tmp_path, what):
    made = federation(tmp_path, agents=4, rounds=4)
    wire, chance = Wire(), random.Random(0)
    wire.lose = lambda sender, receiver, message: what if chance.random() < 0.3 else None
    run = on_virtual_time(live(made, wire=wire))
    assert faults(run) == []
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6)


def test_a_ledger_that_cannot_be_written_ends_the_agent_and_nothing_leaves(tmp_path):
    from topdp.agents.ledger.ledger_entries import LedgerError

    made = federation(tmp_path, agents=3, rounds=3)

    async def scene():
        wire = Wire()
        agent = made.agent(0, wire.transport("ada"))
        agent.peers.beliefs.answered.update(agent.peers.neighbours)
        agent.ledger.database.connection.execute("PRAGMA query_only = 1")
        with pytest.raises(LedgerError, match="Make the folder writable"):
            await agent.run()
        return wire.events

    assert [event for event in on_virtual_time(scene()) if event.kind == "row"] == []


def test_requests_to_dead_agents_raise_unreachable():
    async def scene():
        with pytest.raises(Unreachable):
            await Wire().transport("ada").request("bob", message(0, b""))

    on_virtual_time(scene())
    assert issubclass(Crash, BaseException) and not issubclass(Crash, Exception)

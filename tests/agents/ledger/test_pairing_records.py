"""Tests of exchanges with live pairing: both partners commit or neither, whichever crashes or is offline."""

import asyncio
import itertools
import random
from dataclasses import replace

import pytest
import torch
from history import Wire, asymmetric, faults, federation, live, on_virtual_time
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from topdp import topology
from topdp.agents.development import development_hooks
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import LedgerError, ReleaseCost
from topdp.agents.ledger.pairing_records import PairingRecords
from topdp.agents.ledger.stored_rows import ANY_RECEIVER
from topdp.agents.runtime.peer_messages import Handover
from topdp.agents.wire import row_payload
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode
from topdp.errors import InputError

pytestmark = pytest.mark.usefixtures("quick")

LIVE = {i: {"live_pairing": True, "seeded": False} for i in range(6)}


def exchanges(made, numbers=None):
    found = {}
    for number, name in enumerate(made.names):
        if numbers is not None and number not in numbers:
            continue
        ledger = Ledger(made.state(number), writable=False)
        found[name] = ledger.database.rows("SELECT id, partner, status, applied FROM pairs")
        ledger.close()
    return found


def run_live_pairing(tmp_path, method="plain", changes=(), guarantee="worst-case", agents=6, **how):
    made = federation(
        tmp_path,
        "method.mode=async",
        f"method.name={method}",
        *changes,
        graph=topology.complete(agents),
        rounds=10,
        guarantee=guarantee,
    )
    chance = random.Random(3)
    wire = how.pop("wire", None) or Wire(delay=0.05)
    run = on_virtual_time(live(made, wire=wire, options=LIVE, restart_after=chance.random(), **how))
    return made, run


def test_agents_with_live_pairing_train_and_agree_on_their_exchanges(tmp_path):
    made, run = run_live_pairing(tmp_path)
    assert {outcome.code for outcome in run.outcomes.values()} == {0}
    assert faults(run) == []
    committed = [row for rows in exchanges(made).values() for row in rows if row[2] == "committed"]
    assert len(committed) >= 12 and len(committed) % 2 == 0
    assert sum(row[3] is not None for row in committed) >= 0.7 * len(committed)
    assert torch.isfinite(made.estimates()).all()


@pytest.mark.parametrize("agents", [2, 6])
def test_no_agent_sends_a_row_to_the_agent_whose_noise_it_reuses(tmp_path, agents):
    made, run = run_live_pairing(tmp_path, method="top", agents=agents)
    assert faults(run) == []
    sent = 0
    for number in range(agents):
        ledger = Ledger(made.state(number), writable=False)
        query = "SELECT partner, own_round, applied FROM pairs WHERE status = 'committed'"
        pairs = ledger.database.rows(query)
        ledger.close()
        mixed_in = {applied: partner for partner, _, applied in pairs}
        assert not [round for partner, round, _ in pairs if mixed_in.get(round) == partner]
        sent += len(pairs)
    assert sent >= 2 * agents


@pytest.mark.slow
@pytest.mark.parametrize("place", [*development_hooks.PAIRING_POINTS, "in_ledger", "after_ledger"])
def test_both_partners_commit_or_neither_after_a_crash_at_any_point(tmp_path, place):
    _, run = run_live_pairing(tmp_path, failpoints={i: f"{place}:{1 + i % 2}" for i in range(6)})
    assert len(run.wire.crashed) >= 3
    assert faults(run) == []
    assert {outcome.code for outcome in run.outcomes.values()} == {0}


@pytest.mark.parametrize("guarantee", ["worst-case", "view"])
def test_agents_with_many_exchanges_are_charged_by_worst_case_and_stop_within_the_budget(tmp_path, guarantee):
    """Each exchange counts on noise of the partner, so it costs more than a round alone."""
    made, run = run_live_pairing(tmp_path, method="top-dp", guarantee=guarantee)
    assert 3 in {outcome.code for outcome in run.outcomes.values()} <= {0, 3}
    assert faults(run) == []
    for result in made.results():
        assert result["spent"]["charged_by"] == "worst-case"
        assert result["spent"]["epsilon"] <= result["budget"] * (1 + 1e-9)
        assert result["spent"]["epsilon"] == pytest.approx(result["spent"]["worst_case"], rel=1e-12)


def test_an_agent_with_a_much_noisier_partner_still_adds_own_noise(tmp_path):
    """Otherwise the partner's noise would replace all of ada's, and ada could not pay for any row."""
    made, run = run_live_pairing(
        tmp_path, method="top", changes=["privacy.epsilon=[8.0, 0.5, 0.5, 0.5, 0.5, 0.5]"]
    )
    assert faults(run) == []
    met_with_data = {row[3] for row in exchanges(made)["ada"] if row[3] is not None}
    stopped = made.results()[0]["stopped_at"]
    assert len([round for round in met_with_data if stopped is None or round < stopped]) >= 2


@pytest.mark.parametrize("what", ["request", "reply"])
def test_lost_messages_leave_no_exchange_one_sided(tmp_path, what):
    chance = random.Random(1)
    wire = Wire(delay=0.05)
    wire.lose = lambda sender, receiver, message: what if chance.random() < 0.3 else None
    made, run = run_live_pairing(tmp_path, wire=wire)
    assert faults(run) == []
    assert any(row[2] == "committed" for rows in exchanges(made).values() for row in rows)


def test_an_agent_that_is_cut_off_after_the_start_works_alone(tmp_path):
    """It waits once for all absent neighbours together: for one idle timeout. Before all neighbours are heard
    no data enter, so an agent that is cut off before the start waits (`test_first_charge.py`).
    """
    made = federation(
        tmp_path, "method.mode=async", "method.name=plain", graph=topology.complete(6), rounds=10,
        idle_timeout=20.0,
    )  # fmt: skip
    wire, ended, cut_at = Wire(delay=0.05), {}, 0.6
    cuts = {frozenset(("ada", other)) for other in ("bob", "cleo", "dan", "eve", "fay")}

    async def scene():
        loop = asyncio.get_running_loop()
        loop.call_later(cut_at, setattr, wire, "cut", cuts)
        run = await live(made, wire=wire, options=LIVE)
        ended["all"] = loop.time()
        return run

    run = on_virtual_time(scene())
    assert {outcome.code for outcome in run.outcomes.values()} == {0}
    assert faults(run) == []
    own, others = exchanges(made)["ada"], exchanges(made)["bob"]
    assert len(own) < len(others)
    assert ended["all"] < cut_at + 1.5 * 20.0  # not one timeout after the other


@pytest.mark.parametrize(
    "answer", [ReplyCode.UNDECIDED, ReplyCode.BUSY, None], ids=["undecided", "busy", "nothing"]
)
def test_a_proposal_that_is_never_committed_blocks_neither_other_exchanges_nor_the_end(tmp_path, answer):
    """bob proposes to ada and never commits; cleo is honest."""
    made = federation(
        tmp_path,
        "method.mode=async",
        "method.name=plain",
        graph=topology.complete(3),
        rounds=12,
        idle_timeout=4.0,
    )

    async def scene():
        wire = Wire(delay=0.05)

        async def bob(sender, sent):
            if sent.kind is MessageKind.HELLO:
                nothing = {"seen": -1, "seen_digest": "", "seen_signature": "", "sent": -1, "sent_digest": ""}
                body = replace(agents[sender].peers.greeting("bob"), **nothing).encode()
                return Reply(ReplyCode.OK, body=body)
            if sent.kind is MessageKind.RESOLVE and answer is None:
                await asyncio.sleep(1000)
            return Reply(answer or ReplyCode.BUSY)

        wire.handlers["bob"] = bob
        agents = {
            name: made.agent(n, wire.transport(name), live_pairing=True)
            for n, name in ((0, "ada"), (2, "cleo"))
        }
        tasks = [asyncio.create_task(agent.run()) for agent in agents.values()]
        while agents["ada"].ledger.round < 0 or agents["ada"].loop.pairing.busy:
            await asyncio.sleep(0.001)
        reply = await agents["ada"].requests.handle("bob", Message.of(MessageKind.PROPOSE, 0, b"never"))
        again = await agents["ada"].requests.handle("bob", Message.of(MessageKind.PROPOSE, 0, b"another"))
        return reply, again, await asyncio.gather(*tasks)

    reply, again, outcomes = on_virtual_time(scene())
    assert reply.ok and again.code is ReplyCode.BUSY, "one proposal at a time with each partner"
    assert all(outcome.finished for outcome in outcomes)
    committed = [row for row in exchanges(made, (0,))["ada"] if row[2] == "committed"]
    assert len(committed) >= 3 and {row[1] for row in committed} == {"cleo"}


def test_queries_for_open_exchanges_scan_no_table(tmp_path):
    ledger = Ledger(tmp_path, "f", "ada")
    pairing, queries = PairingRecords(ledger), []
    ledger.database.connection.set_trace_callback(queries.append)
    pairing.ready(), pairing.prepared(), pairing.unconfirmed(), pairing.find("x"), pairing.mixed_in()
    ledger.database.connection.set_trace_callback(None)
    plans = [ledger.database.rows(f"EXPLAIN QUERY PLAN {query}") for query in queries]
    assert len(plans) == 5 and not any("SCAN" in str(step) for plan in plans for step in plan)
    ledger.close()


def test_poisson_batches_are_refused(tmp_path):
    made = federation(tmp_path, "data.batch={poisson=10}", "method.name=plain", agents=3, rounds=2)
    with pytest.raises(InputError, match="live pairing"):
        made.agent(0, Wire().transport("ada"), live_pairing=True)


def test_a_ledger_is_for_planned_partners_or_for_live_pairing(tmp_path):
    """The charges of one are not what the other would have cost."""
    made = federation(tmp_path, "method.mode=async", agents=3, rounds=2)
    for first in (True, False):
        made.folder = tmp_path / str(first)
        made.agent(0, Wire().transport("ada"), live_pairing=first).ledger.close()
        with pytest.raises(LedgerError, match="Expected partners = "):
            made.agent(0, Wire().transport("ada"), live_pairing=not first)


def test_only_the_partner_is_told_the_outcome_and_only_until_it_confirms(tmp_path):
    ledgers = {name: Ledger(tmp_path / name, "f", name) for name in ("ada", "bob")}
    pairing = {name: PairingRecords(ledger) for name, ledger in ledgers.items()}
    for name, ledger in ledgers.items():
        ledger.release(0, ReleaseCost(0.1), {ANY_RECEIVER: name.encode()}, b"state")
    ada = pairing["ada"]
    id = ada.propose()
    assert ada.outcome(id, "bob") == (ReplyCode.UNDECIDED, None)
    assert pairing["bob"].accept(id, "ada") and ada.commit(id, "bob", 0, 0, b"bob") is ReplyCode.OK
    assert ada.outcome(id, "bob") == (ReplyCode.COMMITTED, ada.find(id))
    assert ada.outcome(id, "eve") == (ReplyCode.NO_MEETING, None)
    assert ada.outcome("another", "bob") == pairing["bob"].outcome(id, "ada") == (ReplyCode.ABORTED, None)
    ada.confirm(id)
    assert ada.outcome(id, "bob") == (ReplyCode.NO_MEETING, None)
    for ledger in ledgers.values():
        ledger.close()


GARBAGE = {
    "nothing": b"",
    "no head": b'\x00\x05[0, "',
    "a head of another kind": b"\x00\x02{}row",
    "an invalid round": Handover("0", "x", b"row").pack(),
    "no row": Handover(0, "x", b"row").pack(),
}


@pytest.mark.parametrize("case", GARBAGE)
@pytest.mark.parametrize("who", ["proposer", "acceptor"])
def test_a_partner_that_sends_an_invalid_row_is_quarantined(tmp_path, case, who, caplog):
    """Whether the partner accepts or commits; the agent's own ledger is not to blame."""
    made = federation(tmp_path, "method.mode=async", graph=topology.complete(2), rounds=3)

    class Liar(Wire):
        def transport(self, name):
            made = super().transport(name)

            async def request(peer, message):
                proposed = message.kind is MessageKind.PROPOSE
                return Reply(ReplyCode.OK if proposed else ReplyCode.BUSY, body=GARBAGE[case])

            made.request = request
            made.reaches = lambda peer: True
            return made

    async def scene():
        agent = made.agent(0, Liar().transport("ada"), live_pairing=True)
        agent.ledger.release(0, ReleaseCost(0.1), {ANY_RECEIVER: b"row"}, b"state")
        if who == "acceptor":
            await agent.loop._propose_to_neighbours()
        else:
            reply = await agent.requests.handle("bob", Message.of(MessageKind.COMMIT, 0, GARBAGE[case]))
            assert reply.code is ReplyCode.NOT_A_ROW
        found = agent.ledger.quarantined("bob"), agent.loop.pairing.pairs(), agent.peers.fault
        agent.ledger.close()
        return found

    quarantined, pairs, fault = on_virtual_time(scene())
    assert quarantined.code is ReplyCode.NOT_A_ROW and pairs == [] and fault is None
    assert sum("not_a_row" in record.message for record in caplog.records) == 1


def test_further_invalid_rows_of_a_quarantined_agent_add_no_ledger_entries(tmp_path):
    made = federation(tmp_path, "method.mode=async", graph=topology.complete(2), rounds=3)

    async def scene():
        agent = made.agent(0, Wire().transport("ada"), live_pairing=True)
        agent.ledger.release(0, ReleaseCost(0.1), {ANY_RECEIVER: b"row"}, b"state")
        lines = []
        for body in (b"", b"garbage", b"more"):
            await agent.requests.handle("bob", Message.of(MessageKind.COMMIT, 0, body))
            lines += agent.ledger.database.one("SELECT count(*) FROM notes")
        agent.ledger.close()
        return lines

    first, *later = on_virtual_time(scene())
    assert later == [first, first]


def test_a_ledger_that_cannot_be_written_does_not_quarantine_the_partner(tmp_path):
    made = federation(tmp_path, "method.mode=async", graph=topology.complete(2), rounds=3)

    async def scene():
        agent = made.agent(0, Wire().transport("ada"), live_pairing=True)
        agent.ledger.database.connection.execute("PRAGMA query_only = 1")
        row = row_payload.encode(made.context(0).start.numpy())
        id = agent.loop.pairing.propose()
        with pytest.raises(LedgerError, match="Make the folder writable"):
            agent.loop.pairing.commit(id, "bob", 0, 0, row)
        agent.loop.pairing.give_up()
        agent.peers.transport.reaches = lambda peer: True
        agent.peers.transport.request = lambda *_: answered(
            Reply(ReplyCode.OK, body=Handover(0, "", row).pack())
        )
        with pytest.raises(LedgerError, match="Make the folder writable"):
            await agent.loop._propose_to_neighbours()
        agent.ledger.database.connection.execute("PRAGMA query_only = 0")
        found = agent.ledger.quarantined("bob")
        agent.ledger.close()
        return found

    async def answered(reply):
        return reply

    assert on_virtual_time(scene()) is None


def test_the_checker_detects_an_exchange_that_only_one_side_committed():
    pairs = {"ada": [("x", "bob", "committed", 1)], "bob": [("x", "ada", "aborted", None)]}
    assert asymmetric(pairs) == ["ada committed x with bob, who did not"]


class ThreeAgents(RuleBasedStateMachine):
    """Three agents, with lost, repeated and late messages, and crashes between any two steps."""

    root = None
    fresh = itertools.count()
    names = ("ada", "bob", "cleo")

    @initialize()
    def begin(self):
        self.folder = self.root / str(next(self.fresh))
        self.ledgers = {name: Ledger(self.folder / name, "f", name) for name in self.names}
        self.pairing = {name: PairingRecords(ledger) for name, ledger in self.ledgers.items()}
        for name, ledger in self.ledgers.items():
            ledger.release(0, ReleaseCost(0.1), {ANY_RECEIVER: f"{name} 0".encode()}, b"state")
        self.yes: list[
            tuple[str, str, str, int, bytes, int]
        ] = []  # accepted proposals with replies under way

    @rule(one=st.sampled_from(names), other=st.sampled_from(names), lost=st.booleans())
    def propose(self, one, other, lost):
        if one == other or self.pairing[one].busy or other in self.pairing[one].open_with():
            return
        id, own = self.pairing[one].propose(), self.ledgers[one].round
        if lost or not self.pairing[other].accept(id, one):
            if not lost:
                self.pairing[one].give_up()
            return
        round = self.ledgers[other].round
        self.yes.append((id, one, other, round, self.pairing[other].ledger.body(ANY_RECEIVER, round), own))

    @rule(data=st.data(), keep=st.booleans())
    def decide(self, data, keep):
        if not self.yes:
            return
        id, one, other, round, body, own = data.draw(st.sampled_from(self.yes))
        if not keep:
            self.yes.remove((id, one, other, round, body, own))
        if self.pairing[one].proposing == id:
            assert self.pairing[one].commit(id, other, own, round, body) in (ReplyCode.OK, ReplyCode.AGAIN)

    @rule(one=st.sampled_from(names), acknowledged=st.booleans())
    def tell(self, one, acknowledged):
        for pair in self.pairing[one].unconfirmed():
            body = self.pairing[one].ledger.body(ANY_RECEIVER, pair.own_round)
            assert self.pairing[pair.partner].committed(pair.id, one, pair.own_round, body).accepted
            if acknowledged:
                self.pairing[one].confirm(pair.id)

    @rule(one=st.sampled_from(names))
    def resolve(self, one):
        for pair in self.pairing[one].prepared():
            self.ask(one, pair)

    def ask(self, one, pair):
        outcome, theirs = self.pairing[pair.partner].outcome(pair.id, one)
        if outcome is ReplyCode.ABORTED:
            self.pairing[one].aborted(pair.id)
        elif outcome is ReplyCode.COMMITTED:
            body = self.pairing[pair.partner].ledger.body(ANY_RECEIVER, theirs.own_round)
            assert self.pairing[one].committed(pair.id, pair.partner, theirs.own_round, body).accepted

    @rule(one=st.sampled_from(names))
    def work(self, one):
        if self.pairing[one].proposing is not None:
            return  # an agent that has proposed waits for the reply
        ledger, pair = self.ledgers[one], self.pairing[one].ready()
        self.pairing[one].forget_rows()
        applied = [(pair.partner, pair.partner_round)] if pair else []
        body = f"{one} {ledger.round + 1}".encode()
        ledger.release(
            ledger.round + 1, ReleaseCost(0.1), {ANY_RECEIVER: body}, b"s", applied, pair.id if pair else None
        )

    @rule(one=st.sampled_from(names))
    def give_up(self, one):
        self.pairing[one].give_up()

    @rule(one=st.sampled_from(names))
    def crash(self, one):
        self.ledgers[one].close()
        self.ledgers[one] = Ledger(self.folder / one, "f", one)
        self.pairing[one] = PairingRecords(self.ledgers[one])

    @invariant()
    def both_sides_agree(self):
        if not hasattr(self, "pairing"):
            return
        for name, pairing in self.pairing.items():
            for pair in pairing.pairs():
                theirs = self.pairing[pair.partner].find(pair.id)
                if pair.role == "acceptor" and pair.status == "committed":
                    assert theirs is not None and theirs.status == "committed"
                if pair.role == "proposer":
                    assert theirs is not None and theirs.status in ("prepared", "committed")
                assert pair.partner != name

    def teardown(self):
        if not hasattr(self, "pairing"):
            return
        for name in self.names:
            self.give_up(name)
        for name in self.names:
            self.tell(name, True)
            self.resolve(name)
        for pairing in self.pairing.values():
            assert pairing.prepared() == []
            for pair in pairing.pairs():
                theirs = self.pairing[pair.partner].find(pair.id)
                assert (pair.status == "committed") == (theirs is not None and theirs.status == "committed")
        for ledger in self.ledgers.values():
            ledger.close()


def test_both_partners_commit_or_neither_in_any_sequence_of_events(tmp_path_factory):
    class Here(ThreeAgents):
        root = tmp_path_factory.mktemp("pairs")

    Here.TestCase.settings = settings(
        max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    Here.TestCase().runTest()

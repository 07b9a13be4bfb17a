"""Meetings: both commit or neither, whoever dies; offline is normal."""

import itertools
import random

import pytest
import torch
from history import Wire, asymmetric, faults, federation, live, on_virtual_time
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from topdp import topology
from topdp.agents.books.inbox import Verdict
from topdp.agents.books.ledger import ANYBODY, Cost, Ledger
from topdp.agents.books.pairing import Pairing
from topdp.agents.life import failpoints
from topdp.agents.life.budget import BudgetError

pytestmark = pytest.mark.usefixtures("quick")

LIVE = {i: {"live_pairing": True, "seeded": False} for i in range(6)}


def meetings(made):
    found = {}
    for number, name in enumerate(made.setup.names):
        ledger = Ledger(made.state(number), writable=False)
        found[name] = ledger.database.rows("SELECT id, partner, status, applied FROM pairs")
        ledger.close()
    return found


def met(tmp_path, method="plain", **how):
    made = federation(
        tmp_path, "method.mode=async", f"method.name={method}", graph=topology.complete(6), rounds=10
    )
    chance = random.Random(3)
    wire = how.pop("wire", None) or Wire(delay=0.05)
    run = on_virtual_time(live(made, wire=wire, options=LIVE, restart_after=chance.random(), **how))
    return made, run


def test_agents_that_find_their_partners_train_and_agree_on_who_met_whom(tmp_path):
    made, run = met(tmp_path)
    assert {outcome.code for outcome in run.outcomes.values()} == {0}
    assert faults(run) == []
    committed = [row for rows in meetings(made).values() for row in rows if row[2] == "committed"]
    assert len(committed) >= 12 and len(committed) % 2 == 0
    assert sum(row[3] is not None for row in committed) >= 0.7 * len(committed)
    assert torch.isfinite(made.estimates()).all()


@pytest.mark.parametrize("place", [*failpoints.PAIRING, "in_ledger", "after_ledger"])
def test_killed_at_any_place_of_a_meeting_both_commit_or_neither(tmp_path, place):
    _, run = met(tmp_path, failpoints={i: f"{place}:{1 + i % 2}" for i in range(6)})
    assert len(run.wire.crashed) >= 3
    assert faults(run) == []
    assert {outcome.code for outcome in run.outcomes.values()} == {0}


def test_who_meets_more_often_than_planned_pays_more_and_stops_in_time(tmp_path):
    """Noise of partners is counted on, so each meeting costs more than working alone."""
    made, run = met(tmp_path, method="top-dp")
    assert 3 in {outcome.code for outcome in run.outcomes.values()} <= {0, 3}
    assert faults(run) == []
    for result in made.results():
        assert result["spent"]["epsilon"] <= result["budget"] * (1 + 1e-9)
        assert result["spent"]["epsilon"] == pytest.approx(result["spent"]["worst_case"], rel=1e-12)


@pytest.mark.parametrize("what", ["request", "reply"])
def test_lost_words_make_no_meeting_one_sided(tmp_path, what):
    chance = random.Random(1)
    wire = Wire(delay=0.05)
    wire.lose = lambda sender, receiver, message: what if chance.random() < 0.3 else None
    made, run = met(tmp_path, wire=wire)
    assert faults(run) == []
    assert any(row[2] == "committed" for rows in meetings(made).values() for row in rows)


def test_who_is_cut_off_works_alone(tmp_path):
    wire = Wire(delay=0.05)
    wire.cut = {frozenset(("ada", other)) for other in ("bob", "cleo", "dan", "eve", "fay")}
    made, run = met(tmp_path, wire=wire)
    assert run.outcomes[0].code == 0 and meetings(made)["ada"] == []
    assert any(meetings(made)["bob"]) and faults(run) == []
    proposals = [(name, peer) for name, peer, kind in wire.waited if kind == "propose"]
    assert len(proposals) == len(set(proposals)) > 0  # nobody is waited for twice


def test_poisson_batches_are_refused(tmp_path):
    made = federation(tmp_path, "data.batch={poisson=10}", "method.name=plain", agents=3, rounds=2)
    with pytest.raises(BudgetError, match="live pairing"):
        made.agent(0, Wire().transport("ada"), live_pairing=True)


def test_the_checker_finds_a_meeting_that_one_side_made_up():
    pairs = {"ada": [("x", "bob", "committed", 1)], "bob": [("x", "ada", "aborted", None)]}
    assert asymmetric(pairs) == ["ada committed x with bob, who did not"]


class Three(RuleBasedStateMachine):
    """Three agents, messages that are lost, doubled and late, and crashes between any two steps."""

    root = None
    fresh = itertools.count()
    names = ("ada", "bob", "cleo")

    @initialize()
    def begin(self):
        self.folder = self.root / str(next(self.fresh))
        self.books = {name: Ledger(self.folder / name, "f", name) for name in self.names}
        self.pairing = {name: Pairing(ledger) for name, ledger in self.books.items()}
        for name, ledger in self.books.items():
            ledger.release(0, Cost(0.1), {ANYBODY: f"{name} 0".encode()}, b"state")
        self.yes: list[tuple[str, str, str, int, bytes, int]] = []  # accepts under way

    @rule(one=st.sampled_from(names), other=st.sampled_from(names), lost=st.booleans())
    def propose(self, one, other, lost):
        if one == other or self.pairing[one].busy:
            return
        id, own = self.pairing[one].propose(), self.books[one].round
        if lost or not self.pairing[other].accept(id, one):
            if not lost:
                self.pairing[one].give_up()
            return
        round = self.books[other].round
        self.yes.append((id, one, other, round, self.pairing[other].own_row(round), own))

    @rule(data=st.data(), keep=st.booleans())
    def decide(self, data, keep):
        if not self.yes:
            return
        id, one, other, round, body, own = data.draw(st.sampled_from(self.yes))
        if not keep:
            self.yes.remove((id, one, other, round, body, own))
        if self.pairing[one].proposing == id:
            assert self.pairing[one].commit(id, other, own, round, body) in (Verdict.NEW, Verdict.AGAIN)

    @rule(one=st.sampled_from(names), acknowledged=st.booleans())
    def tell(self, one, acknowledged):
        for pair in self.pairing[one].untold():
            body = self.pairing[one].own_row(pair.own_round)
            assert self.pairing[pair.partner].committed(pair.id, one, pair.own_round, body).accepted
            if acknowledged:
                self.pairing[one].told(pair.id)

    @rule(one=st.sampled_from(names))
    def resolve(self, one):
        pair = self.pairing[one].prepared()
        if pair is None:
            return
        outcome = self.pairing[pair.partner].outcome(pair.id)
        if outcome == "aborted":
            self.pairing[one].aborted(pair.id)
        elif outcome == "committed":
            theirs = self.pairing[pair.partner].find(pair.id)
            body = self.pairing[pair.partner].own_row(theirs.own_round)
            assert self.pairing[one].committed(pair.id, pair.partner, theirs.own_round, body).accepted

    @rule(one=st.sampled_from(names))
    def work(self, one):
        if self.pairing[one].proposing is not None:
            return  # an agent that asks waits for the answer
        ledger, pair = self.books[one], self.pairing[one].ready()
        self.pairing[one].forget_rows()
        applied = [(pair.partner, pair.partner_round)] if pair else []
        body = f"{one} {ledger.round + 1}".encode()
        ledger.release(ledger.round + 1, Cost(0.1), {ANYBODY: body}, b"s", applied, pair.id if pair else None)

    @rule(one=st.sampled_from(names))
    def give_up(self, one):
        self.pairing[one].give_up()

    @rule(one=st.sampled_from(names))
    def crash(self, one):
        self.books[one].close()
        self.books[one] = Ledger(self.folder / one, "f", one)
        self.pairing[one] = Pairing(self.books[one])

    @invariant()
    def who_was_told_was_not_told_a_lie(self):
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
            assert pairing.prepared() is None
            for pair in pairing.pairs():
                theirs = self.pairing[pair.partner].find(pair.id)
                assert (pair.status == "committed") == (theirs is not None and theirs.status == "committed")
        for ledger in self.books.values():
            ledger.close()


def test_both_commit_or_neither_whatever_happens(tmp_path_factory):
    class Here(Three):
        root = tmp_path_factory.mktemp("pairs")

    Here.TestCase.settings = settings(
        max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    Here.TestCase().runTest()

"""Tests of the ledger: releases are atomic, ε is never under-counted, and changes are detected."""

import contextlib
import itertools
import math
import sqlite3

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topdp.agents.ledger import ledger_database, start_choices
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import LedgerError, ReleaseCost, TamperedError, digest_of
from topdp.agents.ledger.stored_rows import MAX_RESENT_ROWS
from topdp.agents.wire.transport import ReplyCode
from topdp.errors import DataError


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "state", "federation", "ada")
    yield made
    made.close()


def reopened(ledger):
    ledger.close()
    return Ledger(ledger.folder, "federation", "ada")


def three_rounds(ledger):
    for r in range(3):
        ledger.release(r, ReleaseCost(0.25, 0.5 * (r + 1), 0.1), {"bob": b"row %d" % r}, b"state %d" % r)


def test_a_release_is_charged_stored_and_survives_reopening(ledger):
    ledger.release(0, ReleaseCost(0.25, 0.5, 0.1), {"bob": b"row", "eve": b"row"}, b"state")
    again = reopened(ledger)
    assert (again.total, again.round, again.last_sent_round, again.state()) == (0.25, 0, 0, (0, b"state"))
    assert again.body("bob", 0) == b"row"
    assert again.unacknowledged("bob") == [0]
    assert verify(again) == 1
    again.close()


def test_an_interrupted_release_leaves_no_trace(ledger):
    ledger.release(0, ReleaseCost(0.25), {"bob": b"row"}, b"state")

    def die():
        raise KeyboardInterrupt

    ledger.before_commit = die
    with pytest.raises(KeyboardInterrupt):
        ledger.release(1, ReleaseCost(0.25), {"bob": b"other"}, b"state 1")
    again = reopened(ledger)
    assert (again.total, again.round, again.unacknowledged("bob"), again.state()) == (
        0.25,
        0,
        [0],
        (0, b"state"),
    )
    assert verify(again) == 1
    again.close()


@pytest.mark.parametrize("charge", [-1e-9, math.nan, math.inf, -math.inf, None])
def test_invalid_charges_are_refused(ledger, charge):
    with pytest.raises(LedgerError, match="ledger is unchanged"):
        ledger.release(0, ReleaseCost(charge), {"bob": b"row"}, b"state")
    assert ledger.total == 0 and ledger.unacknowledged("bob") == []


def test_a_round_is_charged_once_and_in_increasing_order(ledger):
    three_rounds(ledger)
    for r in (0, 2):
        with pytest.raises(LedgerError, match="Expected a round after 2"):
            ledger.release(r, ReleaseCost(0.1), {}, b"state")


def test_skips_send_and_charge_nothing_and_releases_without_data_have_no_information(ledger):
    for cost, bodies in ((ReleaseCost(0.1), {}), (ReleaseCost(), {"bob": b"row"})):
        with pytest.raises(LedgerError, match="a skip that sends or charges"):
            ledger.release(0, cost, bodies, b"state", kind="skip")
    for kind in ("skip", "noise"):
        for information in (0.1, None):
            with pytest.raises(LedgerError, match=f"a {kind} that has information about data"):
                ledger.release(0, ReleaseCost(0.0, 0.5, information), {}, b"state", kind=kind)
    ledger.release(0, ReleaseCost(0.0, 0.5, 0.0), {"bob": b"row"}, b"state", kind="noise")
    ledger.release(1, ReleaseCost(0.3, 0.5, 0.0), {}, b"state", kind="noise")  # charges for earlier releases
    assert verify(ledger) == 2 and ledger.unacknowledged("bob") == [0] and ledger.total == 0.3


def test_a_late_charge_is_an_entry_between_two_rounds_and_sends_nothing(ledger):
    three_rounds(ledger)
    ledger.charge_late(ReleaseCost(0.5, 2.0, 0.0))
    assert (ledger.total, ledger.round, ledger.last_entry.kind, ledger.last_entry.digests) == (
        1.25,
        2,
        "late",
        {},
    )
    ledger.release(3, ReleaseCost(0.25), {"bob": b"row 3"}, b"state 3")
    again = reopened(ledger)
    assert verify(again) == 5 and again.total == 1.5
    for cost in (ReleaseCost(-0.1), ReleaseCost(math.nan), ReleaseCost(math.inf)):
        with pytest.raises(LedgerError, match="ledger is unchanged"):
            again.charge_late(cost)
    with pytest.raises(LedgerError, match="no data entered"):
        again.charge_late(ReleaseCost(0.1, 1.0, 0.3))
    again.close()


def test_the_order_of_records_is_fixed_from_the_first_release_on(ledger):
    for order in ("one", "another"):  # nothing has been released: it may still change
        start_choices.expect_record_order(ledger, order)
    ledger.release(0, ReleaseCost(0.1), {"bob": b"row"}, b"state")
    ledger = reopened(ledger)
    start_choices.expect_record_order(ledger, "another")
    with pytest.raises(DataError, match="in the order of the first start"):
        start_choices.expect_record_order(ledger, "one")
    ledger.close()
    with sqlite3.connect(ledger.folder / LEDGER_FILE) as db:
        db.execute("DELETE FROM meta WHERE key = 'order'")
    db.close()
    with pytest.raises(TamperedError, match="journal: order"):
        Ledger(ledger.folder, "federation", "ada")
    with sqlite3.connect(ledger.folder / LEDGER_FILE) as db:
        db.execute("DELETE FROM notes WHERE key = 'order'")
    db.close()
    ledger = Ledger(ledger.folder, "federation", "ada")
    with pytest.raises(TamperedError, match="used cyclic batches, got none"):
        start_choices.expect_record_order(ledger, "another")
    ledger.close()


def test_a_received_row_is_applied_once(ledger):
    ledger.store_row("bob", 0, digest_of(b"row"), b"row")
    ledger.release(0, ReleaseCost(), {}, b"state", kind="skip")
    ledger.release(1, ReleaseCost(0.1), {}, b"state", applied=[("bob", 0)])
    with pytest.raises(LedgerError, match="not yet used"):
        ledger.release(2, ReleaseCost(0.1), {}, b"state", applied=[("bob", 0)])
    assert ledger.round == 1 and ledger.unapplied_body("bob", 0) is None


def test_acknowledged_rows_are_dropped_once_they_cannot_be_lost_but_their_digests_stay(ledger):
    for round in range(MAX_RESENT_ROWS + 3):
        ledger.release(round, ReleaseCost(0.1), {"bob": b"row %d" % round}, b"state")
    for round in range(1, MAX_RESENT_ROWS + 2):
        ledger.acknowledge("bob", round)
    assert ledger.unacknowledged("bob") == [0, MAX_RESENT_ROWS + 2]
    ledger.release(MAX_RESENT_ROWS + 3, ReleaseCost(0.1), {}, b"state")
    assert ledger.body("bob", 2) == b"row 2" and ledger.unacknowledged("bob") == [0, MAX_RESENT_ROWS + 2]
    ledger.store_row("bob", 7, digest_of(b"his"), b"his")  # bob has used all rows from before round 7
    ledger.acknowledge("bob", MAX_RESENT_ROWS + 2)
    ledger.release(MAX_RESENT_ROWS + 4, ReleaseCost(0.1), {}, b"state")
    again = reopened(ledger)
    assert again.unacknowledged("bob") == [0, *range(7, MAX_RESENT_ROWS + 3)]
    for dropped in (1, 2, 6):
        with pytest.raises(LedgerError, match="in the outbox, got none"):
            again.body("bob", dropped)
        assert again.digest_sent("bob", dropped) == digest_of(b"row %d" % dropped)
    assert verify(again) == MAX_RESENT_ROWS + 5
    again.close()


def test_an_acknowledged_row_that_was_lost_is_queued_again_unchanged(ledger):
    for round in range(4):
        ledger.release(round, ReleaseCost(0.1), {"bob": b"row %d" % round}, b"state")
        ledger.acknowledge("bob", round)
    ledger.release(4, ReleaseCost(0.1), {}, b"state")
    assert ledger.unacknowledged("bob") == [] and ledger.requeue("bob", 3, limit=9) == 0
    assert ledger.requeue("bob", 0, limit=2) == 2 and ledger.unacknowledged("bob") == [1, 2]
    assert [ledger.body("bob", round) for round in (1, 2)] == [b"row 1", b"row 2"]
    ledger.acknowledge("bob", 1)
    assert ledger.unacknowledged("bob") == [2]
    assert ledger.requeue("eve", -1, limit=9) == 0
    assert verify(ledger) == 5


def test_an_open_ledger_cannot_be_opened_again(ledger):
    with pytest.raises(LedgerError, match="Another process uses"):
        Ledger(ledger.folder, "federation", "ada")


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    """Without locks, two agents could use the same ledger."""
    monkeypatch.setattr(ledger_database, "exclusive_lock", lambda path: contextlib.nullcontext(False))
    with pytest.raises(LedgerError, match="file system with locks"):
        Ledger(tmp_path / "state", "federation", "ada")


@pytest.mark.parametrize(("federation", "agent"), [("other", "ada"), ("federation", "bob")])
def test_a_ledger_belongs_to_one_agent_of_one_federation(ledger, federation, agent):
    ledger.close()
    with pytest.raises(LedgerError, match="state folder of its own"):
        Ledger(ledger.folder, federation, agent)


TAMPERING = {
    "a charge made smaller": "UPDATE charges SET entry = replace(entry, 'charge\": 0.25', 'charge\": 0.05')",
    "a charge taken out": "DELETE FROM charges WHERE number = 1",
    "charges swapped": "UPDATE charges SET number = CASE number WHEN 0 THEN 11 WHEN 1 THEN 10 ELSE 12 END",
    "other bytes in the outbox": "UPDATE outbox SET body = 'other' WHERE round = 1",
    "bytes nobody charged": "INSERT INTO outbox VALUES ('eve', 1, 'digest', 'row')",
    "a sent row hidden": "DELETE FROM outbox WHERE round = 1",
    "another state": "UPDATE state SET body = 'other'",
    "the last charge taken out": "DELETE FROM charges WHERE number = 2",
    "another federation": "UPDATE meta SET value = 'other' WHERE key = 'federation'",
}


@pytest.mark.parametrize("what", TAMPERING)
def test_tampering_is_found(ledger, what):
    three_rounds(ledger)
    verify(ledger)
    ledger.close()
    with sqlite3.connect(ledger.folder / LEDGER_FILE) as db:
        db.execute(TAMPERING[what])
    db.close()
    with pytest.raises(TamperedError), contextlib.closing(Ledger(ledger.folder, writable=False)) as reader:
        verify(reader)


def test_a_full_or_read_only_disk_is_reported_and_nothing_is_charged(ledger):
    three_rounds(ledger)
    db = ledger.database.connection
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerError, match="Make room on the disk"):
        ledger.release(3, ReleaseCost(0.1), {"bob": bytes(1 << 20)}, b"state")
    db.execute("PRAGMA max_page_count = 1000000")
    db.execute("PRAGMA query_only = 1")
    with pytest.raises(LedgerError, match="Make the folder writable"):
        ledger.release(3, ReleaseCost(0.1), {"bob": b"row"}, b"state")
    db.execute("PRAGMA query_only = 0")
    assert ledger.round == 2 and ledger.unacknowledged("bob") == [0, 1, 2]
    ledger.release(3, ReleaseCost(0.1), {"bob": b"row"}, b"state")
    assert verify(ledger) == 4


def test_a_folder_without_a_usable_ledger_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="Could not use the ledger"):
        Ledger(tmp_path / "file", "federation", "ada")
    with pytest.raises(LedgerError, match="there is none"):
        Ledger(tmp_path / "nothing", writable=False)
    (tmp_path / LEDGER_FILE).write_text(
        "no database at all, but long enough to be read as the head of one" * 20
    )
    with pytest.raises(TamperedError, match="Do not delete the file"):
        Ledger(tmp_path, "federation", "ada")


@pytest.mark.parametrize("writable", [True, False])
def test_without_a_federation_no_ledger_is_created(tmp_path, writable):
    with pytest.raises(LedgerError, match="there is none"):
        Ledger(tmp_path / "nothing", writable=writable)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / LEDGER_FILE).touch()  # as after a kill before the tables were written
    with pytest.raises(LedgerError, match="being created"):
        Ledger(tmp_path, writable=writable)
    Ledger(tmp_path, "federation", "ada").close()
    again = Ledger(tmp_path, writable=writable)
    assert again.meta["federation"] == "federation"
    again.close()


def test_the_inbox_replies_with_the_reason(ledger):
    inbox = Inbox(ledger, {"bob": [0, 1, 3, 9], "eve": []}, window=4)

    def judged(sender, round, body):
        verdict = inbox.judge(sender, round, digest_of(body))
        inbox.settle(verdict, sender, round, digest_of(body), body)
        return verdict

    assert judged("mallory", 0, b"a") is ReplyCode.STRANGER
    assert judged("bob", 1, b"b") is ReplyCode.GAP
    assert judged("bob", 0, b"a") is ReplyCode.OK
    assert judged("bob", 0, b"a") is ReplyCode.AGAIN
    assert judged("bob", 2, b"c") is ReplyCode.UNKNOWN_ROUND
    assert judged("bob", 1, b"b") is ReplyCode.OK
    assert judged("bob", 3, b"d") is ReplyCode.OK
    assert judged("bob", 9, b"e") is ReplyCode.LATER
    assert judged("bob", 1, b"another") is ReplyCode.EQUIVOCATION
    assert "two different rows for round 1" in ledger.quarantined("bob").words
    assert ledger.quarantined("bob").code is ReplyCode.EQUIVOCATION and ledger.quarantined("eve") is None
    assert judged("bob", 1, b"b") is ReplyCode.QUARANTINED
    assert ledger.last_received("bob") == 3


class LedgerMachine(RuleBasedStateMachine):
    """Random releases, sends, acknowledgements, receipts and crashes; `truth` records what was sent."""

    fresh = itertools.count()
    root = None

    @initialize()
    def begin(self):
        self.folder = self.root / f"state{next(self.fresh)}"
        self.ledger = Ledger(self.folder, "federation", "ada")
        self.round = -1
        self.charges = 0.0
        self.truth: dict[tuple[str, int], set[bytes]] = {}  # the sent bytes, by receiver and round
        self.arrived: dict[int, bytes] = {}
        self.counter = 0

    def body(self):
        self.counter += 1  # fresh noise: never the same bytes twice
        return b"noise %d" % self.counter

    @rule(charge=st.floats(0, 1), dies=st.booleans())
    def release(self, charge, dies):
        def die():
            raise KeyboardInterrupt

        self.ledger.before_commit = die if dies else lambda: None
        bodies = {"bob": self.body(), "eve": self.body()}
        try:
            self.ledger.release(self.round + 1, ReleaseCost(charge), bodies, b"state %d" % (self.round + 1))
            self.round, self.charges = self.round + 1, self.charges + charge
        except KeyboardInterrupt:
            self.crash()

    @rule(to=st.sampled_from(["bob", "eve"]), acknowledged=st.booleans())
    def send(self, to, acknowledged):
        for round in self.ledger.unacknowledged(to)[:1]:
            self.truth.setdefault((to, round), set()).add(self.ledger.body(to, round))
            if acknowledged:
                self.ledger.acknowledge(to, round)

    @rule(to=st.sampled_from(["bob", "eve"]), seen=st.integers(-1, 5))
    def ask_again(self, to, seen):
        self.ledger.requeue(to, seen, limit=4)

    @rule(round=st.integers(0, 5), other=st.booleans())
    def receive(self, round, other):
        body = b"other" if other else b"row"
        inbox = Inbox(self.ledger, {"bob": range(6)}, window=100)
        verdict = inbox.judge("bob", round, digest_of(body))
        inbox.settle(verdict, "bob", round, digest_of(body), body)
        if verdict is ReplyCode.OK:
            assert round not in self.arrived and all(r in self.arrived for r in range(round))
            self.arrived[round] = body
        elif verdict is ReplyCode.AGAIN:
            assert self.arrived[round] == body
        elif verdict is ReplyCode.EQUIVOCATION:
            assert self.arrived[round] != body

    @precondition(lambda self: self.counter)
    @rule()
    def crash(self):
        self.ledger.close()
        self.ledger = Ledger(self.folder, "federation", "ada")

    @invariant()
    def never_under_counted(self):
        if not hasattr(self, "ledger"):
            return
        assert all(len(bodies) == 1 for bodies in self.truth.values())
        assert self.ledger.round == self.round and self.ledger.total == pytest.approx(self.charges)
        assert len(self.truth) <= 2 * (self.round + 1)
        assert verify(self.ledger) == self.round + 1
        assert self.ledger.last_received("bob") == max(self.arrived, default=-1)

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()


def test_the_ledger_never_under_counts(tmp_path_factory):
    class Here(LedgerMachine):
        root = tmp_path_factory.mktemp("books")

    Here.TestCase.settings = settings(
        max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case = Here.TestCase()
    case.runTest()

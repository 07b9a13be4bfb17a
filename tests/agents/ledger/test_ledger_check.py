"""Tests of `verify`: it detects a change in any table, and gives no false alarm while an agent writes."""

import contextlib
import random
import shutil
import sqlite3
import threading
import time

import pytest

from topdp.agents.agreement.signatures import Notice
from topdp.agents.ledger import ledger_database, start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import ReleaseCost, TamperedError, digest_of
from topdp.agents.ledger.notice_store import NoticeStore
from topdp.agents.ledger.pairing_records import PairingRecords
from topdp.agents.ledger.stored_rows import OUTBOX_ROUNDS
from topdp.agents.wire.transport import ReplyCode
from topdp.errors import TopdpError


def one_round(ledger, round):
    """One round of an agent in a ring of two: it stores a row, uses the previous one and releases its own."""
    row = b"row %d of bob" % round
    ledger.store_row("bob", round, digest_of(row), row)
    used = [("bob", round - 1)] if round else []
    ledger.release(
        round,
        ReleaseCost(0.25, 0.5 * (round + 1), 0.1),
        {"bob": b"row %d" % round},
        b"state %d" % round,
        used,
    )
    ledger.acknowledge("bob", round)


@pytest.fixture
def folder(tmp_path):
    """A ledger with entries in every table."""
    ledger = Ledger(tmp_path / "state", "federation", "ada")
    start_choices.expect_record_order(ledger, "order")
    for round in range(OUTBOX_ROUNDS + 10):
        if round == 7:
            ledger.quarantine("eve", ReplyCode.NOT_A_ROW, "sent what is not a row")
            NoticeStore(ledger).add(Notice.of_parts(("ada", "run", "without eve", "4", "00")))
            ledger.note_departure("round 7: nothing from eve")
        one_round(ledger, round)
    pairing = PairingRecords(ledger)
    pairing.accept("exchange", "cleo")
    pairing.committed("exchange", "cleo", 3, b"row of cleo")
    ledger.charge_late(ReleaseCost(0.25, 9.0, 0.0))
    ledger.note_finished("bob")
    ledger.stop_data(ledger.round + 1)
    assert verify(ledger) == OUTBOX_ROUNDS + 11
    ledger.close()
    return ledger.folder


CHANGED = {
    "all charges": "DELETE FROM charges",
    "charges, outbox and state": (
        "DELETE FROM charges; DELETE FROM outbox; DELETE FROM delivered; DELETE FROM state"
    ),
    "all but what came in": (
        "DELETE FROM charges; DELETE FROM outbox; DELETE FROM delivered; DELETE FROM state; DELETE FROM notes"
    ),
    "the state": "DELETE FROM state",
    "bytes that came in": "UPDATE inbox SET body = X'00' WHERE sender = 'cleo'",
    "a digest of what came in": "UPDATE inbox SET digest = 'other' WHERE sender = 'bob' AND round = 3",
    "a row that came in": "DELETE FROM inbox WHERE sender = 'bob' AND round = 3",
    "a row that never came": "INSERT INTO inbox VALUES ('mallory', 0, 'digest', NULL, 5); "
    "UPDATE inbox SET rowid = 0 WHERE sender = 'mallory'",
    "where a row was used": "UPDATE inbox SET applied = 4711 WHERE sender = 'bob' AND round = 3",
    "a quarantine": "UPDATE peers SET quarantined = NULL, quarantined_for = NULL WHERE name = 'eve'",
    "the words of a quarantine": "UPDATE peers SET quarantined = 'was kind' WHERE name = 'eve'",
    "all neighbours": "DELETE FROM peers",
    "a neighbour's end": "UPDATE peers SET finished = NULL",
    "a departure": "DELETE FROM meta WHERE key = 'departed'",
    "a departure, in the journal too": "DELETE FROM meta WHERE key = 'departed'; "
    "DELETE FROM notes WHERE key = 'departed'",
    "where data ended": "UPDATE meta SET value = '40' WHERE key = 'stopped'",
    "where data ended, in the journal too": "UPDATE meta SET value = '40' WHERE key = 'stopped'; "
    "UPDATE notes SET value = '40' WHERE key = 'stopped'",
    "the guarantee": "UPDATE meta SET value = 'claimed' WHERE key = 'guarantee'",
    "the guarantee, in the journal too": "UPDATE meta SET value = 'claimed' WHERE key = 'guarantee'; "
    "UPDATE notes SET value = 'claimed' WHERE key = 'guarantee'",
    "a fact that nobody wrote": "INSERT INTO meta VALUES ('budget', '99')",
    "the order of the records": "UPDATE meta SET value = 'other' WHERE key = 'order'",
    "a line of the journal": "DELETE FROM notes WHERE key = 'order'",
    "a statement": "UPDATE statements SET text = '40'",
    "all statements": "DELETE FROM statements",
    "what was delivered": "UPDATE delivered SET round = round + 20; DELETE FROM outbox WHERE round < 40",
    "that something was delivered": "DELETE FROM delivered",
    "an exchange": "UPDATE pairs SET status = 'dreamt'",
    "the partner of an exchange": "UPDATE pairs SET partner = 'mallory'",
    "a round of an exchange": "UPDATE pairs SET own_round = 4711",
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_in_any_table_is_detected(folder, what):
    db = sqlite3.connect(folder / LEDGER_FILE)
    db.executescript(CHANGED[what])
    db.close()
    with pytest.raises(TamperedError), contextlib.closing(Ledger(folder, writable=False)) as reader:
        verify(reader)


def test_missing_charges_of_a_short_ledger_are_detected(tmp_path):
    """No delivery is recorded yet, and the bytes of the first rows are gone."""
    ledger = Ledger(tmp_path, "federation", "ada")
    for round in range(4):
        one_round(ledger, round)
    ledger.close()
    db = sqlite3.connect(tmp_path / LEDGER_FILE)
    db.executescript("DELETE FROM charges; UPDATE outbox SET body = NULL")
    db.close()
    with pytest.raises(TamperedError), contextlib.closing(Ledger(tmp_path, writable=False)) as reader:
        verify(reader)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE outbox SET body = NULL",
        "INSERT INTO notes (charges, place, key, value) VALUES (1, 'meta', 'budget', '1.0'); "
        "UPDATE meta SET value = '1.0' WHERE key = 'budget'",
    ],
)
def test_missing_bytes_in_the_outbox_and_a_raised_budget_are_detected(tmp_path, change):
    ledger = Ledger(tmp_path / "state", "federation", "ada")
    for asked in (0.8, 0.7):
        start_choices.record_choices(ledger, seeded=False, rehearsal=False, requested=asked, granted=1.0)
    one_round(ledger, 0)
    assert verify(ledger) == 1
    ledger.close()
    db = sqlite3.connect(ledger.folder / LEDGER_FILE)
    db.executescript(change)
    db.close()
    reader = Ledger(ledger.folder, writable=False)
    with pytest.raises(TamperedError, match=r"differs from the charged row|at most 0\.7"):
        verify(reader)
    reader.close()


def test_every_charge_contains_digests_of_the_logs(folder):
    """If entries could lack these digests, nobody could check the chain."""
    reader = Ledger(folder, writable=False)
    assert all(
        entry.books and set(entry.counts) == {"notes", "inbox", "statements"} for entry in reader.entries()
    )
    reader.close()


def test_verify_gives_no_false_alarm_while_an_agent_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_database, "SYNCHRONOUS_MODE", "OFF")
    calls, most, faults = 0, 150, []

    def write():
        try:
            ledger = Ledger(tmp_path, "federation", "ada")
            for round in range(2 * most):
                one_round(ledger, round)
                if round % 5 == 0:
                    ledger.quarantine("eve", ReplyCode.NOT_A_ROW, f"in round {round}")
                    ledger.charge_late(ReleaseCost(0.0, 1.0, 0.0))
                while round > 20 + 2 * calls:  # so that it is still writing at the last call
                    time.sleep(0.0005)
            ledger.close()
        except Exception as error:  # reported below
            faults.append(error)

    Ledger(tmp_path, "federation", "ada").close()
    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while calls < most:
        calls += 1
        reader = Ledger(tmp_path, writable=False)
        try:
            seen.add(verify(reader))
            assert (reader.state() or (-1,))[0] == reader.round
        except TamperedError as error:
            faults.append(error)
        reader.close()
    calls = 10**9
    writer.join()
    assert not faults, f"{len(faults)} of {most}: {faults[0]}"
    assert len(seen) > most / 4, "the agent must have written meanwhile"


def test_old_rows_leave_the_outbox_up_to_the_first_unacknowledged_one(tmp_path):
    ledger = Ledger(tmp_path, "federation", "ada")
    for round in range(3 * OUTBOX_ROUNDS):
        ledger.release(round, ReleaseCost(0.25), {"bob": b"b %d" % round, "eve": b"e %d" % round}, b"state")
        ledger.acknowledge("bob", round)
        if round != 5:
            ledger.acknowledge("eve", round)
    assert verify(ledger) == 3 * OUTBOX_ROUNDS
    rows = dict(ledger.database.rows("SELECT receiver, count(*) FROM outbox GROUP BY receiver"))
    assert rows == {"bob": OUTBOX_ROUNDS, "eve": 3 * OUTBOX_ROUNDS - 5}
    assert ledger.unacknowledged("eve") == [5] and ledger.body("eve", 5) == b"e 5"
    for round in (0, 5, 70, 3 * OUTBOX_ROUNDS - 1):  # the charges keep the digests of all rows
        assert ledger.digest_sent("bob", round) == digest_of(b"b %d" % round)
    assert ledger.digest_sent("mallory", 3) is None and ledger.digest_sent("bob", 3 * OUTBOX_ROUNDS) is None
    ledger.acknowledge("eve", 5)
    ledger.release(3 * OUTBOX_ROUNDS, ReleaseCost(0.25), {}, b"state")
    assert ledger.database.one("SELECT count(*) FROM outbox WHERE receiver = 'eve'") == (OUTBOX_ROUNDS - 1,)
    assert verify(ledger) == 3 * OUTBOX_ROUNDS + 1 and ledger.last_sent_round == 3 * OUTBOX_ROUNDS - 1
    ledger.close()


def test_a_row_for_a_finished_round_stays_unused(tmp_path):
    """Under the rule `go-on`, a row may arrive while the release that reads it is made without it."""
    ledger = Ledger(tmp_path, "federation", "ada")
    ledger.release(0, ReleaseCost(0.1), {}, b"state")
    for round in (0, 1):
        ledger.store_row("bob", round, digest_of(b"row"), b"row")
    ledger.release(1, ReleaseCost(0.1), {}, b"state")
    assert ledger.unapplied_body("bob", 0) is None and ledger.unapplied_body("bob", 1) == b"row"
    assert ledger.digest_received("bob", 0) == digest_of(b"row") and verify(ledger) == 2
    ledger.close()


def flipped(whole, places, chance):
    """Copies of a file with one byte changed; some changes make invalid text."""
    for place in places:
        for byte in {whole[place] ^ 0x80, whole[place] ^ 1 << chance.randrange(8)}:
            yield place, whole[:place] + bytes([byte]) + whole[place + 1 :]


def test_after_a_flipped_byte_the_ledger_raises_or_counts_correctly(folder, tmp_path):
    """Includes table names, where reading fails, and the last charge, from which the total continues."""
    with contextlib.closing(sqlite3.connect(folder / LEDGER_FILE)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with contextlib.closing(Ledger(folder, writable=False)) as ledger:
        spent, charges = ledger.total, list(ledger.entries())
        last = charges[-1].text().encode()
    whole, chance, damaged = (folder / LEDGER_FILE).read_bytes(), random.Random(0), 0
    found = whole.index(last)
    places = [*chance.sample(range(len(whole)), 100), *range(found, found + len(last), 9)]
    places += [place for place in range(100, 4096, 40) if whole[place]]
    for place, content in flipped(whole, places, chance):
        one = tmp_path / "one"
        shutil.rmtree(one, ignore_errors=True)
        one.mkdir()
        (one / LEDGER_FILE).write_bytes(content)
        try:
            with contextlib.closing(Ledger(one, "federation", "ada")) as ledger:
                ledger.release(ledger.round + 1, ReleaseCost(0.25, 50.0, 0.1), {"bob": b"new"}, b"new")
                assert ledger.total == spent + 0.25 and list(ledger.entries())[:-1] == charges, place
        except TopdpError as error:
            assert "Make the folder writable" not in str(error), place
            damaged += 1
    assert damaged > len(last) // 9


def test_a_changed_total_in_the_last_charge_raises(folder):
    with contextlib.closing(sqlite3.connect(folder / LEDGER_FILE)) as db, db:
        text, number = db.execute("SELECT entry, number FROM charges ORDER BY number DESC LIMIT 1").fetchone()
        less = text.replace('"total": 1', '"total": 0')
        assert less != text
        db.execute("UPDATE charges SET entry = ? WHERE number = ?", (less, number))
    with pytest.raises(TamperedError, match="does not follow"):
        Ledger(folder, writable=False)


@pytest.mark.parametrize("fact", ["departed", "stopped"])
def test_a_flipped_byte_in_a_fact_raises(folder, fact):
    """Without the departure only the guarantee's ε would be charged; without the stop data would enter."""
    with contextlib.closing(sqlite3.connect(folder / LEDGER_FILE)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        spelt = b"".join(
            str(part).encode() for part in db.execute("SELECT * FROM meta WHERE key = ?", (fact,)).fetchone()
        )
    whole = (folder / LEDGER_FILE).read_bytes()
    assert whole.count(spelt) == 2  # the fact and its line in the journal
    for place in (whole.index(spelt), whole.rindex(spelt)):
        (folder / LEDGER_FILE).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        for writable in (False, True):
            with pytest.raises(TamperedError, match="journal"):
                Ledger(folder, "federation", "ada", writable=writable)


def test_an_index_that_lacks_a_row_is_detected(tmp_path):
    """Rows to send are read from an index: a row that is only in the table would never be sent."""
    ledger = Ledger(tmp_path, "federation", "ada")
    for round in range(3):
        ledger.release(round, ReleaseCost(0.25, 0.5, 0.1), {"bob": b"row %d" % round}, b"state %d" % round)
    db = ledger.database.connection
    db.execute("PRAGMA writable_schema = ON")
    index = "SELECT sql FROM sqlite_master WHERE name = 'outbox_waiting'"
    (as_made,) = db.execute(index).fetchone()
    change = "UPDATE sqlite_master SET sql = ? WHERE name = 'outbox_waiting'"
    db.execute("DROP INDEX outbox_waiting")
    db.execute(as_made.replace("body IS NOT NULL", "body IS NOT NULL AND round <> 1"))
    db.execute(change, (as_made,))
    ledger.close()
    ledger = Ledger(tmp_path, "federation", "ada")
    assert ledger.unacknowledged("bob") == [0, 2]
    with pytest.raises(TamperedError, match="damaged"):
        verify(ledger)
    ledger.close()

"""Tests of ledger formats: older ledgers are migrated and continue; unknown formats stay unchanged."""

import sqlite3
from pathlib import Path

import pytest

from topdp.agents.ledger import event_journal, start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_database import LEDGER_FILE, LEDGER_FORMAT
from topdp.agents.ledger.ledger_entries import LedgerError, ReleaseCost, TamperedError, digest_of
from topdp.agents.node import agent_process
from topdp.agents.wire.transport import ReplyCode
from topdp.errors import TrustError

FORMAT_4 = Path(__file__).with_name("format_4.sql")  # as written by the last topdp of that format
MINE = {"federation": "federation", "agent": "ada", "guarantee": "adaptive"}


@pytest.fixture
def old(tmp_path):
    """A ledger of ada during a run: eve is quarantined, bob owes acknowledgements, rounds are missing."""
    db = sqlite3.connect(tmp_path / LEDGER_FILE)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(FORMAT_4.read_text())
    db.close()
    return tmp_path


def dump(path):
    db = sqlite3.connect(path)
    try:
        return list(db.iterdump())
    finally:
        db.close()


def test_an_old_ledger_is_migrated_with_its_charges_and_verifies(old):
    before = dump(old / LEDGER_FILE)
    ledger = Ledger(old, **MINE)
    assert (ledger.total, ledger.round, ledger.last_sent_round, ledger.last_entry.number) == (1.625, 9, 6, 8)
    assert ledger.meta["format"] == str(LEDGER_FORMAT) and ledger.meta["migrated_from"] == "4"
    assert ledger.unacknowledged("bob") == [4, 5, 6] and ledger.body("bob", 5) == b"row 5"
    assert (ledger.last_received("bob"), ledger.stopped_at, ledger.departed_members()) == (5, 6, {"eve": 4})
    assert ledger.quarantined("eve").code is ReplyCode.EQUIVOCATION and ledger.finished("eve")
    assert verify(ledger) == 9
    for round in range(10, 90):  # this compacts the ledger
        ledger.release(round, ReleaseCost(0.0, 3.0, 0.0), {"bob": b"new %d" % round}, b"state", kind="noise")
        for each in ledger.unacknowledged("bob"):
            ledger.acknowledge("bob", each)
    assert verify(ledger) == 89 and ledger.total == 1.625
    assert ledger.digest_sent("bob", 2) == digest_of(b"row 2") and ledger.digest_sent("bob", 9) is None
    assert [bool(entry.books) for entry in ledger.entries()] == [False] * 9 + [True] * 80
    ledger.close()
    again = Ledger(old, **MINE)
    assert verify(again) == 89
    again.close()
    assert dump(old / f"{LEDGER_FILE}.format-4") == before


def test_reading_an_old_ledger_does_not_change_it(old):
    before = (old / LEDGER_FILE).read_bytes()
    reader = Ledger(old, writable=False)
    assert verify(reader) == 9 and reader.total == 1.625 and reader.recorded_peers() == ["bob", "eve"]
    reader.close()
    assert (old / LEDGER_FILE).read_bytes() == before and not list(old.glob("*.format-4"))


def test_a_crash_during_migration_leaves_the_old_ledger(old, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(event_journal, "backfill", die)
        with pytest.raises(KeyboardInterrupt):
            Ledger(old, **MINE)
    db = sqlite3.connect(old / LEDGER_FILE)
    assert db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == ("4",)
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'notes'").fetchone() == (0,)
    db.close()
    ledger = Ledger(old, **MINE)
    assert verify(ledger) == 9
    ledger.close()


@pytest.mark.parametrize("writable", [True, False])
def test_a_ledger_that_was_tampered_with_is_not_migrated(old, writable):
    db = sqlite3.connect(old / LEDGER_FILE)
    db.execute("UPDATE charges SET entry = replace(entry, '\"charge\": 0.25', '\"charge\": 0.05')")
    db.commit()
    db.close()
    with pytest.raises(TamperedError):
        verify(Ledger(old, **MINE, writable=writable))
    db = sqlite3.connect(old / LEDGER_FILE)
    assert db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == ("4",)
    db.close()


@pytest.mark.parametrize("format", [str(LEDGER_FORMAT + 1), "3", "none"])
@pytest.mark.parametrize("writable", [True, False])
def test_a_ledger_of_an_unknown_format_is_refused_and_unchanged(old, format, writable):
    db = sqlite3.connect(old / LEDGER_FILE)
    db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (format,))
    db.commit()
    db.close()
    before = (old / LEDGER_FILE).read_bytes()
    with pytest.raises(LedgerError, match="another version of topdp"):
        Ledger(old, **MINE, writable=writable)
    assert (old / LEDGER_FILE).read_bytes() == before


def test_changes_of_a_migrated_ledger_are_detected(old):
    ledger = Ledger(old, **MINE)
    ledger.release(10, ReleaseCost(0.0, 3.0, 0.0), {}, b"state", kind="noise")
    ledger.close()
    db = sqlite3.connect(old / LEDGER_FILE)
    db.execute("UPDATE inbox SET digest = 'other' WHERE sender = 'bob' AND round = 0")
    db.commit()
    db.close()
    with pytest.raises(TamperedError, match="received rows"):
        verify(Ledger(old, writable=False))


def test_a_ledger_with_unsigned_rows_continues_only_after_an_explicit_upgrade(old):
    """An old copy of such a ledger cannot be detected: neighbours have no signatures to show."""
    with pytest.raises(TrustError, match="--upgrade"):
        agent_process._read_ledger_meta(old, upgrade=False)
    assert agent_process._read_ledger_meta(old, upgrade=True)["agent"] == "ada"
    ledger = Ledger(old, **MINE)
    ledger.release(
        10, ReleaseCost(0.0, 3.0, 0.0), {}, b"state", kind="noise"
    )  # by another command, or before a kill
    ledger.close()
    with pytest.raises(TrustError, match="did not sign rows"):
        agent_process._read_ledger_meta(old, upgrade=False)
    ledger = Ledger(old, **MINE)
    start_choices.record_upgrade(ledger)
    assert verify(ledger) == 10
    ledger.close()
    assert agent_process._read_ledger_meta(old, upgrade=False)["agent"] == "ada"


def test_no_upgrade_is_required_if_no_row_was_sent_or_all_were_signed(old, tmp_path):
    new = Ledger(tmp_path / "new", **MINE)
    new.release(0, ReleaseCost(1.0, 1.0, 1.0), {"bob": b"row"}, b"state")
    start_choices.record_upgrade(new)
    assert start_choices.UPGRADE_KEY not in new.meta
    new.close()
    db = sqlite3.connect(old / LEDGER_FILE)
    for table in ("charges", "outbox", "inbox", "state", "pairs"):
        db.execute(f"DELETE FROM {table}")
    db.commit()
    db.close()
    for folder in (old, tmp_path / "new"):
        assert agent_process._read_ledger_meta(folder, upgrade=False)["agent"] == "ada"

"""Ledgers of other formats are refused and left alone."""

import sqlite3

import pytest

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_database import LEDGER_FILE, LEDGER_FORMAT
from topdp.agents.ledger.ledger_entries import (
    LedgerError,
    ReleaseCost,
    TamperedError,
    chain_hash,
    genesis_hash,
)
from topdp.agents.node import agent_process

MINE = {"federation": "federation", "agent": "ada", "guarantee": "adaptive"}


@pytest.fixture
def folder(tmp_path):
    """The state folder of ada, in the middle of a run."""
    ledger = Ledger(tmp_path, **MINE)
    ledger.release(0, ReleaseCost(1.0, 1.0, 1.0), {"bob": b"row"}, b"state")
    ledger.close()
    return tmp_path


def changed(folder, *statements):
    """Execute SQL in the ledger's file, and return the bytes of the file after it."""
    db = sqlite3.connect(folder / LEDGER_FILE)
    for statement in statements:
        db.execute(*statement)
    db.commit()
    db.close()
    return (folder / LEDGER_FILE).read_bytes()


@pytest.mark.parametrize("format", [str(LEDGER_FORMAT + 1), "4", "none"])
@pytest.mark.parametrize("writable", [True, False])
def test_another_format_is_named_and_left_alone(folder, format, writable):
    before = changed(folder, ("UPDATE meta SET value = ? WHERE key = 'format'", (format,)))
    with pytest.raises(LedgerError, match=f"Expected a ledger of format 5 in .*, got {format}: another"):
        Ledger(folder, **MINE, writable=writable)
    assert (folder / LEDGER_FILE).read_bytes() == before
    assert agent_process._read_ledger_meta(folder) == {}


def test_who_only_reads_changes_nothing(folder):
    before = changed(folder)
    reader = Ledger(folder, writable=False)
    assert verify(reader) == 1 and reader.total == 1.0
    reader.close()
    assert (folder / LEDGER_FILE).read_bytes() == before


def test_a_ledger_that_was_converted_with_charges_of_format_4_is_refused(folder):
    """Nobody signed the rows of these charges, so an old copy could not be found out."""
    ledger = Ledger(folder, writable=False)
    text = next(ledger.entries()).text().replace(next(ledger.entries()).books, "")
    head = chain_hash(genesis_hash(ledger.meta), text)
    ledger.close()
    changed(folder, ("UPDATE charges SET entry = ?, hash = ?", (text, head)))
    ledger = Ledger(folder, **MINE)
    with pytest.raises(TamperedError, match="like entries of format 4"):
        verify(ledger)
    ledger.close()

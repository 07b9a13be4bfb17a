"""The tables of a ledger, version by version, and the way from each version to the next.

What is in the tables is said in `ledger`, `journal`, `news` and `pairing`. A version that has been used is
never changed here: what is new is a step.

**Guarantees.** A step is taken whole or not at all, inside the caller's transaction; it changes no charge.
"""

from __future__ import annotations

import sqlite3

from topdp.agents.ledger import event_journal

LEDGER_FORMAT = 5
OLDEST_LEDGER_FORMAT = 4  # the oldest that can be brought to FORMAT

TABLES_FORMAT_4 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE charges (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE outbox (
    receiver TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB,
    PRIMARY KEY (receiver, round));
CREATE TABLE inbox (
    sender TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB, applied INTEGER,
    PRIMARY KEY (sender, round));
CREATE TABLE peers (
    name TEXT PRIMARY KEY, quarantined TEXT, quarantined_for TEXT, finished INTEGER, told INTEGER)
WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), round INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE pairs (
    id TEXT PRIMARY KEY, partner TEXT NOT NULL, role TEXT NOT NULL, status TEXT NOT NULL,
    own_round INTEGER NOT NULL, partner_round INTEGER, told INTEGER NOT NULL DEFAULT 0, applied INTEGER);
CREATE TABLE statements (
    number INTEGER PRIMARY KEY, author TEXT NOT NULL, run TEXT NOT NULL, about TEXT NOT NULL,
    text TEXT NOT NULL, signature TEXT NOT NULL, UNIQUE (author, run, about));
"""

# Indexes hold only what a round asks for, so that asking takes as long in round 8,000 as in round 1.
MIGRATION_4_TO_5 = """
CREATE TABLE notes (
    number INTEGER PRIMARY KEY, charges INTEGER NOT NULL, place TEXT NOT NULL, key TEXT NOT NULL, value);
CREATE TABLE delivered (receiver TEXT PRIMARY KEY, round INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX outbox_waiting ON outbox (receiver, round) WHERE body IS NOT NULL;
CREATE INDEX inbox_bodies ON inbox (round) WHERE body IS NOT NULL;
CREATE INDEX pairs_prepared ON pairs (id) WHERE status = 'prepared';
CREATE INDEX pairs_ready ON pairs (id) WHERE status = 'committed' AND applied IS NULL;
CREATE INDEX pairs_untold ON pairs (id) WHERE status = 'committed' AND told = 0;
"""


def create_tables(db: sqlite3.Connection, facts: dict[str, str]) -> None:
    """The tables of FORMAT, with `facts` as what is known from the start."""
    _execute_all(db, TABLES_FORMAT_4)
    _execute_all(db, MIGRATION_4_TO_5)
    for key, value in {"format": str(LEDGER_FORMAT), **facts}.items():
        event_journal.set_fact(db, key, value)


def migrate_tables(db: sqlite3.Connection, format: int) -> None:
    """From `format`, OLDEST or later, to FORMAT."""
    assert OLDEST_LEDGER_FORMAT <= format < LEDGER_FORMAT
    _execute_all(db, MIGRATION_4_TO_5)
    event_journal.backfill(db)
    event_journal.set_fact(db, "migrated_from", str(format))
    event_journal.set_fact(db, "format", str(LEDGER_FORMAT))


def _execute_all(db: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";\n"):
        db.execute(statement)

"""Facts in a ledger besides charges, in the order of recording, and the digest that binds them.

The tables `meta` (facts of the run) and `peers` (facts about neighbours) hold the current value of each fact.
The table `notes` (the journal) holds every value that was ever recorded, one line each. The three logs
(`notes`, received rows, and `statements` with the notices) only grow, so each charge carries one digest of
all of them at that time. Charges are in `ledger_entries`.

**Guarantees.** Everything recorded here is part of the caller's transaction. If a line of a log is changed,
removed or inserted before the last charge, the digest differs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from topdp.agents.ledger.ledger_entries import chain_hash, digest_of

UNLOGGED_PREFIXES = ("row of ",)
"""Prefixes of keys of `meta` that change with every row. Not in the journal: senders sign their content."""

PEER_COLUMNS = ("quarantined", "quarantined_for", "finished", "told")

Facts = dict[tuple[str, str], object]  # (place, key) -> value; the place is "meta", or "peers " and a column

# For each log: the number of a line and the columns that the digest covers, for lines after number `?`.
LOG_QUERIES = {
    "notes": "SELECT number, charges, place, key, value FROM notes WHERE number > ? ORDER BY number",
    "inbox": "SELECT rowid, sender, round, digest FROM inbox WHERE rowid > ? ORDER BY rowid",
    "statements": (
        "SELECT number, author, run, about, text, signature FROM statements WHERE number > ? ORDER BY number"
    ),
}


@dataclass(frozen=True)
class LogHead:
    """The position up to which a log was read: number of lines, last line, and a chained hash of them all."""

    count: int = 0
    last: int = -(2**63)  # number of the last line
    head: str = ""

    def lines(self, db: sqlite3.Connection, name: str) -> Iterator[LogHead]:
        """Yield the head after each further line of the log `name`."""
        log = self
        for number, *line in db.execute(LOG_QUERIES[name], (self.last,)):
            log = LogHead(log.count + 1, number, chain_hash(log.head, json.dumps(line, default=repr)))
            yield log


LogHeads = Mapping[str, LogHead]
EMPTY_LOGS: LogHeads = {name: LogHead() for name in LOG_QUERIES}


def logs_digest(db: sqlite3.Connection, heads: Mapping[str, str]) -> str:
    """Return the digest that a charge carries: of the logs, and of the last delivered row of each receiver.

    `heads` maps each log to the hash of its lines (`LogHead.head`).
    """
    delivered = db.execute("SELECT receiver, round FROM delivered ORDER BY receiver").fetchall()
    return digest_of(json.dumps([*(heads[name] for name in LOG_QUERIES), delivered]).encode())


def set_fact(db: sqlite3.Connection, key: str, value: str) -> None:
    """Record a fact of the run. It replaces the earlier value of the same key."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    _append(db, "meta", key, value)


def set_peer_fact(db: sqlite3.Connection, peer: str, column: str, value: object) -> None:
    """Record a fact about a neighbour. It replaces the earlier value of the same column."""
    assert column in PEER_COLUMNS
    db.execute("INSERT OR IGNORE INTO peers (name) VALUES (?)", (peer,))
    db.execute(f"UPDATE peers SET {column} = ? WHERE name = ?", (value, peer))
    _append(db, f"peers {column}", peer, value)


def journal_facts(db: sqlite3.Connection) -> Facts:
    """Return the newest facts in the journal."""
    rows = db.execute("SELECT place, key, value FROM notes ORDER BY number")
    return _current({(place, key): value for place, key, value in rows})


def table_facts(db: sqlite3.Connection) -> Facts:
    """Return the facts in the tables `meta` and `peers`.

    In a ledger that was not changed, they equal `journal_facts`.
    """
    facts: Facts = {("meta", key): value for key, value in db.execute("SELECT * FROM meta ORDER BY key")}
    for name, *values in db.execute(f"SELECT name, {', '.join(PEER_COLUMNS)} FROM peers ORDER BY name"):
        facts |= {(f"peers {column}", name): values[k] for k, column in enumerate(PEER_COLUMNS)}
    return _current(facts)


def _current(facts: Facts) -> Facts:
    """Return the facts that the journal covers, without those of neighbours that were withdrawn."""
    return {
        (place, key): value
        for (place, key), value in facts.items()
        if (value is not None if place != "meta" else not str(key).startswith(UNLOGGED_PREFIXES))
    }


def _append(db: sqlite3.Connection, place: str, key: str, value: object) -> None:
    """Append a line to the journal, with the number of charges so far, which reveals missing charges."""
    (charges,) = db.execute("SELECT coalesce(max(number) + 1, 0) FROM charges").fetchone()
    db.execute(
        "INSERT INTO notes (charges, place, key, value) VALUES (?, ?, ?, ?)", (charges, place, key, value)
    )

"""What is on the books beside charges, in the order in which it came, and the digests that bind it to them.

Facts of the run (`meta`) and what became of neighbours (`peers`) are the newest word on each matter; every
word that was ever written is a line in `notes`. Lines, rows that came in and statements only ever grow, so
that each charge can carry one digest of all of them as they stood then. Not for charges: `entries`.

**Guarantees.** What is written here is part of the caller's transaction. A line, a row or a statement that
was changed, removed or put in before the last charge gives another digest.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from topdp.agents.ledger.hash_chain import chain_hash, digest_of

UNLOGGED_PREFIXES = ("row of ",)
"""So begin keys of `meta` that change with every row, and have no lines: others signed what they hold."""

PEER_COLUMNS = ("quarantined", "quarantined_for", "finished", "told")

# The number of each line, and what of it is bound; what came after line `?`.
LOG_QUERIES = {
    "notes": "SELECT number, charges, place, key, value FROM notes WHERE number > ? ORDER BY number",
    "inbox": "SELECT rowid, sender, round, digest FROM inbox WHERE rowid > ? ORDER BY rowid",
    "statements": (
        "SELECT number, author, run, about, text, signature FROM statements WHERE number > ? ORDER BY number"
    ),
}


@dataclass(frozen=True)
class LogHead:
    """How far one of the tables that only grow has been read: `head` binds all of it."""

    count: int = 0
    last: int = -(2**63)  # number of the last line
    head: str = ""

    def lines(self, db: sqlite3.Connection, name: str) -> Iterator[LogHead]:
        """This one as it stands after each further line."""
        log = self
        for number, *line in db.execute(LOG_QUERIES[name], (self.last,)):
            log = LogHead(log.count + 1, number, chain_hash(log.head, json.dumps(line, default=repr)))
            yield log


LogHeads = Mapping[str, LogHead]
EMPTY_LOGS: LogHeads = {name: LogHead() for name in LOG_QUERIES}


def read_logs(db: sqlite3.Connection, logs: LogHeads) -> LogHeads:
    """All logs to their ends."""
    return {name: [log, *log.lines(db, name)][-1] for name, log in logs.items()}


def logs_digest(db: sqlite3.Connection, heads: Mapping[str, str]) -> str:
    """The digest that a charge carries: of the logs, and of what need not be kept row by row any more."""
    gone = db.execute("SELECT receiver, round FROM delivered ORDER BY receiver").fetchall()
    return digest_of(json.dumps([*(heads[name] for name in LOG_QUERIES), gone]).encode())


def set_fact(db: sqlite3.Connection, key: str, value: str) -> None:
    """A fact of the run, in the place of what was known of it before."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    _append(db, "meta", key, value)


def set_peer_fact(db: sqlite3.Connection, peer: str, column: str, value: object) -> None:
    """What became of a neighbour."""
    assert column in PEER_COLUMNS
    db.execute("INSERT OR IGNORE INTO peers (name) VALUES (?)", (peer,))
    db.execute(f"UPDATE peers SET {column} = ? WHERE name = ?", (value, peer))
    _append(db, f"peers {column}", peer, value)


def backfill(db: sqlite3.Connection) -> None:
    """Lines for facts that are known already: those of a ledger that had none."""
    for key, value in db.execute("SELECT key, value FROM meta ORDER BY key").fetchall():
        _append(db, "meta", key, value)
    for name, *values in db.execute(
        f"SELECT name, {', '.join(PEER_COLUMNS)} FROM peers ORDER BY name"
    ).fetchall():
        for column, value in zip(PEER_COLUMNS, values, strict=True):
            if value is not None:
                _append(db, f"peers {column}", name, value)


def journal_facts(db: sqlite3.Connection) -> tuple[dict[str, object], dict[tuple[str, str], object]]:
    """({key: value}, {(peer, column): value}) as the lines say: what `meta` and `peers` must hold."""
    facts: dict[str, object] = {}
    peers: dict[tuple[str, str], object] = {}
    for place, key, value in db.execute("SELECT place, key, value FROM notes ORDER BY number"):
        if place == "meta" and not str(key).startswith(UNLOGGED_PREFIXES):
            facts[key] = value
        elif place != "meta":
            peers[key, str(place).removeprefix("peers ")] = value
    return facts, {matter: value for matter, value in peers.items() if value is not None}


def table_facts(db: sqlite3.Connection) -> tuple[dict[str, object], dict[tuple[str, str], object]]:
    """The same as the tables have it."""
    rows = db.execute("SELECT key, value FROM meta").fetchall()
    facts: dict[str, object] = {
        key: value for key, value in rows if not str(key).startswith(UNLOGGED_PREFIXES)
    }
    rows = db.execute(f"SELECT name, {', '.join(PEER_COLUMNS)} FROM peers").fetchall()
    found = {
        (name, c): value for name, *values in rows for c, value in zip(PEER_COLUMNS, values, strict=True)
    }
    return facts, {matter: value for matter, value in found.items() if value is not None}


def _append(db: sqlite3.Connection, place: str, key: str, value: object) -> None:
    """`charges`: how many there were. So charges that are gone leave lines that stand after them."""
    (charges,) = db.execute("SELECT coalesce(max(number) + 1, 0) FROM charges").fetchone()
    db.execute(
        "INSERT INTO notes (charges, place, key, value) VALUES (?, ?, ?, ?)", (charges, place, key, value)
    )

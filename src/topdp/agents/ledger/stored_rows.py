"""Rows in the tables of a ledger: how long their bytes are kept, and the newest row of each neighbour.

Digests of sent and received rows are never deleted: those of sent rows are in the charges, those of received
rows in the inbox. The bytes of rows are deleted inside the transaction of a later release. Which rows are
sent or accepted is decided in `ledger` and `inbox`.

**Guarantees.** A received row is used at most once. Bytes that a neighbour may still request are not deleted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from sqlite3 import Connection

from topdp.agents.ledger.ledger_database import LedgerDatabase
from topdp.agents.ledger.ledger_entries import LedgerError

ANY_RECEIVER = "*"
"""The receiver of a row whose partner is not yet known when the row is made."""

SIGNATURE_KEY_PREFIX = "row of "  # followed by a neighbour's name: the key of its newest signature

OUTBOX_ROUNDS = 64
"""Rounds for which an acknowledged row stays in the outbox, without its bytes."""

MAX_RESENT_ROWS = 8
"""Rows for one neighbour whose bytes are kept after it has acknowledged them.

A neighbour accepts rows of at most four rounds beyond its own last round (`inbox`). It makes at most two
releases that no agent has received before it must wait for rows that depend on them.
"""


@dataclass(frozen=True)
class RowClaim:
    """A row identified by its round (-1: no row) and digest. The signature is in hex, or empty if missing."""

    round: int = -1
    digest: str = ""
    signature: str = ""


def newest_received(database: LedgerDatabase, sender: str) -> RowClaim:
    """Return the newest accepted row of `sender`."""
    query = "SELECT round, digest FROM inbox WHERE sender = ? ORDER BY round DESC LIMIT 1"
    newest = database.one(query, sender)
    if newest is None:
        return RowClaim()
    round, digest = int(str(newest[0])), str(newest[1])
    row = database.one("SELECT value FROM meta WHERE key = ?", SIGNATURE_KEY_PREFIX + sender)
    signed_round, signed_digest, signature = json.loads(str(row[0])) if row else (-1, "", "")
    return RowClaim(round, digest, str(signature) if (signed_round, signed_digest) == (round, digest) else "")


def newest_sent(database: LedgerDatabase, receiver: str) -> RowClaim:
    """Return the newest row in the ledger that `receiver` may have received."""
    query = "SELECT round, digest FROM outbox WHERE receiver = ? ORDER BY round DESC LIMIT 1"
    row = database.one(query, receiver)
    return RowClaim(int(str(row[0])), str(row[1])) if row else RowClaim()


def receiver_of(database: LedgerDatabase, peer: str) -> str:
    """Return the name under which rows for `peer` are stored: with live pairing, `ANY_RECEIVER`."""
    return ANY_RECEIVER if database.meta.get("partners") == "found" else peer


def insert_received(
    db: Connection, sender: str, round: int, digest: str, body: bytes | None, signature: bytes
) -> None:
    """Store a received row, and the signature of the newest row of `sender`. If `body` is None, store only
    the digest.
    """
    db.execute("INSERT INTO inbox VALUES (?, ?, ?, ?, NULL)", (sender, round, digest, body))
    if signature:
        text = json.dumps([round, digest, signature.hex()])
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (SIGNATURE_KEY_PREFIX + sender, text))


def mark_applied(db: Connection, round: int, applied: Iterable[tuple[str, int]], pair: str | None) -> None:
    """Record that the state of `round` used these rows and this exchange. Delete the bytes of the rows.

    `applied`: (sender, round) of each row. `pair`: id of the exchange, or None. Raise LedgerError if a row or
    the exchange was used before.
    """
    for sender, sent_round in applied:
        once = "sender = ? AND round = ? AND applied IS NULL"
        update = db.execute(
            f"UPDATE inbox SET applied = ?, body = NULL WHERE {once}", (round, sender, sent_round)
        )
        if update.rowcount != 1:
            raise LedgerError(
                f"Expected the row of {sender} in round {sent_round} to be received and not yet used, but it "
                "is not. Keep the state folder, and report this as a fault of topdp."
            )
    if pair is not None:
        once = "id = ? AND status = 'committed' AND applied IS NULL"
        if db.execute(f"UPDATE pairs SET applied = ? WHERE {once}", (round, pair)).rowcount != 1:
            raise LedgerError(
                f"Expected the exchange {pair} to be committed and not yet used, but it is not. Keep the "
                "state folder, and report this as a fault of topdp."
            )


def delete_unneeded(
    db: Connection, round: int, acknowledged: Collection[tuple[str, int]], planned: bool
) -> None:
    """Delete bytes that are not needed any more, and old outbox rows up to the first unacknowledged one.

    `round`: the round of the release. `acknowledged`: (receiver, round) of acknowledged rows whose bytes may
    be deleted. `planned`: whether partners follow the plan, so that a past round needs no more rows.
    """
    if planned:  # rows that arrived for a past round were not used
        db.execute("UPDATE inbox SET body = NULL WHERE body IS NOT NULL AND round < ?", (round,))
    db.executemany("UPDATE outbox SET body = NULL WHERE receiver = ? AND round = ?", acknowledged)
    first = "SELECT min(round) FROM outbox WHERE receiver = ? AND body IS NOT NULL"
    for receiver in sorted({receiver for receiver, _ in acknowledged}):
        (unacknowledged,) = db.execute(first, (receiver,)).fetchone()
        last = min(round - OUTBOX_ROUNDS, round if unacknowledged is None else unacknowledged - 1)
        old = "SELECT max(round) FROM outbox WHERE receiver = ? AND round <= ? AND round < "
        own = "(SELECT max(round) FROM outbox WHERE receiver = ?)"  # the newest stays: greetings refer to it
        (newest,) = db.execute(old + own, (receiver, last, receiver)).fetchone()
        if newest is not None:
            db.execute("INSERT OR REPLACE INTO delivered VALUES (?, ?)", (receiver, newest))
            db.execute("DELETE FROM outbox WHERE receiver = ? AND round <= ?", (receiver, newest))

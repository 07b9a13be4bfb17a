"""What a release lets go of: bytes that were used or acknowledged, and rows of the outbox long after.

Inside the release's transaction. What was sent and received stays on the books for ever, as digests: those
of sent rows in the charges, those of received ones in the inbox. What is sent or believed: `ledger`, `inbox`.

**Guarantees.** A row is used once. No bytes go that somebody may still ask for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from sqlite3 import Connection

from topdp.agents.ledger.ledger_database import LedgerError

OUTBOX_ROUNDS = (
    64  # rounds for which sent rows stay in the outbox, without their bytes, after they were acknowledged
)
MAX_RESENT_ROWS = 8
"""Rows for one neighbour whose bytes are kept after it has acknowledged them.

A neighbour takes rows of at most four rounds beyond its own last (`inbox`), and makes at most two releases
that nobody has seen before it must wait for rows that depend on them.
"""


def mark_applied(db: Connection, round: int, applied: Iterable[tuple[str, int]], pair: str | None) -> None:
    """What went into the state of `round` is used up: its bytes go, its digest stays."""
    for sender, taken in applied:
        once = "sender = ? AND round = ? AND applied IS NULL"
        done = db.execute(f"UPDATE inbox SET applied = ?, body = NULL WHERE {once}", (round, sender, taken))
        if done.rowcount != 1:
            raise LedgerError(f"Expected round {taken} of {sender} to be in and not applied before.")
    if pair is not None:
        once = "id = ? AND status = 'committed' AND applied IS NULL"
        if db.execute(f"UPDATE pairs SET applied = ? WHERE {once}", (round, pair)).rowcount != 1:
            raise LedgerError(f"Expected pair {pair} to be committed and not applied before.")


def delete_unneeded(
    db: Connection, round: int, acknowledged: Collection[tuple[str, int]], planned: bool
) -> None:
    """Bytes that nobody needs go; and rows of the outbox up to the first that is still waited for.

    `acknowledged`: (receiver, round). `planned`: partners are, so a round that is over needs no more rows.
    """
    if planned:  # what came for a round that is over was not used
        db.execute("UPDATE inbox SET body = NULL WHERE body IS NOT NULL AND round < ?", (round,))
    db.executemany("UPDATE outbox SET body = NULL WHERE receiver = ? AND round = ?", acknowledged)
    first = "SELECT min(round) FROM outbox WHERE receiver = ? AND body IS NOT NULL"
    for receiver in sorted({receiver for receiver, _ in acknowledged}):
        (waiting,) = db.execute(first, (receiver,)).fetchone()
        last = min(round - OUTBOX_ROUNDS, round if waiting is None else waiting - 1)
        gone = "SELECT max(round) FROM outbox WHERE receiver = ? AND round <= ? AND round < "
        own = "(SELECT max(round) FROM outbox WHERE receiver = ?)"  # the newest stays: greetings name it
        (newest,) = db.execute(gone + own, (receiver, last, receiver)).fetchone()
        if newest is not None:
            db.execute("INSERT OR REPLACE INTO delivered VALUES (?, ?)", (receiver, newest))
            db.execute("DELETE FROM outbox WHERE receiver = ? AND round <= ?", (receiver, newest))

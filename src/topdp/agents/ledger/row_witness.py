"""What the books know of single rows: the newest that each neighbour sent, with its signature; and ours.

For greetings, which compare what both sides remember. Decides nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from topdp.agents.ledger.ledger import ANYBODY, ROW_OF, Ledger


@dataclass(frozen=True)
class KnownRow:
    """A row by its round and digest; the signature in hex, or empty where there is none."""

    round: int = -1
    digest: str = ""
    signature: str = ""


def newest_from(ledger: Ledger, sender: str) -> KnownRow:
    """The newest row of `sender` that was accepted."""
    round = ledger.seen(sender)
    digest = ledger.digest_seen(sender, round)
    if digest is None:
        return KnownRow()
    row = ledger.database.one("SELECT value FROM meta WHERE key = ?", ROW_OF + sender)
    shown, of, signature = json.loads(str(row[0])) if row else (-1, "", "")
    return KnownRow(round, digest, str(signature) if (shown, of) == (round, digest) else "")


def newest_for(ledger: Ledger, receiver: str) -> KnownRow:
    """The newest row on the books that may have gone to `receiver`."""
    query = "SELECT round, digest FROM outbox WHERE receiver = ? ORDER BY round DESC LIMIT 1"
    row = ledger.database.one(query, receiver)
    return KnownRow(int(str(row[0])), str(row[1])) if row else KnownRow()


def holds(ledger: Ledger, head: str) -> bool:
    """Whether an entry with this hash is on the books."""
    return ledger.database.one("SELECT 1 FROM charges WHERE hash = ?", head) is not None


def newest_head(ledger: Ledger) -> str:
    row = ledger.database.one("SELECT hash FROM charges ORDER BY number DESC LIMIT 1")
    assert row is not None, "nothing was released"
    return str(row[0])


def receiver_of(ledger: Ledger, peer: str) -> str:
    """Under whose name rows for `peer` are on the books: where partners are found, they are for anybody."""
    return ANYBODY if ledger.meta.get("partners") == "found" else peer

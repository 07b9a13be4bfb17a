"""What the books know of single rows: the newest that each neighbour sent, with its signature; and ours.

For greetings, which compare what both sides remember. Decides nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from topdp.agents.ledger.ledger import ANY_RECEIVER, SIGNATURE_KEY_PREFIX, Ledger


@dataclass(frozen=True)
class RowClaim:
    """A row by its round and digest; the signature in hex, or empty where there is none."""

    round: int = -1
    digest: str = ""
    signature: str = ""


def newest_received(ledger: Ledger, sender: str) -> RowClaim:
    """The newest row of `sender` that was accepted."""
    round = ledger.last_received(sender)
    digest = ledger.digest_received(sender, round)
    if digest is None:
        return RowClaim()
    row = ledger.database.one("SELECT value FROM meta WHERE key = ?", SIGNATURE_KEY_PREFIX + sender)
    shown, of, signature = json.loads(str(row[0])) if row else (-1, "", "")
    return RowClaim(round, digest, str(signature) if (shown, of) == (round, digest) else "")


def newest_sent(ledger: Ledger, receiver: str) -> RowClaim:
    """The newest row on the books that may have gone to `receiver`."""
    query = "SELECT round, digest FROM outbox WHERE receiver = ? ORDER BY round DESC LIMIT 1"
    row = ledger.database.one(query, receiver)
    return RowClaim(int(str(row[0])), str(row[1])) if row else RowClaim()


def has_entry(ledger: Ledger, head: str) -> bool:
    """Whether an entry with this hash is on the books."""
    return ledger.database.one("SELECT 1 FROM charges WHERE hash = ?", head) is not None


def newest_hash(ledger: Ledger) -> str:
    row = ledger.database.one("SELECT hash FROM charges ORDER BY number DESC LIMIT 1")
    assert row is not None, "nothing was released"
    return str(row[0])


def receiver_of(ledger: Ledger, peer: str) -> str:
    """Under whose name rows for `peer` are on the books: where partners are found, they are for anybody."""
    return ANY_RECEIVER if ledger.meta.get("partners") == "found" else peer

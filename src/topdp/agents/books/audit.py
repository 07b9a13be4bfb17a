"""Whether the books of an agent are whole: `topdp agent ledger verify`. Reads everything, changes nothing.

**Guarantees.** An entry that was changed, removed, added or swapped in the chain is found, as are outgoing
bytes and a state that are not the charged ones. Not found here: a tail cut off together with its outbox, or a
chain computed anew by somebody who can write the file. Neighbours find the first (`agent`, at hello).
"""

from __future__ import annotations

import math

from topdp.agents.books.database import FILE, TamperedError
from topdp.agents.books.entries import LedgerEntry, digest_of, genesis, link
from topdp.agents.books.ledger import Ledger


def verify(ledger: Ledger) -> int:
    """The number of charges; raises TamperedError with the first fault."""
    head, total, round = genesis(ledger.meta), 0.0, -1
    last: LedgerEntry | None = None
    rows = ledger.database.rows("SELECT number, entry, hash FROM charges ORDER BY number")
    for place, (number, text, stored) in enumerate(rows):
        head = link(head, str(text))
        if head != stored:
            _fault(ledger, place, "does not follow from the one before: it or an earlier one was changed")
        last = LedgerEntry.read(text)
        total += last.charge
        faults = {
            "is out of place": not number == last.number == place,
            "has a charge that cannot be": not (math.isfinite(last.charge) and last.charge >= 0),
            "has a wrong total": last.total != total,
            "repeats a round": last.round < round + (last.kind != "late"),
        }
        for fault, found in faults.items():
            if found:
                _fault(ledger, place, fault)
        if last.contradiction:
            _fault(ledger, place, last.contradiction)
        round = last.round
    _outbox(ledger)
    state = ledger.state()
    booked = (last.round, last.state) if last else None
    if booked != ((state[0], digest_of(state[1])) if state else None):
        raise TamperedError("The state is not the one that the last charge led to.")
    return len(rows)


def _outbox(ledger: Ledger) -> None:
    charged = {
        (receiver, entry.round): digest
        for entry in ledger.entries()
        for receiver, digest in entry.digests.items()
    }
    for receiver, round, digest, body in ledger.database.rows(
        "SELECT receiver, round, digest, body FROM outbox"
    ):
        booked = charged.pop((str(receiver), int(str(round))), None)
        kept = body is None or (isinstance(body, bytes) and digest_of(body) == digest)
        if booked != digest or not kept:
            raise TamperedError(f"What goes to {receiver} in round {round} is not what was charged.")
    for receiver, round in charged:
        raise TamperedError(f"What was charged for {receiver} in round {round} is not in the outbox.")


def _fault(ledger: Ledger, place: int, fault: str) -> None:
    raise TamperedError(f"Charge {place} in {ledger.folder / FILE} {fault}.")

"""Who meets whom, agreed between the two: propose, accept, commit. The books of it, not the sending.

The proposer decides. Proposing promises nothing: what is not on its books was aborted. The acceptor, once it
has said yes, is *prepared*: it neither commits nor aborts by itself, but asks the proposer until it is told.
Meanwhile it works on and meets others, but not that partner; a pair that turns out committed is used in its
next free round. So both commit or neither, whoever dies or is cut off at whatever moment, and neither being
out of reach nor leaving somebody in doubt holds anybody up.

Each side hands over the row it has on its books, the same bytes to whoever asks (`ledger.ANYBODY`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Literal

from topdp.agents.ledger.ledger import ANY_RECEIVER, Ledger, keep_signature
from topdp.agents.ledger.ledger_database import LedgerError
from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.wire.wire_codes import ReplyCode

PairStatus = Literal["prepared", "committed", "aborted"]
PAIR_COLUMNS = "id, partner, role, status, own_round, partner_round, told, applied"
PAIR_INDEXES = ("open_pairs ON pairs (status, applied)", "untold_pairs ON pairs (status, told)")


@dataclass(frozen=True)
class PairRecord:
    """A meeting on the books."""

    id: str
    partner: str
    role: str  # proposer, acceptor
    status: PairStatus
    own_round: int  # of the row that this agent hands over
    partner_round: int | None
    told: int
    applied: int | None


class PairingRecords:
    """The meetings of one agent: at most one proposed, and with each partner at most one that is open."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        with ledger.database.transaction() as db:
            for index in PAIR_INDEXES:
                db.execute(f"CREATE INDEX IF NOT EXISTS {index}")
        self.closed = False  # no further meetings: the rounds are over
        self.proposing: str | None = None  # the id under way; forgotten in a crash, so aborted

    def pairs(self, which: str = "1", *values: object) -> list[PairRecord]:
        """All meetings, or those of a condition that an index finds; oldest first."""
        rows: list[Any] = self.ledger.database.rows(
            f"SELECT {PAIR_COLUMNS} FROM pairs WHERE {which} ORDER BY rowid", *values
        )
        return [PairRecord(*row) for row in rows]

    def find(self, id: str) -> PairRecord | None:
        return next(iter(self.pairs("id = ?", id)), None)

    def prepared(self) -> list[PairRecord]:
        """The meetings whose outcome this agent does not know."""
        return self.pairs("status = 'prepared'")

    def ready(self) -> PairRecord | None:
        """The committed meeting that the next round uses."""
        return next(iter(self.pairs("status = 'committed' AND applied IS NULL")), None)

    def untold(self) -> list[PairRecord]:
        """Committed meetings of which the acceptor has not said that it knows."""
        return self.pairs("status = 'committed' AND told = 0 AND role = 'proposer'")

    def last_partner(self) -> str | None:
        """With whom a meeting was used last."""
        used = "SELECT partner FROM pairs WHERE status = 'committed' AND applied IS NOT NULL"
        row = self.ledger.database.one(f"{used} ORDER BY applied DESC LIMIT 1")
        return str(row[0]) if row else None

    def open_with(self) -> set[str]:
        """Partners with whom a meeting is decided on one side only: none is begun with them meanwhile."""
        return {pair.partner for pair in [*self.prepared(), *self.untold()]}

    @property
    def busy(self) -> bool:
        return self.proposing is not None or self.ready() is not None

    # The proposer

    def propose(self) -> str:
        """A new name under which to ask somebody."""
        if self.busy:
            raise LedgerError("Expected no meeting under way.")
        self.proposing = secrets.token_hex(16)
        return self.proposing

    def give_up(self) -> None:
        """No answer, or a no: nothing was written, so it is aborted."""
        self.proposing = None

    def commit(
        self, id: str, partner: str, own_round: int, round: int, body: bytes, signature: bytes = b""
    ) -> ReplyCode:
        """The partner said yes and handed over its row: decided here, in one transaction."""
        if id != self.proposing:
            raise LedgerError(f"Expected the meeting under way, got {id}.")
        verdict = self._judge(partner, round, body)
        if verdict is ReplyCode.OK:
            self._write(id, partner, "proposer", own_round, round, body, signature)
        self.proposing = None
        return verdict

    def told(self, id: str) -> None:
        """The acceptor knows."""
        with self.ledger.database.transaction() as db:
            db.execute("UPDATE pairs SET told = 1 WHERE id = ?", (id,))

    def outcome(self, id: str, partner: str) -> tuple[ReplyCode, PairRecord | None]:
        """What the proposer says to an acceptor that asks; the pair where the partner is owed a row."""
        if id == self.proposing:
            return ReplyCode.UNDECIDED, None
        pair = self.find(id)
        if pair is None or pair.role != "proposer":
            return ReplyCode.ABORTED, None
        if pair.partner != partner or pair.told:
            return ReplyCode.NO_MEETING, None
        return ReplyCode.COMMITTED, pair

    # The acceptor

    def accept(self, id: str, partner: str) -> bool:
        """Whether this agent says yes; then it is on its books before the partner hears of it."""
        if self.closed or self.busy or self.ledger.round < 0 or partner in self.open_with():
            return False
        if self.ledger.quarantined(partner) is not None or self.find(id) is not None:
            return False
        if self.ledger.finished(partner):
            return False  # after a restart nobody asks it which rows it has: so it gets no new ones
        with self.ledger.database.transaction() as db:
            db.execute(
                "INSERT INTO pairs VALUES (?, ?, 'acceptor', 'prepared', ?, NULL, 0, NULL)",
                (id, partner, self.ledger.round),
            )
        return True

    def committed(self, id: str, partner: str, round: int, body: bytes, signature: bytes = b"") -> ReplyCode:
        """The proposer says that it is decided, and hands over its row. Once; again is acknowledged."""
        pair = self.find(id)
        if pair is None or pair.partner != partner or pair.role != "acceptor" or pair.status == "aborted":
            return ReplyCode.UNKNOWN_ROUND
        if pair.status == "committed":
            known = self.ledger.digest_received(partner, round)
            return ReplyCode.AGAIN if known == digest_of(body) else ReplyCode.EQUIVOCATION
        verdict = self._judge(partner, round, body)
        if verdict is ReplyCode.OK:
            self._write(id, partner, "acceptor", pair.own_round, round, body, signature)
        return verdict

    def aborted(self, id: str) -> None:
        """The proposer knows nothing of it."""
        with self.ledger.database.transaction() as db:
            db.execute("UPDATE pairs SET status = 'aborted' WHERE id = ? AND status = 'prepared'", (id,))

    # Both

    def own_row(self, round: int) -> bytes:
        return self.ledger.body(ANY_RECEIVER, round)

    def forget_rows(self) -> None:
        """Drops rows, with the next release, that nobody can ask for any more."""
        owed = {pair.own_round for pair in self.untold()}
        for round in self.ledger.unacknowledged(ANY_RECEIVER):
            if round < self.ledger.round and round not in owed:
                self.ledger.acknowledge(ANY_RECEIVER, round)

    def _judge(self, partner: str, round: int, body: bytes) -> ReplyCode:
        if self.ledger.quarantined(partner) is not None:
            return ReplyCode.QUARANTINED
        known = self.ledger.digest_received(partner, round)
        if known is not None:
            return ReplyCode.AGAIN if known == digest_of(body) else ReplyCode.EQUIVOCATION
        return ReplyCode.OK if round > self.ledger.last_received(partner) else ReplyCode.GAP

    def _write(
        self, id: str, partner: str, role: str, own: int, round: int, body: bytes, signature: bytes
    ) -> None:
        told = 1 if role == "acceptor" else 0
        with self.ledger.database.transaction() as db:
            keep_signature(db, partner, round, digest_of(body), signature)
            db.execute("INSERT INTO inbox VALUES (?, ?, ?, ?, NULL)", (partner, round, digest_of(body), body))
            db.execute(
                "INSERT OR REPLACE INTO pairs VALUES (?, ?, ?, 'committed', ?, ?, ?, NULL)",
                (id, partner, role, own, round, told),
            )

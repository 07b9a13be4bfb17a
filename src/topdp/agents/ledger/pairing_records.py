"""Records of exchanges that two agents agree on themselves: propose, accept, commit. Sends nothing.

The proposer decides. Proposing promises nothing: what is not in its ledger was aborted. An acceptor that has
agreed is *prepared*: it neither commits nor aborts by itself, but asks the proposer until it gets an answer.
Meanwhile it goes on and exchanges with others, but not with that partner. An exchange that turns out
committed is used in its next free round. So both commit or neither, whichever process dies or is cut off at
any moment, and an unreachable or undecided partner delays nobody.

Each side hands over the row in its ledger, the same bytes to every partner (`stored_rows.ANY_RECEIVER`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Literal

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import LedgerError, digest_of
from topdp.agents.ledger.stored_rows import ANY_RECEIVER, keep_signature
from topdp.agents.wire.wire_codes import ReplyCode

PairStatus = Literal["prepared", "committed", "aborted"]
PAIR_COLUMNS = "id, partner, role, status, own_round, partner_round, told, applied"
PAIR_INDEXES = ("open_pairs ON pairs (status, applied)", "untold_pairs ON pairs (status, told)")


@dataclass(frozen=True, kw_only=True)
class PairRecord:
    """An exchange in the ledger."""

    id: str
    partner: str
    role: str  # proposer, acceptor
    status: PairStatus
    own_round: int  # of the row that this agent hands over
    partner_round: int | None
    told: int
    applied: int | None


class PairingRecords:
    """The exchanges of one agent: at most one proposed, and with each partner at most one open."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        with ledger.database.transaction() as db:
            for index in PAIR_INDEXES:
                db.execute(f"CREATE INDEX IF NOT EXISTS {index}")
        self.closed = False  # no further exchanges: the rounds are over
        self.proposing: str | None = None  # the id under way; a crash forgets it, so it is aborted

    def pairs(self, which: str = "1", *values: object) -> list[PairRecord]:
        """All exchanges, or those under an SQL condition, oldest first."""
        rows: list[Any] = self.ledger.database.rows(
            f"SELECT {PAIR_COLUMNS} FROM pairs WHERE {which} ORDER BY rowid", *values
        )
        return [PairRecord(**dict(zip(PAIR_COLUMNS.split(", "), row, strict=True))) for row in rows]

    def find(self, id: str) -> PairRecord | None:
        return next(iter(self.pairs("id = ?", id)), None)

    def prepared(self) -> list[PairRecord]:
        """The exchanges whose outcome this agent does not know."""
        return self.pairs("status = 'prepared'")

    def ready(self) -> PairRecord | None:
        """The committed exchange that the next round uses, if any."""
        return next(iter(self.pairs("status = 'committed' AND applied IS NULL")), None)

    def unconfirmed(self) -> list[PairRecord]:
        """Committed exchanges that the acceptor has not confirmed."""
        return self.pairs("status = 'committed' AND told = 0 AND role = 'proposer'")

    def last_partner(self) -> str | None:
        """The partner of the exchange that was used last."""
        used = "SELECT partner FROM pairs WHERE status = 'committed' AND applied IS NOT NULL"
        row = self.ledger.database.one(f"{used} ORDER BY applied DESC LIMIT 1")
        return str(row[0]) if row else None

    def open_with(self) -> set[str]:
        """Partners of exchanges decided on one side only: no new one is begun with them."""
        return {pair.partner for pair in [*self.prepared(), *self.unconfirmed()]}

    @property
    def busy(self) -> bool:
        return self.proposing is not None or self.ready() is not None

    # The proposer

    def propose(self) -> str:
        """Begin an exchange, and return its id."""
        if self.busy:
            raise LedgerError("Expected no exchange under way.")
        self.proposing = secrets.token_hex(16)
        return self.proposing

    def give_up(self) -> None:
        """Abort after no answer or a refusal: nothing was written."""
        self.proposing = None

    def commit(
        self, id: str, partner: str, own_round: int, round: int, body: bytes, signature: bytes = b""
    ) -> ReplyCode:
        """Decide, in one transaction: the partner has agreed and handed over its row."""
        if id != self.proposing:
            raise LedgerError(f"Expected the exchange under way, got {id}.")
        verdict = self._judge(partner, round, body)
        if verdict is ReplyCode.OK:
            self._write(id, partner, "proposer", own_round, round, body, signature)
        self.proposing = None
        return verdict

    def confirm(self, id: str) -> None:
        """Record that the acceptor knows the outcome."""
        with self.ledger.database.transaction() as db:
            db.execute("UPDATE pairs SET told = 1 WHERE id = ?", (id,))

    def outcome(self, id: str, partner: str) -> tuple[ReplyCode, PairRecord | None]:
        """The proposer's reply to an acceptor that asks, with the pair if the partner is owed a row."""
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
        """Whether this agent agrees; if so, it is in its ledger before the partner hears of it."""
        if self.closed or self.busy or self.ledger.round < 0 or partner in self.open_with():
            return False
        if self.ledger.quarantined(partner) is not None or self.find(id) is not None:
            return False
        if self.ledger.finished(partner):
            return False  # after a restart it is not asked which rows it has, so it gets no new ones
        with self.ledger.database.transaction() as db:
            db.execute(
                "INSERT INTO pairs VALUES (?, ?, 'acceptor', 'prepared', ?, NULL, 0, NULL)",
                (id, partner, self.ledger.round),
            )
        return True

    def committed(self, id: str, partner: str, round: int, body: bytes, signature: bytes = b"") -> ReplyCode:
        """Record a decision of the proposer, with its row. A repetition is acknowledged."""
        pair = self.find(id)
        if pair is None or pair.partner != partner or pair.role != "acceptor" or pair.status == "aborted":
            return ReplyCode.UNKNOWN_ROUND
        if pair.status == "committed":
            accepted = self.ledger.digest_received(partner, round)
            return ReplyCode.AGAIN if accepted == digest_of(body) else ReplyCode.EQUIVOCATION
        verdict = self._judge(partner, round, body)
        if verdict is ReplyCode.OK:
            self._write(id, partner, "acceptor", pair.own_round, round, body, signature)
        return verdict

    def aborted(self, id: str) -> None:
        """Record that the proposer has no such exchange."""
        with self.ledger.database.transaction() as db:
            db.execute("UPDATE pairs SET status = 'aborted' WHERE id = ? AND status = 'prepared'", (id,))

    # Both

    def own_row(self, round: int) -> bytes:
        return self.ledger.body(ANY_RECEIVER, round)

    def forget_rows(self) -> None:
        """Let the next release delete rows that nobody can request any more."""
        owed = {pair.own_round for pair in self.unconfirmed()}
        for round in self.ledger.unacknowledged(ANY_RECEIVER):
            if round < self.ledger.round and round not in owed:
                self.ledger.acknowledge(ANY_RECEIVER, round)

    def _judge(self, partner: str, round: int, body: bytes) -> ReplyCode:
        if self.ledger.quarantined(partner) is not None:
            return ReplyCode.QUARANTINED
        accepted = self.ledger.digest_received(partner, round)
        if accepted is not None:
            return ReplyCode.AGAIN if accepted == digest_of(body) else ReplyCode.EQUIVOCATION
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

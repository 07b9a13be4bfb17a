"""Records of exchanges that two agents agree on themselves: propose, accept, commit. Sends nothing.

The proposer decides (two-phase commit). A proposal binds the proposer to nothing: an exchange that is not in
its ledger was aborted. An acceptor that has agreed is *prepared*: it neither commits nor aborts by itself,
but requests the outcome from the proposer until it gets a reply. Meanwhile it continues and exchanges with
other agents, but not with that partner. An exchange that was committed is used in its next free round. So
both agents commit or neither does, whichever process dies or is disconnected at any moment, and an
unreachable or undecided partner delays no agent.

Each side sends the row in its ledger, the same bytes to every partner (`stored_rows.ANY_RECEIVER`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Literal

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import LedgerError, digest_of
from topdp.agents.ledger.stored_rows import ANY_RECEIVER, insert_received
from topdp.agents.wire.transport import ReplyCode

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
    own_round: int  # round of the row that this agent sends
    partner_round: int | None  # round of the partner's row; None before the commit
    told: int  # 1 if the acceptor knows the outcome
    applied: int | None  # round that used the exchange; None while it is unused


class PairingRecords:
    """The exchanges of one agent: at most one under way as proposer, and at most one open per partner."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        with ledger.database.transaction() as db:
            for index in PAIR_INDEXES:
                db.execute(f"CREATE INDEX IF NOT EXISTS {index}")
        self.closed = False  # True: no further exchanges, because the rounds are over
        self.proposing: str | None = None  # id of the open proposal; in memory only, so a crash aborts it

    def pairs(self, which: str = "1", *values: object) -> list[PairRecord]:
        """Return the exchanges that meet an SQL condition with these values, oldest first; by default all."""
        rows: list[Any] = self.ledger.database.rows(
            f"SELECT {PAIR_COLUMNS} FROM pairs WHERE {which} ORDER BY rowid", *values
        )
        return [PairRecord(**dict(zip(PAIR_COLUMNS.split(", "), row, strict=True))) for row in rows]

    def find(self, id: str) -> PairRecord | None:
        return next(iter(self.pairs("id = ?", id)), None)

    def prepared(self) -> list[PairRecord]:
        """Return the exchanges whose outcome this agent does not know."""
        return self.pairs("status = 'prepared'")

    def ready(self) -> PairRecord | None:
        """Return the committed exchange that the next round uses, or None."""
        return next(iter(self.pairs("status = 'committed' AND applied IS NULL")), None)

    def unconfirmed(self) -> list[PairRecord]:
        """Return the committed exchanges that this agent proposed and the acceptor has not confirmed."""
        return self.pairs("status = 'committed' AND told = 0 AND role = 'proposer'")

    def mixed_in(self) -> str | None:
        """Return the agent whose row is in this agent's present row, or None.

        It must not receive the present row, because it made the noise which this row reuses.
        """
        used = "SELECT partner FROM pairs WHERE status = 'committed' AND applied = ?"
        row = self.ledger.database.one(used, self.ledger.round)
        return str(row[0]) if row else None

    def open_with(self) -> set[str]:
        """Return the partners of prepared and unconfirmed exchanges: no new one is begun with them."""
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
        """Abort the open proposal after a refusal or without a reply. Nothing was written."""
        self.proposing = None

    def commit(
        self, id: str, partner: str, own_round: int, round: int, body: bytes, signature: bytes = b""
    ) -> ReplyCode:
        """Commit the open proposal in one transaction, after the partner has agreed and sent its row.

        `own_round`: round of this agent's row. `round`, `body`, `signature`: the partner's row. Return OK, or
        the code of the reason why the row is rejected.
        """
        if id != self.proposing:
            raise LedgerError(f"Expected the open exchange {self.proposing}, got {id}.")
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
        """Return the proposer's reply to a request for the outcome, with the exchange if it is committed.

        A committed exchange that the acceptor has already confirmed yields NO_MEETING.
        """
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
        """Decide on a proposal of `partner`, and return whether this agent agrees.

        The agreement is in the ledger before the reply is sent.
        """
        if self.closed or self.busy or self.ledger.round < 0 or partner in self.open_with():
            return False
        if self.ledger.quarantined(partner) is not None or self.find(id) is not None:
            return False
        if partner == self.mixed_in():
            return False
        if self.ledger.finished(partner):
            return False  # after a restart, this agent does not ask a finished partner for its state
        with self.ledger.database.transaction() as db:
            query = "INSERT INTO pairs VALUES (?, ?, 'acceptor', 'prepared', ?, NULL, 0, NULL)"
            db.execute(query, (id, partner, self.ledger.round))
        return True

    def committed(self, id: str, partner: str, round: int, body: bytes, signature: bytes = b"") -> ReplyCode:
        """Record that the proposer `partner` has committed, with its row. A repetition is acknowledged."""
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

    def forget_rows(self) -> None:
        """Allow the next release to delete rows that no partner can request any more."""
        unconfirmed = {pair.own_round for pair in self.unconfirmed()}
        for round in self.ledger.unacknowledged(ANY_RECEIVER):
            if round < self.ledger.round and round not in unconfirmed:
                self.ledger.acknowledge(ANY_RECEIVER, round)

    def _judge(self, partner: str, round: int, body: bytes) -> ReplyCode:
        if self.ledger.quarantined(partner) is not None:
            return ReplyCode.QUARANTINED
        accepted = self.ledger.digest_received(partner, round)
        if accepted is not None:
            return ReplyCode.AGAIN if accepted == digest_of(body) else ReplyCode.EQUIVOCATION
        return ReplyCode.OK if round > self.ledger.last_received(partner) else ReplyCode.GAP

    def _write(
        self, id: str, partner: str, role: str, own_round: int, round: int, body: bytes, signature: bytes
    ) -> None:
        told = 1 if role == "acceptor" else 0
        with self.ledger.database.transaction() as db:
            insert_received(db, partner, round, digest_of(body), body, signature)
            query = "INSERT OR REPLACE INTO pairs VALUES (?, ?, ?, 'committed', ?, ?, ?, NULL)"
            db.execute(query, (id, partner, role, own_round, round, told))

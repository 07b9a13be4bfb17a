"""The ledger: what an agent has spent, sent and received, and its current state, in one SQLite file.

One transaction contains the charge, the digests, the noised bytes and the state of a release. Bytes are sent
only after it is committed. A row is resent from the ledger, byte for byte, so after a crash at any moment no
release is charged twice, and none is missing. The work per round does not grow with the number of rounds:
bytes that are not needed any more are deleted (`stored_rows`). The cost of a release is computed in
`budget_meter`; `inbox` decides which rows to accept, and `ledger_check` verifies that a ledger is intact.

**Guarantees.** Every body ever returned for sending has a charge that was on disk before. A charge is finite,
not negative and never revoked. Charges form a hash chain: `ledger_check.verify` detects changed, swapped or
missing entries; neighbours detect a removed tail, because they store the highest round that they received.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from sqlite3 import Connection
from typing import Literal

from topdp.agents.ledger import event_journal, stored_rows
from topdp.agents.ledger.ledger_database import LEDGER_FILE, LedgerDatabase
from topdp.agents.ledger.ledger_entries import (
    EntryKind,
    LedgerEntry,
    LedgerError,
    ReleaseCost,
    TamperedError,
    chain_hash,
    digest_of,
    expect_bookable,
    genesis_hash,
)
from topdp.agents.ledger.ledger_facts import LedgerFacts, parse_round
from topdp.agents.ledger.stored_rows import ANY_RECEIVER, MAX_RESENT_ROWS
from topdp.privacy.answers import WORST_CASE

PartnerMode = Literal["planned", "found"]


class Ledger(LedgerFacts):
    """The ledger of one agent. Not thread-safe."""

    def __init__(
        self,
        folder: Path,
        federation: str = "",
        agent: str = "",
        *,
        writable: bool = True,
        partners: PartnerMode = "planned",
        guarantee: str = WORST_CASE.name,
        holds_after_departures: bool = False,
        reserve: int = 0,
    ) -> None:
        """Open the ledger in `folder`. With `federation`, create it, or reject one of another identity.

        `partners`: "planned", or "found" with live pairing. The two charge differently, so a ledger is for
        one of them. `guarantee`: the answer by which releases are charged while the plan is followed, or
        always if it `holds_after_departures`. `reserve`: how many neighbours may depart before the guarantee
        fails; the guarantee counts them as colluders.
        """
        identity = {"federation": federation, "agent": agent, "partners": partners, "guarantee": guarantee}
        identity["whoever_is_missing"] = str(holds_after_departures)
        database = LedgerDatabase(folder, identity if writable and federation else {}, writable)
        super().__init__(database, reserve)
        self.folder = folder
        self.before_commit: Callable[[], None] = lambda: None  # inside the transaction of a release
        self.before_charge: Callable[[float], None] = lambda epsilon: None  # takes ε spent after the charge
        self._acknowledged: dict[tuple[str, int], None] = {}
        self._resendable: dict[str, list[int]] = {}  # receiver -> acknowledged rounds with bytes, increasing
        self._logs = event_journal.EMPTY_LOGS  # as bound by the last charge
        self._last_sent: int | None = None
        self.last_entry: LedgerEntry | None = None
        self.head = genesis_hash(self.meta)
        try:
            self.expect_consistent()
            newest = self.database.one("SELECT entry, hash FROM charges ORDER BY number DESC LIMIT 1")
            if newest:
                self.last_entry, self.head = LedgerEntry.read(newest[0]), str(newest[1])
        except BaseException:
            self.close()
            raise

    @property
    def total(self) -> float:
        """ε charged so far."""
        return self.last_entry.total if self.last_entry else 0.0

    @property
    def charged_by(self) -> str:
        """The guarantee under which ε is spent: the worst case after a departure from the plan."""
        return self.meta.get("guarantee", WORST_CASE.name) if self._by_guarantee else WORST_CASE.name

    @property
    def _by_guarantee(self) -> bool:
        return self.departed is None or self.meta.get("whoever_is_missing") == str(True)

    @property
    def spent(self) -> float | None:
        """ε spent; None: infinite. After a departure, it includes later charges for earlier releases."""
        if self.last_entry is None or self._by_guarantee:
            return self.total
        return None if self.worst_case is None else max(self.total, self.worst_case)

    @property
    def worst_case(self) -> float | None:
        """ε spent if all other agents collude; None: infinite."""
        return self.last_entry.worst_case if self.last_entry else 0.0

    @property
    def round(self) -> int:
        """The last round in the ledger; -1 before the first."""
        return self.last_entry.round if self.last_entry else -1

    @property
    def charge_count(self) -> int:
        return self.last_entry.number + 1 if self.last_entry else 0

    def is_complete(self, releases: int) -> bool:
        """Return whether the ledger contains every round of a plan with this number of releases."""
        final = self.final_round
        return self.round + 1 >= (releases if final is None else min(releases, final + 1))

    @property
    def last_sent_round(self) -> int:
        """The last round whose rows may have been sent; -1 before the first."""
        if self._last_sent is None:
            numbers = reversed(range(self.charge_count))
            self._last_sent = next((e.round for e in map(self._charge, numbers) if e.digests), -1)
        return self._last_sent

    def entries(self) -> Iterator[LedgerEntry]:
        for (text,) in self.database.rows("SELECT entry FROM charges ORDER BY number"):
            yield LedgerEntry.read(text)

    def _charge(self, number: int) -> LedgerEntry:
        row = self.database.one("SELECT entry FROM charges WHERE number = ?", number)
        if row is None:
            raise TamperedError(
                f"Expected charge {number} in {self.folder / LEDGER_FILE}, but it is missing. Do not delete "
                "the file: its charges were spent."
            )
        return LedgerEntry.read(row[0])

    def release(
        self,
        round: int,
        cost: ReleaseCost,
        bodies: Mapping[str, bytes],
        state: bytes,
        applied: Iterable[tuple[str, int]] = (),
        pair: str | None = None,
        kind: EntryKind = "release",
        notes: Mapping[str, str] | None = None,
    ) -> LedgerEntry:
        """Charge a release, store its rows and the state after it in one transaction, and return the charge.

        `bodies`: maps receiver to the bytes of its row. `applied`: (sender, round) of the received rows that
        the new state uses. `pair`: id of the committed exchange that the round used. `notes`: further facts
        to record with the release. Raise LedgerError if `round` is already in the ledger.
        """
        if round <= self.round:
            raise LedgerError(f"Expected a round after {self.round}, got {round}: a round is charged once.")
        digests = {receiver: digest_of(body) for receiver, body in bodies.items()}
        with self.database.transaction() as db:
            sent = [(to, round, digests[to], body) for to, body in bodies.items()]
            db.executemany("INSERT INTO outbox VALUES (?, ?, ?, ?)", sent)
            db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (round, state))
            stored_rows.mark_applied(db, round, applied, pair)
            for key, value in (notes or {}).items():
                event_journal.set_fact(db, key, value)
            planned = self.meta.get("partners") == "planned"
            stored_rows.delete_unneeded(db, round, list(self._acknowledged), planned)
            charged = self._book(db, round, kind, cost, digests, digest_of(state))
            self.before_commit()
        self._acknowledged.clear()
        self.last_entry, self.head, self._logs = charged
        self._last_sent = round if digests else self._last_sent
        self.meta.update(notes or {})
        return self.last_entry

    def charge_late(self, cost: ReleaseCost) -> None:
        """Charge for earlier releases whose cost is now known to be higher. Sends nothing."""
        assert self.last_entry is not None, "nothing was released"
        with self.database.transaction() as db:
            charged = self._book(db, self.round, "late", cost, {}, self.last_entry.state)
        self.last_entry, self.head, self._logs = charged

    def _book(
        self,
        db: Connection,
        round: int,
        kind: EntryKind,
        cost: ReleaseCost,
        digests: dict[str, str],
        state: str,
    ) -> tuple[LedgerEntry, str, event_journal.LogHeads]:
        """Write a charge with a digest of the logs. Return the new last entry, hash of the chain and logs."""
        expect_bookable(cost)
        worst = 0.0 if self._by_guarantee else cost.worst_case
        self.before_charge(math.inf if worst is None else max(self.total + cost.charge, worst))
        logs = {name: [log, *log.lines(db, name)][-1] for name, log in self._logs.items()}
        entry = LedgerEntry(
            number=self.charge_count,
            round=round,
            kind=kind,
            charge=float(cost.charge),
            total=self.total + float(cost.charge),
            worst_case=cost.worst_case,
            information=cost.information,
            digests=digests,
            state=state,
            counts={name: log.count for name, log in logs.items()},
            books=event_journal.logs_digest(db, {name: log.head for name, log in logs.items()}),
        )
        if entry.contradiction:
            raise LedgerError(
                f"Expected an entry that agrees with earlier ones, got a {kind} that {entry.contradiction}."
            )
        head = chain_hash(self.head, entry.text())
        db.execute("INSERT INTO charges VALUES (?, ?, ?)", (entry.number, entry.text(), head))
        return entry, head, logs

    def unacknowledged(self, receiver: str) -> list[int]:
        """Return the rounds whose rows `receiver` has not acknowledged, oldest first."""
        query = "SELECT round FROM outbox WHERE receiver = ? AND body IS NOT NULL ORDER BY round"
        rounds = [parse_round(row[0]) for row in self.database.rows(query, receiver)]
        acknowledged = {*self._resendable.get(receiver, ())}
        acknowledged |= {round for to, round in self._acknowledged if to == receiver}
        return [round for round in rounds if round not in acknowledged]

    def body(self, receiver: str, round: int) -> bytes:
        """Return the stored bytes: the only ones that may ever be sent to `receiver` for `round`."""
        query = "SELECT body, digest FROM outbox WHERE receiver = ? AND round = ?"
        row = self.database.one(query, receiver, round)
        if row is None or not isinstance(row[0], bytes):
            raise LedgerError(f"Expected bytes of round {round} for {receiver} in the outbox, got none.")
        if digest_of(row[0]) != row[1]:
            raise TamperedError(f"The bytes of round {round} for {receiver} are not those that were charged.")
        return row[0]

    def digest_sent(self, receiver: str, round: int) -> str | None:
        """Return the digest of the row sent to `receiver` in `round`, acknowledged or not, or None."""
        row = self.database.one("SELECT digest FROM outbox WHERE receiver = ? AND round = ?", receiver, round)
        if row is not None:
            return str(row[0])
        # Rounds increase with the numbers of charges; late charges of a round follow its release.
        charges = range(self.charge_count)
        number = bisect_left(charges, round, key=lambda number: self._charge(number).round)
        entry = self._charge(number) if number in charges else None
        return entry.digests.get(receiver) if entry and entry.round == round else None

    def acknowledge(self, receiver: str, round: int) -> None:
        """Record that `receiver` has the row. The next release deletes bytes that it cannot request again.

        Kept are the bytes of the newest `MAX_RESENT_ROWS` acknowledged rows, from the round of the last row
        that arrived from `receiver` onwards. A receiver whose ledger was restored from an older copy lacks no
        other rows, or its own rows reveal the old copy. The record is in memory only: after a restart, the
        next greeting repeats the acknowledgement.
        """
        rounds = self._resendable.setdefault(receiver, [])
        if receiver == ANY_RECEIVER:
            self._acknowledged[receiver, round] = None
        elif round not in rounds:
            insort(rounds, round)
        last = self.last_received(receiver)
        while len(rounds) > MAX_RESENT_ROWS or (len(rounds) > 1 and rounds[0] < last):
            self._acknowledged[receiver, rounds.pop(0)] = None

    def requeue(self, receiver: str, last_round: int, limit: int) -> int:
        """Schedule rows for resending that `receiver` acknowledged but now reports as missing.

        Of the rows after `last_round` whose bytes are kept, the first `limit` are sent again, with the same
        bytes. Return their number.
        """
        rounds = self._resendable.get(receiver, [])
        again = [round for round in rounds if round > last_round][:limit]
        self._resendable[receiver] = [round for round in rounds if round not in again]
        return len(again)

    def last_received(self, sender: str) -> int:
        """Return the last accepted round of `sender`; -1 before the first."""
        row = self.database.one("SELECT max(round) FROM inbox WHERE sender = ?", sender)
        return -1 if row is None or row[0] is None else parse_round(row[0])

    def digest_received(self, sender: str, round: int) -> str | None:
        row = self.database.one("SELECT digest FROM inbox WHERE sender = ? AND round = ?", sender, round)
        return str(row[0]) if row else None

    def store_row(
        self, sender: str, round: int, digest: str, body: bytes | None, signature: bytes = b""
    ) -> None:
        """Store a row that `inbox` has accepted; if `body` is None, only its digest."""
        with self.database.transaction() as db:
            stored_rows.insert_received(db, sender, round, digest, body, signature)

    def unapplied_body(self, sender: str, round: int) -> bytes | None:
        """Return the bytes of the row of `sender` in `round` if it was not used yet, else None."""
        row = self.database.one("SELECT body FROM inbox WHERE sender = ? AND round = ?", sender, round)
        return row[0] if row and isinstance(row[0], bytes) else None

    def state(self) -> tuple[int, bytes] | None:
        """Return (last round, bytes of the state after it), or None before the first release."""
        row = self.database.one("SELECT round, body FROM state")
        return (parse_round(row[0]), row[1]) if row and isinstance(row[1], bytes) else None

    def has_entry(self, hash: str) -> bool:
        """Return whether an entry with this hash is in the ledger."""
        return self.database.one("SELECT 1 FROM charges WHERE hash = ?", hash) is not None

    def close(self) -> None:
        self.database.close()

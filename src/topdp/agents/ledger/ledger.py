"""The ledger: what an agent has spent, sent, received and where it stands, in one SQLite file.

One transaction holds the charge, the digests, the noised bytes and the state they came from; only then may a
byte leave. What was sent once is sent again from here, byte for byte, so a crash at any moment costs nothing
twice and hides nothing. This file keeps books; what a release costs is `budget`'s, what to believe of a
neighbour `inbox`'s, whether the books are whole `audit`'s. What a round asks for takes as long in round 8,000
as in round 1: what nobody needs any more goes (`compaction`).

**Guarantees.** Every body ever handed out for sending has a charge that was on disk before. A charge is
finite, not negative and never taken back. Charges form a hash chain: changed, swapped or missing entries are
found by `audit.verify`; a tail cut off is found by neighbours, who remember the highest round they saw.
"""

from __future__ import annotations

import json
import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import Literal

from topdp.agents.ledger import event_journal
from topdp.agents.ledger.compaction import MAX_RESENT_ROWS, delete_unneeded, mark_applied
from topdp.agents.ledger.ledger_database import LEDGER_FILE, LedgerDatabase, LedgerError, TamperedError
from topdp.agents.ledger.ledger_entries import (
    EntryKind,
    LedgerEntry,
    ReleaseCost,
    chain_hash,
    digest_of,
    expect_bookable,
    genesis_hash,
)
from topdp.agents.ledger.ledger_facts import LedgerFacts, parse_round
from topdp.privacy.answers import WORST_CASE

ANY_RECEIVER = "*"  # receiver of a body whose partner is not known when it is made

SIGNATURE_KEY_PREFIX = "row of "  # begins the key under which a neighbour's newest signature is kept

PartnerMode = Literal["planned", "found"]


class Ledger(LedgerFacts):
    """The books of one agent. Not for two threads at once."""

    def __init__(
        self,
        folder: Path,
        federation: str = "",
        agent: str = "",
        writable: bool = True,
        partners: PartnerMode = "planned",
        guarantee: str = WORST_CASE.name,
        holds_after_departures: bool = False,
        reserve: int = 0,
    ) -> None:
        """A ledger of another federation or agent is refused; one that is only read may be anybody's.

        `partners`: what was charged while partners were found on the way is not what a plan would cost, so
        one ledger is for one of the two. `guarantee`: what is charged by as long as the plan is followed; or
        always, where it holds `whoever_is_missing`. `reserve`: so many neighbours may be gone before that
        the guarantee still holds, because it counts them as colluders.
        """
        mine = {"federation": federation, "agent": agent, "partners": partners, "guarantee": guarantee}
        mine["whoever_is_missing"] = str(holds_after_departures)
        identity = mine if writable else {}
        super().__init__(LedgerDatabase(folder, identity, writable), reserve)
        self.folder = folder
        self.before_commit: Callable[[], None] = lambda: None  # the failpoint inside a release
        self.before_charge: Callable[[float], None] = lambda epsilon: None  # with what will be spent then
        self._acknowledged: dict[tuple[str, int], None] = {}
        self._kept: dict[str, list[int]] = {}  # acknowledged, rising, with bytes that may be asked for again
        self._logs = event_journal.EMPTY_LOGS  # bound by the last charge
        self._charged: int | None = None
        self.last_entry: LedgerEntry | None = None
        self._head = genesis_hash(self.meta)
        try:
            self.expect_consistent()
            newest = self.database.rows("SELECT entry, hash FROM charges ORDER BY number DESC LIMIT 2")
            if newest:
                before = str(newest[1][1]) if len(newest) > 1 else self._head
                if chain_hash(before, str(newest[0][0])) != newest[0][1]:
                    raise TamperedError(
                        f"The last charge in {folder / LEDGER_FILE} does not follow from the one "
                        "before: one of the "
                        "two was changed. Do not delete it: its charges were spent."
                    )
                self.last_entry, self._head = LedgerEntry.read(newest[0][0]), str(newest[0][1])
        except BaseException:
            self.close()
            raise

    @property
    def total(self) -> float:
        """ε charged."""
        return self.last_entry.total if self.last_entry else 0.0

    @property
    def charged_by(self) -> str:
        """The guarantee under which ε is spent: the worst case once the plan is departed from."""
        return self.meta.get("guarantee", WORST_CASE.name) if self._by_guarantee else WORST_CASE.name

    @property
    def _by_guarantee(self) -> bool:
        return self.departed is None or self.meta.get("whoever_is_missing") == str(True)

    @property
    def spent(self) -> float | None:
        """ε spent; None: infinite. After a departure with what the next round is charged for the past."""
        if self.last_entry is None or self._by_guarantee:
            return self.total
        return None if self.last_entry.worst_case is None else max(self.total, self.last_entry.worst_case)

    @property
    def round(self) -> int:
        """The last round on the books; -1 before the first."""
        return self.last_entry.round if self.last_entry else -1

    @property
    def last_sent_round(self) -> int:
        """The last round whose rows may have left; -1 before the first."""
        if self._charged is None:
            numbers = range(self.last_entry.number if self.last_entry else -1, -1, -1)
            self._charged = next((e.round for e in map(self._charge, numbers) if e.digests), -1)
        return self._charged

    def entries(self) -> Iterator[LedgerEntry]:
        for (text,) in self.database.rows("SELECT entry FROM charges ORDER BY number"):
            yield LedgerEntry.read(text)

    def _charge(self, number: int) -> LedgerEntry:
        row = self.database.one("SELECT entry FROM charges WHERE number = ?", number)
        if row is None:
            raise TamperedError(f"Expected charge {number} in {self.folder / LEDGER_FILE}, it is gone.")
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
        """Charges, and stores what is to be sent and where the agent then stands: all or nothing.

        `bodies`: receiver -> bytes. `applied`: the (sender, round) whose rows went into the new state.
        `pair`: the committed pair that the round used up. `notes`: what else is to be remembered of it.
        """
        if round <= self.round:
            raise LedgerError(f"Expected a round after {self.round}, got {round}: a round is charged once.")
        digests = {receiver: digest_of(body) for receiver, body in bodies.items()}
        with self.database.transaction() as db:
            sent = [(to, round, digests[to], body) for to, body in bodies.items()]
            db.executemany("INSERT INTO outbox VALUES (?, ?, ?, ?)", sent)
            db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (round, state))
            mark_applied(db, round, applied, pair)
            for key, value in (notes or {}).items():
                event_journal.set_fact(db, key, value)
            delete_unneeded(
                db, round, list(self._acknowledged), planned=self.meta.get("partners") == "planned"
            )
            charged = self._book(db, round, kind, cost, digests, digest_of(state))
            self.before_commit()
        self._acknowledged.clear()
        self.last_entry, self._head, self._logs = charged
        self._charged = round if digests else self._charged
        self.meta.update(notes or {})
        return self.last_entry

    def charge_late(self, cost: ReleaseCost) -> None:
        """Charges for releases that turn out to have cost more; nothing is sent."""
        assert self.last_entry is not None, "nothing was released"
        with self.database.transaction() as db:
            charged = self._book(db, self.round, "late", cost, {}, self.last_entry.state)
        self.last_entry, self._head, self._logs = charged

    def _book(
        self,
        db: Connection,
        round: int,
        kind: EntryKind,
        cost: ReleaseCost,
        digests: dict[str, str],
        state: str,
    ) -> tuple[LedgerEntry, str, event_journal.LogHeads]:
        """Writes a charge that binds all else on the books; what is known of them once it is committed."""
        expect_bookable(cost)
        worst = 0.0 if self._by_guarantee else cost.worst_case
        self.before_charge(math.inf if worst is None else max(self.total + cost.charge, worst))
        logs = event_journal.read_logs(db, self._logs)
        books = event_journal.logs_digest(db, {name: log.head for name, log in logs.items()})
        entry = self._entry(round, kind, cost, digests, state)
        entry = replace(entry, counts={name: log.count for name, log in logs.items()}, books=books)
        head = chain_hash(self._head, entry.text())
        db.execute("INSERT INTO charges VALUES (?, ?, ?)", (entry.number, entry.text(), head))
        return entry, head, logs

    def _entry(
        self, round: int, kind: EntryKind, cost: ReleaseCost, digests: dict[str, str], state: str
    ) -> LedgerEntry:
        expect_bookable(cost)
        entry = LedgerEntry(
            number=self.last_entry.number + 1 if self.last_entry else 0,
            round=round,
            kind=kind,
            charge=float(cost.charge),
            total=self.total + float(cost.charge),
            worst_case=cost.worst_case,
            information=cost.information,
            digests=digests,
            state=state,
        )
        if entry.contradiction:
            raise LedgerError(f"Expected an entry that can be, got a {kind} that {entry.contradiction}.")
        return entry

    def unacknowledged(self, receiver: str) -> list[int]:
        """The rounds whose bytes `receiver` has not acknowledged, oldest first."""
        query = "SELECT round FROM outbox WHERE receiver = ? AND body IS NOT NULL ORDER BY round"
        rounds = [parse_round(row[0]) for row in self.database.rows(query, receiver)]
        kept = self._kept.get(receiver, ())
        return [
            round for round in rounds if (receiver, round) not in self._acknowledged and round not in kept
        ]

    def body(self, receiver: str, round: int) -> bytes:
        """The stored bytes: the only ones that may ever be sent under this name."""
        query = "SELECT body, digest FROM outbox WHERE receiver = ? AND round = ?"
        row = self.database.one(query, receiver, round)
        if row is None or not isinstance(row[0], bytes):
            raise LedgerError(f"Expected bytes of round {round} for {receiver} in the outbox, got none.")
        if digest_of(row[0]) != row[1]:
            raise TamperedError(f"The bytes of round {round} for {receiver} are not those that were charged.")
        return row[0]

    def digest_sent(self, receiver: str, round: int) -> str | None:
        """What was sent to `receiver` in `round`; None where nothing was. Also what is acknowledged."""
        row = self.database.one("SELECT digest FROM outbox WHERE receiver = ? AND round = ?", receiver, round)
        if row is not None:
            return str(row[0])
        low, high = (
            0,
            self.last_entry.number if self.last_entry else -1,
        )  # rounds rise with numbers: halve until found
        while low <= high:
            number = (low + high) // 2
            entry = self._charge(number)
            if entry.round == round and entry.kind != "late":
                return entry.digests.get(receiver)
            low, high = (number + 1, high) if entry.round < round else (low, number - 1)
        return None

    def acknowledge(self, receiver: str, round: int) -> None:
        """`receiver` has the bytes; those that it cannot lose any more go with the next release.

        Kept are the newest `RESENT`, of rounds of which `receiver` has not shown its own row: whose books are
        put back to an older copy lacks no others, or its own rows show that copy to be old. In memory only:
        who forgets it is told by the next greeting.
        """
        kept = self._kept.setdefault(receiver, [])
        if receiver == ANY_RECEIVER:
            self._acknowledged[receiver, round] = None
        elif round not in kept:
            insort(kept, round)
        shown = self.last_received(receiver)
        while len(kept) > MAX_RESENT_ROWS or (len(kept) > 1 and kept[0] < shown):
            self._acknowledged[receiver, kept.pop(0)] = None

    def requeue(self, receiver: str, seen: int, most: int) -> int:
        """What `receiver` has acknowledged, and says it lacks, is owed again: the same bytes; how many rows.

        The first `most` after round `seen`.
        """
        kept = self._kept.get(receiver, [])
        again = [round for round in kept if round > seen][:most]
        self._kept[receiver] = [round for round in kept if round not in again]
        return len(again)

    def last_received(self, sender: str) -> int:
        """The highest round of `sender` that was accepted; -1 before the first."""
        return self._number("SELECT max(round) FROM inbox WHERE sender = ?", sender)

    def digest_received(self, sender: str, round: int) -> str | None:
        row = self.database.one("SELECT digest FROM inbox WHERE sender = ? AND round = ?", sender, round)
        return str(row[0]) if row else None

    def store_row(
        self, sender: str, round: int, digest: str, body: bytes | None, signature: bytes = b""
    ) -> None:
        """Keeps what a neighbour sent; without a body only that it came. `inbox` decides."""
        with self.database.transaction() as db:
            keep_signature(db, sender, round, digest, signature)
            db.execute("INSERT INTO inbox VALUES (?, ?, ?, ?, NULL)", (sender, round, digest, body))

    def unapplied_body(self, sender: str, round: int) -> bytes | None:
        """What `sender` sent in `round` and was not applied yet."""
        row = self.database.one("SELECT body FROM inbox WHERE sender = ? AND round = ?", sender, round)
        return row[0] if row and isinstance(row[0], bytes) else None

    def state(self) -> tuple[int, bytes] | None:
        """The last round done, and the state after it."""
        row = self.database.one("SELECT round, body FROM state")
        return (parse_round(row[0]), row[1]) if row and isinstance(row[1], bytes) else None

    def close(self) -> None:
        self.database.close()

    def _number(self, query: str, *values: object) -> int:
        row = self.database.one(query, *values)
        return -1 if row is None or row[0] is None else parse_round(row[0])


def keep_signature(db: Connection, sender: str, round: int, digest: str, signature: bytes) -> None:
    """Of the newest row of `sender`, inside the transaction that stores it; `witness` reads it."""
    if signature:
        text = json.dumps([round, digest, signature.hex()])
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (SIGNATURE_KEY_PREFIX + sender, text))

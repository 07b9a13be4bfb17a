"""The ledger: what an agent has spent, sent, received and where it stands, in one SQLite file.

One transaction holds the charge, the digests, the noised bytes and the state they came from; only then may a
byte leave. What was sent once is sent again from here, byte for byte, so a crash at any moment costs nothing
twice and hides nothing. This file keeps books; what a release costs is `budget`'s, what to believe of a
neighbour `inbox`'s, whether the books are whole `audit`'s. What a round asks for takes as long in round 8,000
as in round 1: bodies go once they are used, and sent rows that all are done with go too, their digests stay
in the charges.

**Guarantees.** Every body ever handed out for sending has a charge that was on disk before. A charge is
finite, not negative and never taken back. Charges form a hash chain: changed, swapped or missing entries are
found by `audit.verify`; a tail cut off is found by neighbours, who remember the highest round they saw.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

from topdp.agents.books import journal
from topdp.agents.books.database import FILE, Database, LedgerError, TamperedError
from topdp.agents.books.entries import Cost, Kind, LedgerEntry, check, digest_of, genesis, link
from topdp.agents.wire.codes import ReplyCode
from topdp.errors import DataError

ANYBODY = "*"  # receiver of a body whose partner is not known when it is made

ROW_OF = "row of "  # begins the key under which a neighbour's newest signature is kept
KEPT = 64  # rounds for which sent rows stay in the outbox, without their bytes, after they were acknowledged

WITHOUT = "without "  # begins the subject of the statement that somebody is counted out

Partners = Literal["planned", "found"]


@dataclass(frozen=True)
class Quarantine:
    """Why nothing more is believed of a neighbour: what it did, and the particulars for people."""

    code: ReplyCode
    words: str


class Ledger:
    """The books of one agent. Not for two threads at once."""

    def __init__(
        self,
        folder: Path,
        federation: str = "",
        agent: str = "",
        writable: bool = True,
        partners: Partners = "planned",
        guarantee: str = "worst-case",
        whoever_is_missing: bool = False,
        reserve: int = 0,
    ) -> None:
        """A ledger of another federation or agent is refused; one that is only read may be anybody's.

        `partners`: what was charged while partners were found on the way is not what a plan would cost, so
        one ledger is for one of the two. `guarantee`: what is charged by as long as the plan is followed; or
        always, where it holds `whoever_is_missing`. `reserve`: so many neighbours may be gone before that
        the guarantee still holds, because it counts them as colluders.
        """
        self.reserve = reserve
        mine = {"federation": federation, "agent": agent, "partners": partners, "guarantee": guarantee}
        mine["whoever_is_missing"] = str(whoever_is_missing)
        identity = mine if writable else {}
        self.database = Database(folder, identity, writable)
        self.folder = folder
        self.before_commit: Callable[[], None] = lambda: None  # the failpoint inside a release
        self.before_charge: Callable[[float], None] = lambda epsilon: None  # with what will be spent then
        self._acknowledged: dict[tuple[str, int], None] = {}
        self._logs = journal.UNREAD  # bound by the last charge
        self._charged: int | None = None
        self.last: LedgerEntry | None = None
        self._head = genesis(self.meta)
        try:
            for text, head in self.database.rows(
                "SELECT entry, hash FROM charges ORDER BY number DESC LIMIT 1"
            ):
                self.last, self._head = LedgerEntry.read(text), str(head)
        except BaseException:
            self.close()
            raise

    @property
    def meta(self) -> dict[str, str]:
        return self.database.meta

    @property
    def total(self) -> float:
        """ε charged."""
        return self.last.total if self.last else 0.0

    @property
    def charged_by(self) -> str:
        """The guarantee under which ε is spent: the worst case once the plan is departed from."""
        return self.meta.get("guarantee", "worst-case") if self._by_guarantee else "worst-case"

    @property
    def _by_guarantee(self) -> bool:
        return self.departed is None or self.meta.get("whoever_is_missing") == str(True)

    @property
    def spent(self) -> float | None:
        """ε spent; None: infinite. After a departure with what the next round is charged for the past."""
        if self.last is None or self._by_guarantee:
            return self.total
        return None if self.last.worst_case is None else max(self.total, self.last.worst_case)

    @property
    def round(self) -> int:
        """The last round on the books; -1 before the first."""
        return self.last.round if self.last else -1

    @property
    def charged(self) -> int:
        """The last round whose rows may have left; -1 before the first."""
        if self._charged is None:
            numbers = range(self.last.number if self.last else -1, -1, -1)
            self._charged = next((e.round for e in map(self._charge, numbers) if e.digests), -1)
        return self._charged

    def entries(self) -> Iterator[LedgerEntry]:
        for (text,) in self.database.rows("SELECT entry FROM charges ORDER BY number"):
            yield LedgerEntry.read(text)

    def _charge(self, number: int) -> LedgerEntry:
        row = self.database.one("SELECT entry FROM charges WHERE number = ?", number)
        if row is None:
            raise TamperedError(f"Expected charge {number} in {self.folder / FILE}, it is gone.")
        return LedgerEntry.read(row[0])

    def release(
        self,
        round: int,
        cost: Cost,
        bodies: Mapping[str, bytes],
        state: bytes,
        applied: Iterable[tuple[str, int]] = (),
        pair: str | None = None,
        kind: Kind = "release",
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
            self._apply(db, round, applied, pair)
            for key, value in (notes or {}).items():
                journal.remember(db, key, value)
            self._compact(db, round)
            charged = self._book(db, round, kind, cost, digests, digest_of(state))
            self.before_commit()
        self._acknowledged.clear()
        self.last, self._head, self._logs = charged
        self._charged = round if digests else self._charged
        self.meta.update(notes or {})
        return self.last

    def _apply(
        self, db: Connection, round: int, applied: Iterable[tuple[str, int]], pair: str | None
    ) -> None:
        """What went into the state of `round` is used up: its bytes go, its digest stays."""
        for sender, taken in applied:
            once = "sender = ? AND round = ? AND applied IS NULL"
            done = db.execute(
                f"UPDATE inbox SET applied = ?, body = NULL WHERE {once}", (round, sender, taken)
            )
            if done.rowcount != 1:
                raise LedgerError(f"Expected round {taken} of {sender} to be in and not applied before.")
        if pair is not None:
            once = "id = ? AND status = 'committed' AND applied IS NULL"
            if db.execute(f"UPDATE pairs SET applied = ? WHERE {once}", (round, pair)).rowcount != 1:
                raise LedgerError(f"Expected pair {pair} to be committed and not applied before.")

    def _compact(self, db: Connection, round: int) -> None:
        """Bytes that nobody needs go; and rows of the outbox up to the first that is still waited for."""
        if self.meta.get("partners") == "planned":  # what came for a round that is over was not used
            db.execute("UPDATE inbox SET body = NULL WHERE body IS NOT NULL AND round < ?", (round,))
        given = list(self._acknowledged)
        db.executemany("UPDATE outbox SET body = NULL WHERE receiver = ? AND round = ?", given)
        first = "SELECT min(round) FROM outbox WHERE receiver = ? AND body IS NOT NULL"
        for receiver in sorted({receiver for receiver, _ in given}):
            (waiting,) = db.execute(first, (receiver,)).fetchone()
            last = min(round - KEPT, round if waiting is None else waiting - 1)
            gone = "SELECT max(round) FROM outbox WHERE receiver = ?1 AND round <= ?2 AND round < "
            own = "(SELECT max(round) FROM outbox WHERE receiver = ?1)"  # the newest stays: greetings name it
            (newest,) = db.execute(gone + own, (receiver, last)).fetchone()
            if newest is not None:
                db.execute("INSERT OR REPLACE INTO delivered VALUES (?, ?)", (receiver, newest))
                db.execute("DELETE FROM outbox WHERE receiver = ? AND round <= ?", (receiver, newest))

    def charge_late(self, cost: Cost) -> None:
        """Charges for releases that turn out to have cost more; nothing is sent."""
        assert self.last is not None, "nothing was released"
        with self.database.transaction() as db:
            charged = self._book(db, self.round, "late", cost, {}, self.last.state)
        self.last, self._head, self._logs = charged

    def _book(
        self, db: Connection, round: int, kind: Kind, cost: Cost, digests: dict[str, str], state: str
    ) -> tuple[LedgerEntry, str, journal.Logs]:
        """Writes a charge that binds all else on the books; what is known of them once it is committed."""
        check(cost)
        worst = 0.0 if self._by_guarantee else cost.worst_case
        self.before_charge(math.inf if worst is None else max(self.total + cost.charge, worst))
        logs = journal.read(db, self._logs)
        books = journal.bound(db, {name: log.head for name, log in logs.items()})
        entry = self._entry(round, kind, cost, digests, state)
        entry = replace(entry, counts={name: log.count for name, log in logs.items()}, books=books)
        head = link(self._head, entry.text())
        db.execute("INSERT INTO charges VALUES (?, ?, ?)", (entry.number, entry.text(), head))
        return entry, head, logs

    def _entry(self, round: int, kind: Kind, cost: Cost, digests: dict[str, str], state: str) -> LedgerEntry:
        check(cost)
        entry = LedgerEntry(
            number=self.last.number + 1 if self.last else 0,
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

    def waiting(self, receiver: str) -> list[int]:
        """The rounds whose bytes `receiver` has not acknowledged, oldest first."""
        query = "SELECT round FROM outbox WHERE receiver = ? AND body IS NOT NULL ORDER BY round"
        rounds = [_whole(row[0]) for row in self.database.rows(query, receiver)]
        return [round for round in rounds if (receiver, round) not in self._acknowledged]

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
        low, high = 0, self.last.number if self.last else -1  # rounds rise with numbers: halve until found
        while low <= high:
            number = (low + high) // 2
            entry = self._charge(number)
            if entry.round == round and entry.kind != "late":
                return entry.digests.get(receiver)
            low, high = (number + 1, high) if entry.round < round else (low, number - 1)
        return None

    def acknowledge(self, receiver: str, round: int) -> None:
        """The bytes are no longer needed. Written with the next release: forgetting it costs one resend."""
        self._acknowledged[receiver, round] = None

    def seen(self, sender: str) -> int:
        """The highest round of `sender` that was accepted; -1 before the first."""
        return self._number("SELECT max(round) FROM inbox WHERE sender = ?", sender)

    def digest_seen(self, sender: str, round: int) -> str | None:
        row = self.database.one("SELECT digest FROM inbox WHERE sender = ? AND round = ?", sender, round)
        return str(row[0]) if row else None

    def store(self, sender: str, round: int, digest: str, body: bytes | None, signature: bytes = b"") -> None:
        """Keeps what a neighbour sent; without a body only that it came. `inbox` decides."""
        with self.database.transaction() as db:
            keep_signature(db, sender, round, digest, signature)
            db.execute("INSERT INTO inbox VALUES (?, ?, ?, ?, NULL)", (sender, round, digest, body))

    def received(self, sender: str, round: int) -> bytes | None:
        """What `sender` sent in `round` and was not applied yet."""
        row = self.database.one("SELECT body FROM inbox WHERE sender = ? AND round = ?", sender, round)
        return row[0] if row and isinstance(row[0], bytes) else None

    def quarantine(self, peer: str, code: ReplyCode, words: str) -> None:
        """Nothing more is believed of `peer`, nor sent to it, until a person has looked."""
        self._note(peer, quarantined=words, quarantined_for=code.name)

    def quarantined(self, peer: str) -> Quarantine | None:
        row = self.database.one("SELECT quarantined, quarantined_for FROM peers WHERE name = ?", peer)
        words, code = row or (None, None)
        if words is None:
            return None
        if str(code) not in ReplyCode.__members__:
            raise TamperedError(f"Expected a reason for the quarantine of {peer}, got {code!r:.80}.")
        return Quarantine(ReplyCode[str(code)], str(words))

    def lift(self, peer: str) -> None:
        """A person has looked: `peer` is believed again."""
        self._note(peer, quarantined=None, quarantined_for=None)

    def expect_order(self, order: str) -> None:
        """`order` stands for the records as cyclic batches take them, and must not change between releases.

        Written down before the first release. A record that moved to another place of the cycle would be used
        more often than accounts say, so what was lost is not drawn anew.
        """
        known = self.meta.get("order")
        if self.last is None:
            self.database.remember("order", order)
        elif known is None:
            raise TamperedError(
                f"Expected the order of the records in {self.folder / FILE}, which its releases followed: it "
                "is gone. Restore the newest copy; without it this agent must leave the federation."
            )
        elif known != order:
            raise DataError(
                "Expected the records, in the order, with which this agent began, got others: cyclic batches "
                "would use some records more often than was accounted for. Give --data the file of the start."
            )

    def stop(self, round: int) -> None:
        """This agent's data enter no round from `round` on: its budget is used up."""
        self.database.remember("stopped", str(round))

    @property
    def stopped_at(self) -> int | None:
        """The round from which this agent's data enter no more; None while they do."""
        return None if (round := self.meta.get("stopped")) is None else _whole(round)

    def depart(self, words: str, peer: str | None = None) -> None:
        """The plan is no longer followed as written, as far as this agent has seen; the first time counts.

        Because of `peer`, if that is why: the reserve covers it then, as long as there is some left.
        """
        known = self.departures()
        if self.departed is not None or peer in known:
            return
        if peer is not None and len(known) < self.reserve:
            self.database.remember("departures", json.dumps({**known, peer: words}))
        else:
            self.database.remember("departed", words)

    def departures(self) -> dict[str, str]:
        """{neighbour: what happened} of those who are gone, or refuse this agent, within the reserve."""
        return {
            str(peer): str(words) for peer, words in json.loads(self.meta.get("departures", "{}")).items()
        }

    @property
    def departed(self) -> str | None:
        """Why the plan is no longer followed, beyond what the reserve covers; None while it is."""
        return self.meta.get("departed")

    def counted_out(self) -> dict[str, int]:
        """{agent: the round from which these books count it as a colluder, because it is gone}"""
        query = "SELECT about, text FROM statements WHERE author = ? AND substr(about, 1, ?) = ?"
        found = self.database.rows(query, self.meta.get("agent"), len(WITHOUT), WITHOUT)
        return {str(about).removeprefix(WITHOUT): _whole(text) for about, text in found}

    def note_finished(self, peer: str) -> None:
        """`peer` has done all its rounds and needs nothing more."""
        if not self.finished(peer):
            self._note(peer, finished=1)

    def finished(self, peer: str) -> bool:
        return self._peer(peer, "finished") is not None

    def note_told(self, peer: str) -> None:
        """`peer` knows that this agent has done all its rounds."""
        self._note(peer, told=1)

    def told(self, peer: str) -> bool:
        return self._peer(peer, "told") is not None

    def known_peers(self) -> list[str]:
        """Everybody of whom something is on the books."""
        found = {str(name) for (name,) in self.database.rows("SELECT name FROM peers")}
        after = self.database.one("SELECT min(sender) FROM inbox")
        while after is not None and after[0] is not None:  # from one to the next, not row by row
            found.add(str(after[0]))
            after = self.database.one("SELECT min(sender) FROM inbox WHERE sender > ?", after[0])
        return sorted(found)

    def state(self) -> tuple[int, bytes] | None:
        """The last round done, and the state after it."""
        row = self.database.one("SELECT round, body FROM state")
        return (_whole(row[0]), row[1]) if row and isinstance(row[1], bytes) else None

    def close(self) -> None:
        self.database.close()

    def _number(self, query: str, *values: object) -> int:
        row = self.database.one(query, *values)
        return -1 if row is None or row[0] is None else _whole(row[0])

    def _peer(self, peer: str, column: str) -> Any:
        row = self.database.one(f"SELECT {column} FROM peers WHERE name = ?", peer)
        return row[0] if row else None

    def _note(self, peer: str, **columns: object) -> None:
        with self.database.transaction() as db:
            for column, value in columns.items():
                journal.note(db, peer, column, value)


def keep_signature(db: Connection, sender: str, round: int, digest: str, signature: bytes) -> None:
    """Of the newest row of `sender`, inside the transaction that stores it; `witness` reads it."""
    if signature:
        text = json.dumps([round, digest, signature.hex()])
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (ROW_OF + sender, text))


def _whole(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise TamperedError(f"Expected a round in the ledger, got {value!r:.80}.") from None

"""The book of a site: what all runs on the same records have cost together, over all federations.

Agents keep their own ledgers, one for each run; this book adds them up. Before its first release a run
reserves its whole budget here; when its ledger is final, it is counted by what it spent. The unit is a
record: a run counts for the records that were in it, and a limit is on the record that has spent most.
Without a limit the book only writes down. Nothing in it ever leaves the site.

**Guarantees.** For every record, ε and δ of the runs that it was in are added (`sums`). Each ε is under the
guarantee of its run, so the sum holds against whoever sees in every run no more than that covers. A run whose
noise can be repeated, or that writes down what it hides (seeded noise, canaries), has no finite ε. A
reservation is on disk before the first release and is raised before a charge that passes it; it is given back
only by a final ledger.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from topdp.agents.ledger.ledger_database import READ_ERRORS, LedgerError, TamperedError
from topdp.agents.ledger.record_fingerprints import DataFingerprint
from topdp.agents.ledger.spent_sums import (
    RunCost,
    SpentBudget,
    largest_sum_with,
    largest_sums,
    sum_by_adjacency,
)
from topdp.errors import BudgetError, TopdpError, TrustError

SITE_BUDGET_FILE = "site.sqlite"
SITE_BUDGET_FORMAT = 1
LOCK_TIMEOUT_SECONDS = 60.0  # seconds until another process must have done its entry

SITE_BUDGET_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sets (name BLOB PRIMARY KEY, source BLOB NOT NULL, records INTEGER NOT NULL);
CREATE TABLE members (record BLOB, name BLOB, PRIMARY KEY (record, name)) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, books TEXT NOT NULL, name BLOB NOT NULL, federation TEXT NOT NULL,
    agent TEXT NOT NULL, folder TEXT NOT NULL, begun TEXT NOT NULL, guarantee TEXT NOT NULL,
    adjacency TEXT NOT NULL, delta REAL NOT NULL, epsilon REAL, final INTEGER NOT NULL DEFAULT 0,
    charges INTEGER NOT NULL DEFAULT 0, UNIQUE (books, name));
CREATE TABLE limits (number INTEGER PRIMARY KEY, time TEXT NOT NULL, epsilon REAL, delta REAL)
"""


@dataclass(frozen=True)
class BudgetRequest:
    """A run that asks to be let in. `books`: its ledger, known again when it is started again."""

    books: str
    federation: str
    agent: str
    folder: str
    guarantee: str
    adjacency: str
    delta: float
    epsilon: float  # its whole budget, or what it has spent if that is more; may be infinite
    spent: float = 0.0


@dataclass(frozen=True)
class SiteLimit:
    """None: no limit."""

    epsilon: float | None = None
    delta: float | None = None


P = ParamSpec("P")
T = TypeVar("T")


def _translate_errors(
    method: Callable[Concatenate[SiteBudget, P], T],
) -> Callable[Concatenate[SiteBudget, P], T]:
    """What SQLite or a value that cannot be raises inside becomes an error of ours."""

    @wraps(method)
    def guarded(self: SiteBudget, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except (*READ_ERRORS, TypeError, KeyError) as error:
            raise _site_budget_error(self.folder, error) from error

    return guarded


def _site_budget_error(folder: Path, error: Exception) -> TopdpError:
    text = str(error)
    if any(words in text for words in ("locked", "readonly", "full", "unable to open", "Permission")):
        return LedgerError(
            f"Could not use the book of the site in {folder}: {text}. Nothing was sent. Make the folder "
            "writable, or name another one with --site."
        )
    return TamperedError(
        f"The book of the site in {folder} is damaged ({text:.200}). Do not delete it: what is in it was "
        "spent."
    )


class SiteBudget:
    """One file for all agents of a site; several processes may use it at once."""

    def __init__(self, folder: Path, writable: bool = True) -> None:
        self.folder = folder
        path = folder / SITE_BUDGET_FILE
        try:
            if writable:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not path.exists():
                raise LedgerError(f"Expected the book of a site in {folder}, there is none: agents make it.")
            mode = "rwc" if writable else "ro"
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                timeout=LOCK_TIMEOUT_SECONDS,
            )
            if writable:
                path.chmod(0o600)
                self._db.execute("PRAGMA synchronous = FULL")
                with self._transaction() as db:
                    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                        for statement in SITE_BUDGET_TABLES.split(";\n"):
                            db.execute(statement)
                        facts = {"format": str(SITE_BUDGET_FORMAT), "key": secrets.token_hex(32)}
                        db.executemany("INSERT INTO meta VALUES (?, ?)", list(facts.items()))
            meta = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
            key = bytes.fromhex(meta.get("key", ""))
        except TopdpError:
            raise
        except OSError as error:
            raise LedgerError(
                f"Could not use the book of the site in {folder}: {error}. Nothing was sent. Make the folder "
                "writable, or name another one with --site."
            ) from error
        except (*READ_ERRORS, TypeError, ValueError) as error:
            raise _site_budget_error(folder, error) from error
        if meta.get("format") != str(SITE_BUDGET_FORMAT):
            raise LedgerError(
                f"Expected the book of a site of format {SITE_BUDGET_FORMAT} in {folder}, got "
                f"{meta.get('format')}: "
                "another version of topdp has written it, and can read it. What is in it was spent: keep it."
            )
        self.key = key

    def close(self) -> None:
        self._db.close()

    # Runs

    @_translate_errors
    def enter(self, wanted: BudgetRequest, data: DataFingerprint, charges: int) -> float:
        """Reserves the budget of a run, once; what is reserved. Refused where a record would pass the limit.

        `charges`: how many are on the ledger; fewer than were seen before are those of an old copy.
        """
        with self._transaction() as db:
            known = db.execute(
                "SELECT number, charges, epsilon, final FROM runs WHERE books = ? AND name = ?",
                (wanted.books, data.name),
            ).fetchone()
            if known is not None and charges < known[1]:
                raise TrustError(
                    f"Expected at least {known[1]} charges in the ledger in {wanted.folder}, which the "
                    f"site's book has seen, got {charges}: an old copy, what was spent since is missing."
                )
            if known is None:
                self._keep(db, data)
                self._expect_room(wanted, self.spent(data))
            if known is not None:
                held = max(_from_column(known[2]), wanted.spent) if known[3] else wanted.epsilon
                db.execute(
                    "UPDATE runs SET epsilon = ?, charges = ? WHERE number = ?",
                    (_to_column(held), charges, known[0]),
                )
                return held
            row = (wanted.books, data.name, wanted.federation, wanted.agent, wanted.folder, _now())
            more = (wanted.guarantee, wanted.adjacency, wanted.delta, _to_column(wanted.epsilon), charges)
            columns = (
                "books, name, federation, agent, folder, begun, guarantee, adjacency, delta, epsilon, charges"
            )
            places = ", ".join("?" * 11)
            db.execute(f"INSERT INTO runs ({columns}) VALUES ({places})", (*row, *more))
            return wanted.epsilon

    def _expect_room(self, wanted: BudgetRequest, before: dict[str, SpentBudget]) -> None:
        limit = self.limit
        after = largest_sum_with(before, (wanted.adjacency, wanted.epsilon, wanted.delta))
        for what, cap, sum, asks in (
            ("epsilon", limit.epsilon, after.epsilon, wanted.epsilon),
            ("delta", limit.delta, after.delta, wanted.delta),
        ):
            if cap is not None and sum > cap * (1 + 1e-9):
                raise BudgetError(
                    f"Expected {what} of all runs on these records to stay within the site's {cap:.6g}, got "
                    f"{sum:.6g}: {after.runs - 1} earlier runs, this one reserves {asks:.6g}. Nothing was "
                    "sent. Start with a smaller --epsilon or other records; see `topdp agent budget show`."
                )

    @_translate_errors
    def raise_to(self, books: str, epsilon: float) -> None:
        """Before a charge that brings a run above what it has reserved. Never refused: its ledger decides."""
        with self._transaction() as db:
            for number, known in db.execute(
                "SELECT number, epsilon FROM runs WHERE books = ?", (books,)
            ).fetchall():
                more = (_to_column(max(_from_column(known), epsilon)), number)
                db.execute("UPDATE runs SET epsilon = ? WHERE number = ?", more)

    @_translate_errors
    def conclude(self, books: str, epsilon: float, charges: int) -> int:
        """A ledger is final: no data enter any more, what it did not spend is free; how many runs it had.

        One ledger has several where it was started with other records in between: each counts whole.
        """
        with self._transaction() as db:
            values = (_to_column(epsilon), charges, books)
            done = db.execute("UPDATE runs SET epsilon = ?, charges = ?, final = 1 WHERE books = ?", values)
        return done.rowcount

    # Sums

    @_translate_errors
    def spent(self, data: DataFingerprint | None = None) -> dict[str, SpentBudget]:
        """{adjacency: what the record that spent most has spent under it}; of all records, or of `data`.

        `mixed`: in terms of replace-one, where records were in runs of both kinds.
        """
        source: dict[bytes, bytes] = dict(self._db.execute("SELECT name, source FROM sets").fetchall())
        together: dict[bytes, set[bytes]] = {}  # sets out of one file
        for name, origin in source.items():
            together.setdefault(origin, set()).add(name)
        touching = set()
        for names, origins in self._touching(data):
            origins |= {source[name] for name in names}
            touching.add(frozenset(names).union(*(together.get(origin, ()) for origin in origins)))
        costs = self._costs()
        if not costs.keys() <= source.keys():
            raise TypeError("a run on records that the book does not know")
        return largest_sums(
            [sum_by_adjacency([cost for name in names for cost in costs.get(name, [])]) for names in touching]
        )

    def _touching(self, data: DataFingerprint | None) -> Iterator[tuple[set[bytes], set[bytes]]]:
        """For every record (of `data`) the sets that it is in, and where else it is known to come from."""
        if data is None:
            rows = self._db.execute("SELECT record, name FROM members ORDER BY record")
            for _, each in groupby(rows, key=itemgetter(0)):
                yield {name for _, name in each}, set()
            return
        for record in data.records:
            rows = self._db.execute("SELECT name FROM members WHERE record = ?", (record,))
            yield {name for (name,) in rows}, {data.source}

    @_translate_errors
    def runs(self) -> list[dict[str, object]]:
        """All runs, in the order in which they were let in."""
        columns = (
            "number, federation, agent, folder, begun, guarantee, adjacency, delta, epsilon, final, records"
        )
        rows = self._db.execute(
            f"SELECT {columns} FROM runs LEFT JOIN sets USING (name) ORDER BY number"
        ).fetchall()
        if any(row[-1] is None for row in rows):
            raise TypeError("a run on records that the book does not know")
        found = [dict(zip(columns.split(", "), row, strict=True)) for row in rows]
        return [{**run, "final": bool(run["final"])} for run in found]

    # Limits

    @property
    @_translate_errors
    def limit(self) -> SiteLimit:
        row = self._db.execute("SELECT epsilon, delta FROM limits ORDER BY number DESC LIMIT 1").fetchone()
        return SiteLimit(*row) if row else SiteLimit()

    @_translate_errors
    def set_limit(self, limit: SiteLimit) -> None:
        """From now on; every earlier one stays on the book."""
        for name, value in (("--epsilon", limit.epsilon), ("--delta", limit.delta)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise LedgerError(f"{name}: expected a finite number > 0, got {value}.")
        with self._transaction() as db:
            db.execute(
                "INSERT INTO limits (time, epsilon, delta) VALUES (?, ?, ?)",
                (_now(), limit.epsilon, limit.delta),
            )

    def _keep(self, db: sqlite3.Connection, data: DataFingerprint) -> None:
        new = db.execute(
            "INSERT OR IGNORE INTO sets VALUES (?, ?, ?)", (data.name, data.source, len(data.records))
        )
        if new.rowcount:
            rows = ((record, data.name) for record in data.records)
            db.executemany("INSERT INTO members VALUES (?, ?)", rows)

    def _costs(self) -> dict[bytes, list[RunCost]]:
        """{set: (adjacency, ε, δ) of each of its runs}"""
        found: dict[bytes, list[RunCost]] = {}
        rows = self._db.execute("SELECT name, adjacency, epsilon, delta FROM runs")
        for name, adjacency, epsilon, delta in rows:
            found.setdefault(name, []).append((adjacency, _from_column(epsilon), delta))
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, one process at a time, on disk when it ends."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _to_column(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _from_column(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _now() -> str:
    """For people: nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")

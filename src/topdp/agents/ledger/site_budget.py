"""The site budget: the total privacy cost of all runs on the same records, over all federations.

Each agent has its own ledger for each run; the site budget sums their costs. Before its first release a run
reserves its whole budget here. When the ledger of a run is final, the run counts with what it spent. The unit
is a record: a run counts for the records that were in it, and a limit applies to the record that has spent
most. Without a limit, runs are only recorded. The site budget never leaves the site.

**Guarantees.** For every record, ε and δ of the runs that the record was in are added (`spent_sums`). Each ε
is under the guarantee of its run, so the sum holds against observers that see in every run no more than that
guarantee covers. A run whose noise can be reproduced, or that records gradients without noise (seeded noise,
canaries), has no finite ε. A reservation is on disk before the first release, and is raised before a charge
exceeds it. Only a final ledger releases the unspent part of a reservation.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from topdp.agents.ledger.ledger_database import READ_ERRORS, connect, execute_all, transaction
from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError
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
LOCK_TIMEOUT_SECONDS = 60.0

# `books` identifies the ledger of a run; `name` identifies a data set.
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

UNUSABLE_MESSAGES = ("locked", "readonly", "full", "unable to open", "Permission")


@dataclass(frozen=True, kw_only=True)
class BudgetRequest:
    """A run's request to reserve its budget. `ledger_id` identifies the run's ledger after a restart."""

    ledger_id: str
    federation: str
    agent: str
    folder: str
    guarantee: str
    adjacency: str
    delta: float
    epsilon: float  # the run's whole budget, or what it has spent if that is more; may be infinite
    spent: float = 0.0


@dataclass(frozen=True)
class SiteLimit:
    """The largest ε and δ that all runs on one record may spend together; None: no limit."""

    epsilon: float | None = None
    delta: float | None = None


class SiteBudget:
    """The site budget in one file for all agents of a site. Several processes may use it at once.

    With `writable=False`, the file must exist and is only read.
    """

    def __init__(self, folder: Path, writable: bool = True) -> None:
        self.folder = folder
        path = folder / SITE_BUDGET_FILE
        with self._errors():
            if writable:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not path.exists():
                raise LedgerError(f"Expected a site budget in {folder}, but there is none: agents create it.")
            self._db = connect(path, writable, LOCK_TIMEOUT_SECONDS)
            if writable:
                with transaction(self._db) as db:
                    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                        execute_all(db, SITE_BUDGET_TABLES)
                        facts = {"format": str(SITE_BUDGET_FORMAT), "key": secrets.token_hex(32)}
                        db.executemany("INSERT INTO meta VALUES (?, ?)", list(facts.items()))
            meta = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
            self.key = bytes.fromhex(meta.get("key", ""))
        if meta.get("format") != str(SITE_BUDGET_FORMAT):
            raise LedgerError(
                f"Expected a site budget of format {SITE_BUDGET_FORMAT} in {folder}, got "
                f"{meta.get('format')}: another version of topdp wrote it. Use that version, and keep the "
                "file: what it records was spent."
            )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate errors of the file system and SQLite, and impossible values, into topdp's errors."""
        try:
            yield
        except TopdpError:
            raise
        except (OSError, *READ_ERRORS, TypeError, KeyError, ValueError) as error:
            text = str(error)
            if isinstance(error, OSError) or any(words in text for words in UNUSABLE_MESSAGES):
                raise LedgerError(
                    f"Could not use the site budget in {self.folder}: {text}. Nothing was sent. Make the "
                    "folder writable, or name another one with --site."
                ) from error
            raise TamperedError(
                f"The site budget in {self.folder} is damaged ({text:.200}). Do not delete it: what it "
                "records was spent."
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), transaction(self._db) as db:
            yield db

    # Runs

    def reserve(self, request: BudgetRequest, data: DataFingerprint, charges: int) -> float:
        """Reserve the budget of a run and return the reserved ε. A repeated request reserves nothing more.

        Raise BudgetError if the run would exceed the site's limit. `charges` is the number of charges in the
        run's ledger; raise TrustError if it is smaller than at an earlier request, because the ledger is then
        an old copy.
        """
        with self._writing() as db:
            run = db.execute(
                "SELECT number, charges, epsilon, final FROM runs WHERE books = ? AND name = ?",
                (request.ledger_id, data.name),
            ).fetchone()
            if run is None:
                self._add_records(db, data)
                self._expect_within_limit(request, self.spent(data))
                row = {**asdict(request), "name": data.name, "begun": _now(), "charges": charges}
                row |= {"books": row.pop("ledger_id"), "epsilon": _to_column(request.epsilon)}
                del row["spent"]
                placeholders = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO runs ({', '.join(row)}) VALUES ({placeholders})", [*row.values()])
                return request.epsilon
            number, recorded_charges, epsilon, final = run
            if charges < recorded_charges:
                raise TrustError(
                    f"Expected at least {recorded_charges} charges in the ledger in {request.folder}, as the "
                    f"site budget records, got {charges}: the ledger is an old copy, which lacks what was "
                    "spent since. Restore the newest copy."
                )
            reserved = max(_from_column(epsilon), request.spent) if final else request.epsilon
            db.execute(
                "UPDATE runs SET epsilon = ?, charges = ? WHERE number = ?",
                (_to_column(reserved), charges, number),
            )
            return reserved

    def _expect_within_limit(self, request: BudgetRequest, before: dict[str, SpentBudget]) -> None:
        limit = self.limit
        after = largest_sum_with(before, (request.adjacency, request.epsilon, request.delta))
        for quantity, cap, total, requested in (
            ("epsilon", limit.epsilon, after.epsilon, request.epsilon),
            ("delta", limit.delta, after.delta, request.delta),
        ):
            if cap is not None and total > cap * (1 + 1e-9):
                raise BudgetError(
                    f"Expected {quantity} of all runs on these records to stay within the site's {cap:.6g}, "
                    f"got {total:.6g}: {after.runs - 1} earlier runs, this one reserves {requested:.6g}. "
                    "Nothing was sent. Start with a smaller --epsilon or other records; see `topdp agent "
                    "budget show`."
                )

    def raise_reservation(self, ledger_id: str, epsilon: float) -> None:
        """Raise the reservation of a run before a charge exceeds it.

        Ignores the site's limit: the ledger decides whether the charge is allowed.
        """
        with self._writing() as db:
            runs = db.execute("SELECT number, epsilon FROM runs WHERE books = ?", (ledger_id,)).fetchall()
            for number, reserved in runs:
                raised = _to_column(max(_from_column(reserved), epsilon))
                db.execute("UPDATE runs SET epsilon = ? WHERE number = ?", (raised, number))

    def finalize(self, ledger_id: str, epsilon: float, charges: int) -> int:
        """Record that a ledger is final, and release what it did not spend. Return its number of runs.

        `epsilon` is the ε that the ledger spent. A ledger has several runs if it was restarted with other
        records; `epsilon` counts in full for each of them.
        """
        with self._writing() as db:
            values = (_to_column(epsilon), charges, ledger_id)
            return db.execute(
                "UPDATE runs SET epsilon = ?, charges = ?, final = 1 WHERE books = ?", values
            ).rowcount

    # Sums

    def spent(self, data: DataFingerprint | None = None) -> dict[str, SpentBudget]:
        """Map each adjacency to the largest sums that a record has spent under that adjacency.

        Considers the records of `data`, or all records if `data` is None. The key `mixed` stands for records
        that were in runs of both adjacencies; its sums are under replace-one.
        """
        with self._errors():
            source: dict[bytes, bytes] = dict(self._db.execute("SELECT name, source FROM sets").fetchall())
            sets_of_source: dict[bytes, set[bytes]] = {}
            for name, origin in source.items():
                sets_of_source.setdefault(origin, set()).add(name)
            groups = set()
            for names, origins in self._memberships(data):
                origins |= {source[name] for name in names}
                groups.add(frozenset(names).union(*(sets_of_source.get(origin, ()) for origin in origins)))
            costs = self._costs()
            if not costs.keys() <= source.keys():
                raise TypeError("a run on records that are not recorded")
            return largest_sums(
                [
                    sum_by_adjacency([cost for name in names for cost in costs.get(name, [])])
                    for names in groups
                ]
            )

    def _memberships(self, data: DataFingerprint | None) -> Iterator[tuple[set[bytes], set[bytes]]]:
        """Yield for every record (of `data`) the data sets that contain it, and its further sources."""
        if data is None:
            rows = self._db.execute("SELECT record, name FROM members ORDER BY record")
            for _, members in groupby(rows, key=itemgetter(0)):
                yield {name for _, name in members}, set()
            return
        for record in data.records:
            rows = self._db.execute("SELECT name FROM members WHERE record = ?", (record,))
            yield {name for (name,) in rows}, {data.source}

    def runs(self) -> list[dict[str, object]]:
        """Return the recorded columns of all runs, oldest first."""
        columns = (
            "number, federation, agent, folder, begun, guarantee, adjacency, delta, epsilon, final, records"
        )
        with self._errors():
            rows = self._db.execute(
                f"SELECT {columns} FROM runs LEFT JOIN sets USING (name) ORDER BY number"
            ).fetchall()
            if any(row[-1] is None for row in rows):
                raise TypeError("a run on records that are not recorded")
        runs = [dict(zip(columns.split(", "), row, strict=True)) for row in rows]
        return [{**run, "final": bool(run["final"])} for run in runs]

    # Limits

    @property
    def limit(self) -> SiteLimit:
        query = "SELECT epsilon, delta FROM limits ORDER BY number DESC LIMIT 1"
        with self._errors():
            row = self._db.execute(query).fetchone()
            return SiteLimit(*row) if row else SiteLimit()

    def set_limit(self, limit: SiteLimit) -> None:
        """Set the limit for all reservations from now on. Earlier limits stay recorded in the file."""
        for name, value in (("--epsilon", limit.epsilon), ("--delta", limit.delta)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise LedgerError(f"{name}: expected a finite number > 0, got {value}.")
        with self._writing() as db:
            db.execute(
                "INSERT INTO limits (time, epsilon, delta) VALUES (?, ?, ?)",
                (_now(), limit.epsilon, limit.delta),
            )

    def _add_records(self, db: sqlite3.Connection, data: DataFingerprint) -> None:
        new = db.execute(
            "INSERT OR IGNORE INTO sets VALUES (?, ?, ?)", (data.name, data.source, len(data.records))
        )
        if new.rowcount:
            rows = ((record, data.name) for record in data.records)
            db.executemany("INSERT INTO members VALUES (?, ?)", rows)

    def _costs(self) -> dict[bytes, list[RunCost]]:
        """Map the name of each data set to (adjacency, ε, δ) of each of its runs."""
        costs: dict[bytes, list[RunCost]] = {}
        rows = self._db.execute("SELECT name, adjacency, epsilon, delta FROM runs")
        for name, adjacency, epsilon, delta in rows:
            costs.setdefault(name, []).append((adjacency, _from_column(epsilon), delta))
        return costs


def _to_column(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _from_column(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _now() -> str:
    """Return the current time (ISO 8601, UTC). It is shown to people; no decision depends on it."""
    return datetime.now(UTC).isoformat(timespec="seconds")

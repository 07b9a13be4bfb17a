"""The site budget: the total privacy cost of all runs on the same records, over all federations.

Each agent has its own ledger for each run; the site budget sums their costs. Before its first release a run
reserves its whole budget here. When the ledger of a run is final, the run counts with what it spent. The unit
is a record, or a person if the runs protect persons: a run counts for the records (or persons) that were in
it, and a limit applies to the one that has spent most. Runs with different units are refused. Without a
limit, runs are only recorded. The site budget never leaves the site.

**Guarantees.** For every record, ε and δ of the runs that the record was in are added (basic composition,
which also holds where each run and its budget are chosen after seeing the earlier ones; Rogers et al. 2016,
arXiv:1605.08294). Where a record was in runs under add-remove and under replace-one, the former count as (2ε,
(1+e^ε)δ): replacing is removing and adding. Each ε is under the guarantee of its run, so the sum holds
against observers that see in every run no more than that guarantee covers. A run whose noise can be
reproduced, or that records gradients without noise (seeded noise, canaries), has no finite ε. A reservation
is on disk before the first release, and is raised before a charge exceeds it. Only a final ledger releases
the unspent part of a reservation.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from topdp.agents.ledger.ledger_database import READ_ERRORS, connect, execute_file, transaction
from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError, finite_or_none, infinite_if_none
from topdp.agents.ledger.record_fingerprints import DataFingerprint
from topdp.errors import BudgetError, TopdpError, TrustError

SITE_BUDGET_FILE = "site.sqlite"
SITE_BUDGET_FORMATS = {"1": "record", "2": "person"}
"""The unit of protection of all runs in a site budget, by the format of its file."""
LOCK_TIMEOUT_SECONDS = 60.0

UNUSABLE_MESSAGES = ("locked", "readonly", "full", "unable to open", "Permission")


RunCost = tuple[str, float, float]  # adjacency, ε, δ


class _NotKept(Exception):  # noqa: N818 - not a fault
    """Ends a transaction whose changes are not kept."""


@dataclass(frozen=True)
class SpentBudget:
    """The sums of ε and δ over runs, and the number of runs."""

    epsilon: float = 0.0
    delta: float = 0.0
    runs: int = 0


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
                        execute_file(db, "site_budget.sql")
                        facts = {"format": "1", "key": secrets.token_hex(32)}
                        db.executemany("INSERT INTO meta VALUES (?, ?)", list(facts.items()))
            meta = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
            self.key = bytes.fromhex(meta.get("key", ""))
        if meta.get("format") not in SITE_BUDGET_FORMATS:
            raise LedgerError(
                f"Expected a site budget of format {' or '.join(SITE_BUDGET_FORMATS)} in {folder}, got "
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

        Raise BudgetError if the run would exceed the site's limit; nothing is recorded then. `charges` is the
        number of charges in the run's ledger; raise TrustError if it is smaller than at an earlier request,
        because the ledger is then an old copy.
        """
        with self._writing() as db:
            self._expect_unit(db, data.unit)
            run = db.execute(
                "SELECT number, charges, epsilon, final FROM runs WHERE books = ? AND name = ?",
                (request.ledger_id, data.name),
            ).fetchone()
            if run is None:
                self._insert(db, request, data, charges)
                return request.epsilon
            number, recorded_charges, epsilon, final = run
            if charges < recorded_charges:
                raise TrustError(
                    f"Expected at least {recorded_charges} charges in the ledger in {request.folder}, as the "
                    f"site budget records, got {charges}: the ledger is an old copy, which lacks what was "
                    "spent since. Restore the newest copy."
                )
            reserved = max(infinite_if_none(epsilon), request.spent) if final else request.epsilon
            query = "UPDATE runs SET epsilon = ?, charges = ? WHERE number = ?"
            db.execute(query, (finite_or_none(reserved), charges, number))
            return reserved

    def expect_room(self, request: BudgetRequest, data: DataFingerprint) -> None:
        """Raise BudgetError if the run cannot be reserved now. Record nothing."""
        query = "SELECT 1 FROM runs WHERE books = ? AND name = ?"
        with suppress(_NotKept), self._writing() as db:
            self._expect_unit(db, data.unit)
            if not db.execute(query, (request.ledger_id, data.name)).fetchone():
                self._insert(db, request, data, 0)
            raise _NotKept

    def _insert(
        self, db: sqlite3.Connection, request: BudgetRequest, data: DataFingerprint, charges: int
    ) -> None:
        """Insert a run. Raise BudgetError if it exceeds the site's limit."""
        data_set = (data.name, data.source, len(data.records))
        if db.execute("INSERT OR IGNORE INTO sets VALUES (?, ?, ?)", data_set).rowcount:
            members = ((record, data.name) for record in data.records)
            db.executemany("INSERT INTO members VALUES (?, ?)", members)
        row = {**asdict(request), "name": data.name, "begun": _now(), "charges": charges}
        row |= {"books": row.pop("ledger_id"), "epsilon": finite_or_none(request.epsilon)}
        del row["spent"]
        placeholders = ", ".join("?" * len(row))
        db.execute(f"INSERT INTO runs ({', '.join(row)}) VALUES ({placeholders})", [*row.values()])
        self._expect_within_limit(request, data)

    @property
    def unit(self) -> str:
        """The unit of protection of all runs: record or person."""
        with self._errors():
            return self._unit(self._db)

    def _unit(self, db: sqlite3.Connection) -> str:
        return SITE_BUDGET_FORMATS[db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()[0]]

    def _expect_unit(self, db: sqlite3.Connection, unit: str) -> None:
        """Raise LedgerError if earlier runs have another unit of protection than `unit`."""
        earlier = self._unit(db)
        if unit == earlier:
            return
        if db.execute("SELECT 1 FROM runs").fetchone():
            raise LedgerError(
                f'Expected privacy.unit = "{earlier}", as in all earlier runs of the site budget in '
                f'{self.folder}, got "{unit}": what records and what persons spent cannot be added. Use the '
                "same unit. Another folder (--site) is right only for data about other people."
            )
        (number,) = (number for number, name in SITE_BUDGET_FORMATS.items() if name == unit)
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (number,))

    def _expect_within_limit(self, request: BudgetRequest, data: DataFingerprint) -> None:
        """Raise BudgetError if a record of `data` has spent more than the limit, with this run."""
        limit, sums = self.limit, self.spent(data).values()
        for quantity, cap, total, requested in (
            ("epsilon", limit.epsilon, max(spent.epsilon for spent in sums), request.epsilon),
            ("delta", limit.delta, max(spent.delta for spent in sums), request.delta),
        ):
            if cap is not None and total > cap * (1 + 1e-9):
                raise BudgetError(
                    f"Expected {quantity} of all runs on these records to stay within the site's {cap:.6g}, "
                    f"got {total:.6g}: {max(spent.runs for spent in sums) - 1} earlier runs, this one "
                    f"reserves {requested:.6g}. Nothing was sent. Start with a smaller --epsilon or other "
                    "records; see `topdp agent budget show`."
                )

    def raise_reservation(self, ledger_id: str, epsilon: float) -> None:
        """Raise the reservation of a run before a charge exceeds it.

        Ignores the site's limit: the ledger decides whether the charge is allowed.
        """
        with self._writing() as db:
            runs = db.execute("SELECT number, epsilon FROM runs WHERE books = ?", (ledger_id,)).fetchall()
            for number, reserved in runs:
                raised = finite_or_none(max(infinite_if_none(reserved), epsilon))
                db.execute("UPDATE runs SET epsilon = ? WHERE number = ?", (raised, number))

    def finalize(self, ledger_id: str, epsilon: float, charges: int) -> int:
        """Record that a ledger is final, and release what it did not spend. Return its number of runs.

        `epsilon` is the ε that the ledger spent. A ledger has several runs if it was restarted with other
        records; `epsilon` counts in full for each of them.
        """
        with self._writing() as db:
            query = "UPDATE runs SET epsilon = ?, charges = ?, final = 1 WHERE books = ?"
            return db.execute(query, (finite_or_none(epsilon), charges, ledger_id)).rowcount

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
            costs: dict[bytes, list[RunCost]] = {}  # by data set
            rows = self._db.execute("SELECT name, adjacency, epsilon, delta FROM runs")
            for name, adjacency, epsilon, delta in rows:
                costs.setdefault(name, []).append((adjacency, infinite_if_none(epsilon), delta))
            if not costs.keys() <= source.keys():
                raise TypeError("a run on records that are not recorded")
            costs_of_records = ([cost for name in names for cost in costs.get(name, [])] for names in groups)
            return largest_sums([sum_by_adjacency(each) for each in costs_of_records])

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
        query = f"SELECT {columns} FROM runs LEFT JOIN sets USING (name) ORDER BY number"
        with self._errors():
            rows = self._db.execute(query).fetchall()
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
            query = "INSERT INTO limits (time, epsilon, delta) VALUES (?, ?, ?)"
            db.execute(query, (_now(), limit.epsilon, limit.delta))


def copy_site_budget(source: Path, target: Path) -> None:
    """Copy the site budget in the folder `source` to the folder `target`, which has none."""
    copy = target / f"{SITE_BUDGET_FILE}.copy"
    copy.unlink(missing_ok=True)
    with closing(connect(source / SITE_BUDGET_FILE, False)) as old, closing(connect(copy, True)) as new:
        old.backup(new)
    copy.replace(target / SITE_BUDGET_FILE)


def as_replace_one(adjacency: str, epsilon: float, delta: float) -> tuple[float, float]:
    """Return (ε, δ) of a run under replace-one, given its (ε, δ) under `adjacency`.

    >>> as_replace_one("replace-one", 1.0, 1e-5), as_replace_one("add-remove", 0.5, 0.0)
    ((1.0, 1e-05), (1.0, 0.0))
    """
    if adjacency == "replace-one":
        return epsilon, delta
    # Removing and adding: two steps; Dwork and Roth 2014, Theorem 2.2 and the remark on δ.
    factor = 1 + math.exp(epsilon) if epsilon < 700 else math.inf
    return 2 * epsilon, min(1.0, delta * factor) if delta else 0.0


def sum_by_adjacency(costs: list[RunCost]) -> dict[str, SpentBudget]:
    """Map adjacency to what a record in these runs has spent; `mixed` if the runs have both adjacencies."""
    kinds = {adjacency for adjacency, _, _ in costs}
    if len(kinds) > 1:
        costs = [("mixed", *as_replace_one(*cost)) for cost in costs]
    return {
        kind: SpentBudget(
            math.fsum(epsilon for _, epsilon, _ in costs),
            math.fsum(delta for *_, delta in costs),
            len(costs),
        )
        for kind in {adjacency for adjacency, _, _ in costs}
    }


def largest_sums(records: list[dict[str, SpentBudget]]) -> dict[str, SpentBudget]:
    """Return for each adjacency (or `mixed`) the largest ε, δ and number of runs over all records."""
    largest: dict[str, SpentBudget] = {}
    for sums in records:
        for kind, spent in sums.items():
            other = largest.get(kind, SpentBudget())
            largest[kind] = SpentBudget(
                max(spent.epsilon, other.epsilon), max(spent.delta, other.delta), max(spent.runs, other.runs)
            )
    return largest


def _now() -> str:
    """Return the current time (ISO 8601, UTC). It is shown to people; no decision depends on it."""
    return datetime.now(UTC).isoformat(timespec="seconds")

"""The SQLite file of an agent: how it is opened, locked and written, and what is said when it cannot be.

Tables and transactions only; what they mean is in `ledger` and `pairing`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from topdp.errors import InputError, TopdpError, TrustError

FILE = "ledger.sqlite"
FORMAT = 4
SYNCHRONOUS = "FULL"  # tests that only pretend to crash may turn it off

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE charges (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE outbox (
    receiver TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB,
    PRIMARY KEY (receiver, round));
CREATE TABLE inbox (
    sender TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB, applied INTEGER,
    PRIMARY KEY (sender, round));
CREATE TABLE peers (
    name TEXT PRIMARY KEY, quarantined TEXT, quarantined_for TEXT, finished INTEGER, told INTEGER)
WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), round INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE pairs (
    id TEXT PRIMARY KEY, partner TEXT NOT NULL, role TEXT NOT NULL, status TEXT NOT NULL,
    own_round INTEGER NOT NULL, partner_round INTEGER, told INTEGER NOT NULL DEFAULT 0, applied INTEGER);
CREATE TABLE statements (
    number INTEGER PRIMARY KEY, author TEXT NOT NULL, run TEXT NOT NULL, about TEXT NOT NULL,
    text TEXT NOT NULL, signature TEXT NOT NULL, UNIQUE (author, run, about));
"""


class LedgerError(InputError):
    """A ledger that cannot be used, and what to do about it."""


class TamperedError(TrustError):
    """A ledger that is damaged or contradicts itself."""


class Database:
    """One file, one process. WAL and `synchronous=FULL`: what is committed survives a power cut."""

    def __init__(self, folder: Path, identity: Mapping[str, str], writable: bool = True) -> None:
        """`identity`: what the file belongs to, such as federation and agent; another one is refused."""
        self.folder = folder
        self._lock: IO[str] | None = None
        self._db: sqlite3.Connection | None = None
        try:
            if writable:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock = _locked(folder)
            elif not (folder / FILE).exists():
                raise LedgerError(
                    f"Expected a ledger in {folder}, there is none: `topdp agent start` makes it."
                )
            self._db = _connect(folder / FILE, writable)
            if writable and not self.rows("SELECT 1 FROM sqlite_master"):
                with self.transaction() as db:
                    for statement in SCHEMA.split(";\n"):
                        db.execute(statement)
                    facts = {"format": str(FORMAT), **identity}
                    db.executemany("INSERT INTO meta VALUES (?, ?)", list(facts.items()))
            found = self.rows("SELECT key, value FROM meta")
            self.meta = {str(key): str(value) for key, value in found}
            self._expect(identity)
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise unusable(folder, error) from error
        except BaseException:
            self.close()
            raise

    def _expect(self, identity: Mapping[str, str]) -> None:
        if self.meta.get("format") != str(FORMAT):
            raise LedgerError(
                f"Expected a ledger of format {FORMAT} in {self.folder}, got {self.meta.get('format')}: "
                "another version of topdp has written it, and can read it. Its charges were spent: keep it."
            )
        for key, value in identity.items():
            if self.meta.get(key) != value:
                raise LedgerError(
                    f"Expected {key} = {value} in the ledger in {self.folder}, got {self.meta.get(key)}. "
                    "Every federation and agent has a state folder of its own: name another one."
                )

    @property
    def connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise LedgerError(f"The ledger in {self.folder} is closed.")
        return self._db

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise unusable(self.folder, error) from error

    def one(self, query: str, *values: object) -> tuple[object, ...] | None:
        return next(iter(self.rows(query, *values)), None)

    def remember(self, key: str, value: str) -> None:
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        self.meta[key] = value

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on disk when it ends."""
        db = self.connection
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise unusable(self.folder, error) from error

    def close(self) -> None:
        """Also how a test abandons an agent: what is not committed is gone."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _connect(path: Path, writable: bool) -> sqlite3.Connection:
    mode = "rwc" if writable else "ro"
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
    if writable:
        os.chmod(path, 0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    return db


def _locked(folder: Path) -> IO[str]:
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise LedgerError(
            f"Another process uses {folder}: one agent per state folder. Stop it, or name another folder."
        ) from None
    return file


# SQLite has one code for a statement that is wrong and for a table that is gone; ours are not wrong.
SIGNS_OF_DAMAGE = ("malformed", "not a database", "no such table", "no such column")


def unusable(folder: Path, error: Exception) -> TopdpError:
    """What the file system or SQLite said, and what to do."""
    text = str(error)
    if any(words in text for words in SIGNS_OF_DAMAGE):
        return TamperedError(
            f"{folder / FILE} is damaged ({text}). Do not delete it: its charges were spent."
        )
    hint = "Make room on the disk" if "full" in text or "space" in text else "Make the folder writable"
    return LedgerError(
        f"Could not use the ledger in {folder}: {text}. Nothing was sent for it. {hint} and start again."
    )

"""The SQLite file of an agent: how it is opened, locked and written, and what is said when it cannot be.

Files and transactions only; tables are in `schema`, what they mean in `ledger` and `pairing`. A file of an
older format is brought to the present one when it is opened for writing, after a copy was laid aside.

**Guarantees.** What is committed survives a power cut. Who only reads sees one moment, from opening to
closing, whatever the agent writes meanwhile; and changes nothing, old files included. Nothing is written
after charges that do not follow from each other.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from topdp.agents.ledger import event_journal, ledger_schema
from topdp.agents.ledger.hash_chain import first_broken_link, genesis_hash
from topdp.agents.ledger.ledger_schema import LEDGER_FORMAT, OLDEST_LEDGER_FORMAT
from topdp.base.files import atomic_path
from topdp.errors import InputError, TopdpError, TrustError

LEDGER_FILE = "ledger.sqlite"
SYNCHRONOUS_MODE = "FULL"  # tests that only pretend to crash may turn it off


class LedgerError(InputError):
    """A ledger that cannot be used, and what to do about it."""


class TamperedError(TrustError):
    """A ledger that is damaged or contradicts itself."""


class LedgerDatabase:
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
            elif not (folder / LEDGER_FILE).exists():
                raise LedgerError(
                    f"Expected a ledger in {folder}, there is none: `topdp agent start` makes it."
                )
            self._db = self._written(identity) if writable else self._read()
            found = self.rows("SELECT key, value FROM meta")
            self.meta = {str(key): str(value) for key, value in found}
            self._expect(identity)
        except (OSError, *READ_ERRORS) as error:
            self.close()
            raise database_error(folder, error) from error
        except BaseException:
            self.close()
            raise

    def _written(self, identity: Mapping[str, str]) -> sqlite3.Connection:
        """The file, made or brought to the present format where that is needed."""
        db = self._db = _connect(self.folder / LEDGER_FILE, writable=True)
        if not self.rows("SELECT 1 FROM sqlite_master"):
            with self.transaction():
                ledger_schema.create_tables(db, dict(identity))
        elif (format := self._format()) < LEDGER_FORMAT:
            with atomic_path(self.folder / f"{LEDGER_FILE}.format-{format}", 0o600) as beside:
                copy = sqlite3.connect(beside)
                db.backup(copy)
                copy.close()
            self._expect_whole_chain()
            with self.transaction():
                ledger_schema.migrate_tables(db, format)
        else:
            self._expect_whole_chain()
        return db

    def _expect_whole_chain(self) -> None:
        """Nothing is built on what was tampered with: the next charge would hide it, or count from it."""
        meta = {str(key): str(value) for key, value in self.rows("SELECT key, value FROM meta")}
        rows = self.rows("SELECT entry, hash FROM charges ORDER BY number")
        place = first_broken_link(genesis_hash(meta), ((str(text), str(hash)) for text, hash in rows))
        if place is not None:
            raise TamperedError(
                f"Charge {place} in {self.folder / LEDGER_FILE} does not follow from the one before: "
                "it or an "
                "earlier one was changed. Do not delete it: its charges were spent."
            )

    def _read(self) -> sqlite3.Connection:
        """One moment of the file; of an older format, a copy in memory, brought to the present one."""
        db = self._db = _connect(self.folder / LEDGER_FILE, writable=False)
        db.execute("BEGIN")
        if not self.rows("SELECT 1 FROM sqlite_master"):
            raise LedgerError(f"Expected a ledger in {self.folder}, it is being made: ask again in a moment.")
        if (format := self._format()) < LEDGER_FORMAT:
            copy = sqlite3.connect(":memory:", isolation_level=None)
            db.backup(copy)
            db.close()
            ledger_schema.migrate_tables(copy, format)
            return copy
        return db

    def _format(self) -> int:
        """The format of the file, if it can be read here."""
        found = self.one("SELECT value FROM meta WHERE key = 'format'")
        text = str(found[0]) if found else "none"
        if not (text.isdecimal() and OLDEST_LEDGER_FORMAT <= int(text) <= LEDGER_FORMAT):
            raise LedgerError(
                f"Expected a ledger of format {OLDEST_LEDGER_FORMAT} to {LEDGER_FORMAT} in "
                f"{self.folder}, got {text}: another "
                "version of topdp has written it, and can read it. Its charges were spent: keep it."
            )
        return int(text)

    def _expect(self, identity: Mapping[str, str]) -> None:
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
        except READ_ERRORS as error:
            raise database_error(self.folder, error) from error

    def one(self, query: str, *values: object) -> tuple[object, ...] | None:
        return next(iter(self.rows(query, *values)), None)

    def remember(self, key: str, value: str) -> None:
        """A fact of the run, in the place of what was known of it before."""
        with self.transaction() as db:
            event_journal.set_fact(db, key, value)
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
        except READ_ERRORS as error:
            raise database_error(self.folder, error) from error

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
        db.execute(f"PRAGMA synchronous = {SYNCHRONOUS_MODE}")
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
DAMAGE_MESSAGES = ("malformed", "not a database", "no such table", "no such column", "decode", "unsupported")

READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; the second where what it has to say quotes bytes that are no text."""


def database_error(folder: Path, error: Exception) -> TopdpError:
    """What the file system or SQLite said, and what to do."""
    text = str(error)
    if any(words in text for words in DAMAGE_MESSAGES):
        return TamperedError(
            f"{folder / LEDGER_FILE} is damaged ({text}). Do not delete it: its charges were spent."
        )
    hint = "Make room on the disk" if "full" in text or "space" in text else "Make the folder writable"
    return LedgerError(
        f"Could not use the ledger in {folder}: {text}. Nothing was sent for it. {hint} and start again."
    )

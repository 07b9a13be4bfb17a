"""The SQLite file of an agent's ledger: its format, lock and transactions.

The tables are in `ledger.sql`; what they mean is described in `ledger`, `event_journal`, `notice_store` and
`pairing_records`. A file of another format is refused and not changed.

**Guarantees.** Committed data survive a power cut. A process that opens the file for reading sees a
consistent snapshot from opening to closing, whatever the agent writes meanwhile, and changes nothing. Nothing
is written after charges whose hash chain is broken.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

from topdp.agents.ledger import event_journal
from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError, chain_hash, genesis_hash
from topdp.base.files import FileError, LockHeldError, exclusive_lock
from topdp.errors import TopdpError

LEDGER_FILE = "ledger.sqlite"
LOCK_FILE = "lock"
SYNCHRONOUS_MODE = "FULL"  # tests that only simulate a crash turn it off

LEDGER_FORMAT = 5

# SQLite uses one code for a wrong statement and for a missing table; the statements here are tested.
DAMAGE_MESSAGES = ("malformed", "not a database", "no such table", "no such column", "decode", "unsupported")

READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors raised by SQLite: UnicodeDecodeError occurs when its message quotes bytes that are not text."""


class LedgerDatabase:
    """The SQLite file of a ledger, written by one process at a time.

    WAL and `synchronous=FULL` make committed data survive a power cut.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str], writable: bool = True) -> None:
        """Open the file in `folder`; raise LedgerError if it belongs to another `identity`.

        `identity`: the facts in `meta` that identify the ledger, such as federation and agent. If empty, the
        file must exist.
        """
        self.folder = folder
        self._resources = ExitStack()
        self._db: sqlite3.Connection | None = None
        try:
            if not (identity or (folder / LEDGER_FILE).exists()):
                raise LedgerError(
                    f"Expected a ledger in {folder}, but there is none: `topdp agent start` creates it."
                )
            if writable:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock()
            self._open(identity, writable)
            self.meta = self._read_meta()
            for key, value in identity.items():
                if self.meta.get(key) != value:
                    raise LedgerError(
                        f"Expected {key} = {value} in the ledger in {folder}, got {self.meta.get(key)}. "
                        "Every federation and agent has a state folder of its own: name another one."
                    )
        except (OSError, *READ_ERRORS) as error:
            self.close()
            raise database_error(folder, error) from error
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            has_locks = self._resources.enter_context(exclusive_lock(self.folder / LOCK_FILE))
        except LockHeldError:
            raise LedgerError(
                f"Another process uses {self.folder}: one agent per state folder. Stop it, or name another "
                "folder."
            ) from None
        except FileError as error:
            raise database_error(self.folder, error.__cause__ or error) from None
        if not has_locks:
            raise LedgerError(
                f"Expected a file system with locks in {self.folder}, got one without: two agents could use "
                "one ledger. Name a folder on a local disk."
            )

    def _open(self, identity: Mapping[str, str], writable: bool) -> None:
        """Open the file, and create it if it is new. A reader gets a snapshot of it."""
        db = self._db = connect(self.folder / LEDGER_FILE, writable)
        db.execute("PRAGMA journal_mode = WAL" if writable else "BEGIN")
        if self.rows("SELECT 1 FROM sqlite_master"):
            format = self.one("SELECT value FROM meta WHERE key = 'format'")
            if format != (str(LEDGER_FORMAT),):
                raise LedgerError(
                    f"Expected a ledger of format {LEDGER_FORMAT} in {self.folder}, got "
                    f"{format[0] if format else 'none'}: another version of topdp wrote it. Use that "
                    "version, and keep the file: its charges were spent."
                )
            self.expect_chain(last_only=not writable)
        elif identity:
            with self.transaction():
                execute_file(db, "ledger.sql")
                for key, value in {"format": str(LEDGER_FORMAT), **identity}.items():
                    event_journal.set_fact(db, key, value)
        else:
            raise LedgerError(
                f"Expected a ledger in {self.folder}, but it is being created. Try again in a moment."
            )

    def expect_chain(self, last_only: bool = False) -> None:
        """Raise TamperedError if the hash chain is broken; `last_only`: check only its last link.

        The next charge would hide the fault, or continue from a wrong total.
        """
        query = "SELECT entry, hash FROM charges ORDER BY number DESC LIMIT ?"
        rows = [(str(text), str(stored)) for text, stored in self.rows(query, 2 if last_only else -1)[::-1]]
        head = genesis_hash(self._read_meta())
        if last_only and len(rows) == 2:
            head = rows.pop(0)[1]
        for position, (text, stored) in enumerate(rows):
            head = chain_hash(head, text)
            if head != stored:
                raise TamperedError(
                    f"{'The last charge' if last_only else f'Charge {position}'} in "
                    f"{self.folder / LEDGER_FILE} does not follow from the previous one: it or an earlier "
                    "one was changed. Do not delete the file: its charges were spent."
                )

    def _read_meta(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in self.rows("SELECT key, value FROM meta")}

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
        """Return the first row of the result, or None if the result is empty."""
        return next(iter(self.rows(query, *values)), None)

    def remember(self, key: str, value: str) -> None:
        """Record a fact of the run. It replaces the earlier value of the same key."""
        with self.transaction() as db:
            event_journal.set_fact(db, key, value)
        self.meta[key] = value

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Execute the block as a transaction: all changes or none, and on disk when the block ends."""
        db = self.connection
        try:
            with transaction(db):
                yield db
        except READ_ERRORS as error:
            raise database_error(self.folder, error) from error

    def close(self) -> None:
        """Close the file and release the lock. Uncommitted changes are discarded."""
        if self._db is not None:
            self._db.close()
            self._db = None
        self._resources.close()


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commit the changes of the block, or undo all of them. Wait for other writers of the file."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def connect(path: Path, writable: bool, timeout: float = 5.0) -> sqlite3.Connection:
    """Open an SQLite file whose commits survive a power cut. `timeout`: seconds to wait for a lock."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if writable else 'ro'}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout)
    if writable:
        os.chmod(path, 0o600)
        db.execute(f"PRAGMA synchronous = {SYNCHRONOUS_MODE}")
    return db


def execute_file(db: sqlite3.Connection, name: str) -> None:
    """Execute the SQL statements in a file of this package."""
    for statement in files(__package__).joinpath(name).read_text("utf-8").split(";\n"):
        db.execute(statement)


def damage_error(folder: Path, reason: str) -> TamperedError:
    path = folder / LEDGER_FILE
    return TamperedError(f"{path} is damaged ({reason}). Do not delete the file: its charges were spent.")


def database_error(folder: Path, error: BaseException) -> TopdpError:
    """Return an error that says what the file system or SQLite reported, and what to do."""
    text = str(error)
    if any(message in text for message in DAMAGE_MESSAGES):
        return damage_error(folder, text)
    hint = "Make room on the disk" if "full" in text or "space" in text else "Make the folder writable"
    return LedgerError(
        f"Could not use the ledger in {folder}: {text}. Nothing was sent for it. {hint} and start again."
    )

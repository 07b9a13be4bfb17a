"""The files of a run beside an agent's own key, in `runs/<manifest>/`: run key, marks, continuation.

    key             the X25519 key of the run, hex; written once, erased at the end of the run
    mark            the public half of the key, and the last round whose row may have been sent
    books           the rollback mark: id of the ledger, its last round, and the hash of that entry
    continued_by    the amendment that continues with the rest of this run's budget

These files are in the identity folder, not in the state folder. A state folder that is restored from a backup
does not contain the marks, so the agent detects rows that were sent but are missing in its ledger. If both
folders are restored together, neighbours detect it (`runtime/peer_judgement`).

**Guarantees.** The key of a run is fresh, readable by its owner only, and used by no other run. A mark is on
disk before the rows of its round are sent. The rollback mark is written after the ledger entry; after a kill
between the two, it is written at the next start, before anything is sent. Under one key, no row is made for a
round up to the mark: an agent with a lost or old ledger is rejected. A ledger without the marked entry is
rejected. If a power cut loses a rollback mark, the previous one remains, which detects fewer old copies and
rejects no valid ledger. At the end, the bytes of the key are overwritten and the file is removed; copies in
old blocks of the disk are out of scope. The rest of a budget goes to one amendment: the first that starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from topdp.base.files import FileError, write_atomically
from topdp.errors import InputError, TrustError, UnavailableError

RUNS_FOLDER = "runs"
RUN_KEY_FILE, RUN_MARK_FILE = "key", "mark"
ROLLBACK_MARK_FILE, CONTINUATION_FILE = "books", "continued_by"


@dataclass(frozen=True)
class _RunMark:
    public: str
    round: int


class RunSecret:
    """The key of the run that an agent takes part in. `folder` is its identity folder."""

    def __init__(self, folder: Path, federation: str) -> None:
        self.folder = folder / RUNS_FOLDER / federation[:32]
        self._public = ""  # public half of the key, in hex, once this process takes part in the run

    def begin(self) -> str:
        """Make a fresh key and return its public half in hex. An earlier key is erased."""
        self.erase()
        key = X25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw().hex()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.folder / RUN_KEY_FILE, key.private_bytes_raw().hex(), mode=0o600)
            _sync_folder(self.folder)
        except (OSError, FileError) as error:
            raise InputError(
                f"Could not write the key of this run: {error} Agents that share noise need a writable "
                "identity folder."
            ) from error
        self._write(_RunMark(public, -1))
        self._public = public
        return public

    def resume(self, public: str, last_round: int) -> X25519PrivateKey:
        """Return the private half of the key `public` (hex), for an agent whose ledger ends at `last_round`.

        Raise TrustError if the key is missing or belongs to another run, or if the ledger is an old copy.
        """
        mark = self._read()
        if mark is None or mark.public != public:
            raise TrustError(
                f"Expected the mark of this state folder's run in {self.folder}, but found "
                f"{'none' if mark is None else 'that of another run'}: the shared noise of the run cannot be "
                "reproduced. Use the identity and state folders that belong together; without them this "
                "agent must leave the federation."
            )
        if mark.round > last_round:
            raise TrustError(
                f"Expected round {mark.round} in the ledger, but it ends at {last_round}: the state folder "
                "is an old copy. Rows that were sent would be made again with the same shared noise, and "
                "later charges are missing. Restore the newest copy; without it this agent must leave the "
                "federation."
            )
        self._public = public
        try:
            return X25519PrivateKey.from_private_bytes(
                bytes.fromhex((self.folder / RUN_KEY_FILE).read_text())
            )
        except (OSError, ValueError) as error:
            raise TrustError(
                f"Expected the key of this run in {self.folder / RUN_KEY_FILE}, but found none: it is erased "
                "when a run ends. This run cannot be continued; a new state folder begins a new one."
            ) from error

    def note(self, round: int) -> None:
        """Record on disk that the row of `round` may be sent from now on."""
        mark = self._read()
        if mark is None or mark.public != self._public:
            raise TrustError(
                f"Expected the mark of this agent's run in {self.folder}, but found that of another run: two "
                "runs use one manifest and identity at the same time. End one of them."
            )
        if round > mark.round:
            self._write(_RunMark(self._public, round))

    def erase(self) -> None:
        """Erase the key. The mark stays."""
        path = self.folder / RUN_KEY_FILE
        try:
            with path.open("r+b") as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            _sync_folder(self.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(
                f"Could not erase the key of a run in {self.folder}: {error.strerror}."
            ) from error

    def _read(self) -> _RunMark | None:
        path = self.folder / RUN_MARK_FILE
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            return _RunMark(str(tree["public"]), int(tree["round"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError(
                f"Could not read the mark of this run, {path}: {error.strerror}. Make the file readable, or "
                "close files if too many are open; then start again."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise TrustError(
                f"Expected the mark of a run in {path}, but it cannot be read: {error}"
            ) from None

    def _write(self, mark: _RunMark) -> None:
        write_atomically(self.folder / RUN_MARK_FILE, json.dumps(asdict(mark)) + "\n", mode=0o600)


@dataclass(frozen=True)
class _MarkedEntry:
    """The newest ledger entry. The JSON form is part of the file format: fields keep their names."""

    books: str  # the ledger's random id
    round: int
    head: str


class RollbackMark:
    """The rollback mark of one agent's ledger for one federation. `folder` is its identity folder.

    If the file `path` exists, this agent may have sent rows under this manifest.
    """

    def __init__(self, folder: Path, federation: str) -> None:
        self.path = folder / RUNS_FOLDER / federation[:32] / ROLLBACK_MARK_FILE
        self._last: _MarkedEntry | None = None

    def continue_with(self, amendment: str) -> None:
        """Assign the rest of the budget to the amendment with this hash, and to no other.

        Raise TrustError if it was assigned to another amendment before.
        """
        path = self.path.with_name(CONTINUATION_FILE)
        first = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        if first not in ("", amendment):
            raise TrustError(
                f"--after: expected the amendment {first[:16]}, which was started first and has the rest of "
                f"the budget, got {amendment[:16]}: the same rest cannot be spent twice. Continue with the "
                "first, or make a new manifest whose budgets count all earlier runs."
            )
        if not first:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, amendment + "\n")

    def resume(self, ledger_id: str, round: int, has_entry: Callable[[str], bool]) -> bool:
        """Return whether another ledger of this agent has sent rows under this manifest.

        `ledger_id`, `round`: id and last round of the current ledger. `has_entry`: returns whether the ledger
        contains an entry with this hash. Raise TrustError if the ledger is an old copy.
        """
        self._last = marked = self._read()
        if marked is None:
            return False
        if marked.books != ledger_id:
            return True
        if not has_entry(marked.head):
            raise TrustError(
                f"Expected the entry of round {marked.round} in the ledger, but it ends at {round}: the "
                "state folder is an old copy, or another process uses a second one. Rows were sent since, "
                "and their charges are missing. Restore the newest copy; without it this agent must leave "
                "the federation."
            )
        return False

    def note(self, ledger_id: str, round: int, head: str) -> None:
        """Record that rows of `round` may be sent from now on. `head`: hash of the ledger's last entry."""
        if self._read() not in (self._last, None):
            raise TrustError(
                f"Expected in {self.path} the mark that this agent wrote last, but found another one: two "
                "agents run under this manifest with one identity. End one of them; both have spent."
            )
        entry = _MarkedEntry(ledger_id, round, head)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(asdict(entry)) + "\n", durable=False)
        except (OSError, FileError) as error:
            raise InputError(
                f"Expected to write the rollback mark of round {round}, got: {str(error).rstrip('.')}. The "
                "mark reveals old copies of the state folder. Make the identity folder writable, or make "
                "room on the disk, and start the agent again; the ledger keeps the charge."
            ) from error
        self._last = entry

    def _read(self) -> _MarkedEntry | None:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            return _MarkedEntry(str(tree["books"]), int(tree["round"]), str(tree["head"]))
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None  # it was lost or never written; neighbours report the rows that they have in any case
        except OSError as error:
            raise UnavailableError(
                f"Could not read the rollback mark {self.path}: {error.strerror}. The ledger keeps every "
                "charge. Make the file readable, or close files if too many are open; then start again."
            ) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

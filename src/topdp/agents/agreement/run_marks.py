"""What an agent keeps of a run beside its own key, in `runs/<manifest>/`: secret key, marks, continuation.

    key             the X25519 key of the run, hex; written once, erased at the end of the run
    mark            its public half, and the last round whose row may have left
    books           the rollback mark: which ledger, its last round, and the hash of that entry
    continued_by    the amendment that has what this ledger left of the budget

These files are in the identity folder, not in the state folder. A state folder that is restored from a backup
does not bring its marks, so the agent sees that rows have left which its ledger lacks. Where both folders are
restored together, neighbours detect it (`runtime/peer_judgement`).

**Guarantees.** The key of a run is fresh, readable by its owner alone, and used by no other run. A mark is on
disk before the rows of its round leave; the rollback mark after the ledger entry, and after a kill between
the two, at the next start, before anything leaves. Under a key no row is made for a round up to the mark: an
agent with a lost or old ledger is refused. A ledger without the marked entry is refused. A rollback mark that
a power cut loses is an older one, which proves less and nothing wrong. At the end the bytes of the key are
overwritten and the file is removed; what a disk keeps of old blocks is out of scope. What is left of a budget
goes to one amendment, the first that is started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from topdp.base.files import write_atomically
from topdp.errors import InputError, TrustError

RUNS_FOLDER = "runs"
RUN_KEY_FILE, RUN_MARK_FILE = "key", "mark"
ROLLBACK_MARK_FILE, CONTINUATION_FILE = "books", "continued_by"


@dataclass(frozen=True)
class _RunMark:
    public: str
    round: int


class RunSecret:
    """The key of the run that an agent takes part in. `folder` is that of its identity."""

    def __init__(self, folder: Path, federation: str) -> None:
        self.place = folder / RUNS_FOLDER / federation[:32]
        self._public = ""  # of the run that this process takes part in

    def begin(self) -> str:
        """Make a fresh key and return its public half in hex. An earlier key is erased."""
        self.erase()
        key = X25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw().hex()
        try:
            self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.place / RUN_KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(key.private_bytes_raw().hex().encode())
                file.flush()
                os.fsync(handle)
            _sync_folder(self.place)
        except OSError as error:
            raise InputError(
                f"Could not write the key of this run to {self.place}: {error.strerror}. Agents that share "
                "noise need a writable identity folder."
            ) from error
        self._write(_RunMark(public, -1))
        self._public = public
        return public

    def resume(self, public: str, last_round: int) -> X25519PrivateKey:
        """The private half of `public`, for an agent whose ledger ends with `last_round`."""
        mark = self._read()
        if mark is None or mark.public != public:
            raise TrustError(
                f"Expected in {self.place} the run that this state folder belongs to, found "
                f"{'none' if mark is None else 'another one'}: its shared noise cannot be made again. Use "
                "the folders that belong together; without them this agent must leave the federation."
            )
        if mark.round > last_round:
            raise TrustError(
                f"Expected round {mark.round} in the ledger, which ends at {last_round}: the state folder is "
                "an old copy. Rows that have left would be made again under the same shared noise, and what "
                "was spent is missing. Restore the newest; without it this agent must leave the federation."
            )
        self._public = public
        try:
            return X25519PrivateKey.from_private_bytes(bytes.fromhex((self.place / RUN_KEY_FILE).read_text()))
        except (OSError, ValueError) as error:
            raise TrustError(
                f"Expected the key of this run in {self.place / RUN_KEY_FILE}, found none: it is erased when "
                "a run ends. This run cannot be continued; a new state folder begins a new one."
            ) from error

    def note(self, round: int) -> None:
        """Mark that a row of `round` may leave from now on."""
        mark = self._read()
        if mark is None or mark.public != self._public:
            raise TrustError(
                f"Expected in {self.place} the run of this agent, found another one: two runs of one "
                "manifest and identity at the same time. End one of them."
            )
        if round > mark.round:
            self._write(_RunMark(self._public, round))

    def erase(self) -> None:
        """Erase the key. The mark stays."""
        path = self.place / RUN_KEY_FILE
        try:
            with path.open("r+b") as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            _sync_folder(self.place)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(
                f"Could not erase the key of a run in {self.place}: {error.strerror}."
            ) from error

    def _read(self) -> _RunMark | None:
        path = self.place / RUN_MARK_FILE
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            return _RunMark(str(tree["public"]), int(tree["round"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrustError(f"Expected the mark of a run in {path}: {error}") from None

    def _write(self, mark: _RunMark) -> None:
        write_atomically(self.place / RUN_MARK_FILE, json.dumps(asdict(mark)) + "\n", mode=0o600)


@dataclass(frozen=True)
class _MarkedEntry:
    """The newest ledger entry. The JSON form is part of the file format: fields keep their names."""

    books: str  # the ledger's random id
    round: int
    head: str


class RollbackMark:
    """The rollback mark of one agent's ledger for one federation. `folder` is that of its identity."""

    def __init__(self, folder: Path, federation: str) -> None:
        self.path = folder / RUNS_FOLDER / federation[:32] / ROLLBACK_MARK_FILE
        self._last: _MarkedEntry | None = None

    @property
    def exists(self) -> bool:
        """Whether rows of this agent have left under that manifest."""
        return self.path.exists()

    def continue_with(self, amendment: str) -> None:
        """Give the rest of the budget to this amendment, and to no other."""
        path = self.path.with_name(CONTINUATION_FILE)
        first = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        if first not in ("", amendment):
            raise TrustError(
                f"--after: expected the amendment {first[:16]}, which was started first and has what is left "
                f"of the budget, got {amendment[:16]}: the same rest cannot be spent twice. Go on with the "
                "first, or make a new manifest whose budgets count all runs before."
            )
        if not first:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, amendment + "\n")

    def resume(self, ledger_id: str, round: int, has_entry: Callable[[str], bool]) -> bool:
        """Whether an earlier ledger of this agent has sent rows. `has_entry`: whether this ledger has a hash.

        Raise TrustError if this ledger is an older copy of itself.
        """
        self._last = marked = self._read()
        if marked is None:
            return False
        if marked.books != ledger_id:
            return True
        if not has_entry(marked.head):
            raise TrustError(
                f"Expected the entry of round {marked.round} in the ledger, which ends at {round}: the state "
                "folder is an old copy, or another process uses a second one. Rows have left since, and what "
                "was spent is missing. Restore the newest; without it this agent must leave the federation."
            )
        return False

    def note(self, ledger_id: str, round: int, head: str) -> None:
        """Mark that rows of `round` may leave from now on."""
        if self._read() != self._last:
            raise TrustError(
                f"Expected in {self.path} what this agent wrote last, found something else: two agents run "
                "under this manifest with one identity. End one of them; both have spent."
            )
        entry = _MarkedEntry(ledger_id, round, head)
        beside = self.path.with_name(f".{ROLLBACK_MARK_FILE}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside.write_text(json.dumps(asdict(entry)) + "\n", encoding="utf-8")
            os.replace(beside, self.path)
        except OSError as error:
            raise InputError(
                f"Could not write {self.path}: {error.strerror}. It reveals old copies of the state folder: "
                "make the identity folder writable, or make room on the disk. Nothing was sent."
            ) from error
        self._last = entry

    def _read(self) -> _MarkedEntry | None:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            return _MarkedEntry(str(tree["books"]), int(tree["round"]), str(tree["head"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # lost, or never written: neighbours are asked in any case


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

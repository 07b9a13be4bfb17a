"""The secret of one run: an X25519 key that is made for it, marked with what was made under it, and erased.

It lies in `runs/` beside the agent's own key, not in the state folder: so a state folder that is put back
from a backup brings no old mark, and the agent sees that rows were made which its books do not know.

    runs/<manifest>/key     the private key, hex; written once, gone at the end of the run
    runs/<manifest>/mark    the public key, and the last round whose row may have left

**Guarantees.** A key that begins is fresh, readable by its owner alone, and no other run had it. A round is
marked on disk before its row leaves. Under a key no row is made that is not after the mark: who has lost its
books, or holds an old copy, is refused. At the end the key's bytes are written over and the file is removed;
what a disk keeps of old blocks is beyond this file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from topdp.base.files import write_atomically
from topdp.errors import InputError, TrustError

RUNS_FOLDER, RUN_KEY_FILE, RUN_MARK_FILE = "runs", "key", "mark"


@dataclass(frozen=True)
class _RunMark:
    public: str
    round: int


class RunSecret:
    """The key of the run that an agent takes part in; `folder` is the one of its identity."""

    def __init__(self, folder: Path, federation: str) -> None:
        self.place = folder / RUNS_FOLDER / federation[:32]
        self._public = ""  # of the run that this process takes part in

    def begin(self) -> str:
        """Makes a fresh key, and gives its public half in hex; one that is there is erased."""
        self.erase()
        key = X25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw().hex()
        try:
            self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.place / RUN_KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(_raw_private_key(key).hex().encode())
                file.flush()
                os.fsync(handle)
            _sync_folder(self.place)
        except OSError as error:
            raise InputError(
                f"Could not write the key of this run to {self.place}: {error.strerror}. Agents that share "
                "noise need a folder of their identity that can be written to."
            ) from error
        self._write(_RunMark(public, -1))
        self._public = public
        return public

    def resume(self, public: str, booked: int) -> X25519PrivateKey:
        """The private half of `public`, for an agent on whose books `booked` is the last round."""
        mark = self._read()
        if mark is None or mark.public != public:
            raise TrustError(
                f"Expected in {self.place} the run that this state folder belongs to, found "
                f"{'none' if mark is None else 'another one'}: its shared noise cannot be made again. Use "
                "the folders that belong together; without them this agent must leave the federation."
            )
        if mark.round > booked:
            raise TrustError(
                f"Expected round {mark.round} in the ledger, which ends at {booked}: the state folder is an "
                "old copy. Rows that have left would be made again under the same shared noise, and what was "
                "spent is missing. Restore the newest; without it this agent must leave the federation."
            )
        self._public = public
        try:
            return X25519PrivateKey.from_private_bytes(bytes.fromhex((self.place / RUN_KEY_FILE).read_text()))
        except (OSError, ValueError) as error:
            raise TrustError(
                f"Expected the key of this run in {self.place / RUN_KEY_FILE}, found none: it is "
                "erased when a run "
                "ends. This run cannot be continued; a new state folder begins a new one."
            ) from error

    def note(self, round: int) -> None:
        """A row of `round` may leave from now on."""
        mark = self._read()
        if mark is None or mark.public != self._public:
            raise TrustError(
                f"Expected in {self.place} the run of this agent, found another one: two runs of one "
                "manifest and identity at the same time. End one of them."
            )
        if round > mark.round:
            self._write(_RunMark(self._public, round))

    def erase(self) -> None:
        """The key is gone; the mark stays."""
        try:
            with (self.place / RUN_KEY_FILE).open("r+b") as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            (self.place / RUN_KEY_FILE).unlink()
            _sync_folder(self.place)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(
                f"Could not erase the key of a run in {self.place}: {error.strerror}."
            ) from error

    def _read(self) -> _RunMark | None:
        try:
            tree = json.loads((self.place / RUN_MARK_FILE).read_text(encoding="utf-8"))
            return _RunMark(str(tree["public"]), int(tree["round"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrustError(f"Expected the mark of a run in {self.place / RUN_MARK_FILE}: {error}") from None

    def _write(self, mark: _RunMark) -> None:
        write_atomically(
            self.place / RUN_MARK_FILE,
            json.dumps({"public": mark.public, "round": mark.round}) + "\n",
            mode=0o600,
        )


def _raw_private_key(key: X25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

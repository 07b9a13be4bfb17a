"""The newest entry of an agent's books, marked beside its key: finds a state folder that is an old copy.

    runs/<manifest>/books           which books they are, the last round on them, and the hash of that entry
    runs/<manifest>/continued_by    the amendment that has what these books left of the budget

It lies in the identity folder, not in the state folder, so a state folder that is put back from a backup does
not bring its mark. Where both are put back together, neighbours find it (`life/beliefs.py`). The mark of a
run's key, where draws are shared, is another one (`run_key`).

**Guarantees.** The mark is written after the entry and before its rows leave; after a kill between the two,
at the next start, before anything leaves. Books that do not hold the marked entry are refused. A mark that a
power cut loses is an older one, which proves less and nothing wrong.
What is left of a budget goes to one amendment, the first that is started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from topdp.agents.agreement.run_secret import RUNS_FOLDER
from topdp.base.files import write_atomically
from topdp.errors import InputError, TrustError

MARK_FILE, CONTINUATION_FILE = "books", "continued_by"


@dataclass(frozen=True)
class _MarkedEntry:
    books: str  # their name: random, made with them
    round: int
    head: str


class RollbackMark:
    """The mark of one agent's books for one federation; `folder` is that of its identity."""

    def __init__(self, folder: Path, federation: str) -> None:
        self.path = folder / RUNS_FOLDER / federation[:32] / MARK_FILE
        self._last: _MarkedEntry | None = None

    @property
    def known(self) -> bool:
        """Whether rows of this agent have left under that manifest."""
        return self.path.exists()

    def continue_with(self, amendment: str) -> None:
        """The rest of the budget is this amendment's from now on, and no other's."""
        path = self.path.with_name(CONTINUATION_FILE)
        found = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        if found not in ("", amendment):
            raise TrustError(
                f"--after: expected the amendment {found[:16]}, which was started first and has what is left "
                f"of the budget, got {amendment[:16]}: the same rest cannot be spent twice. Go on with the "
                "first, or make a new manifest whose budgets count all runs before."
            )
        if not found:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, amendment + "\n")

    def resume(self, books: str, round: int, holds: Callable[[str], bool]) -> bool:
        """Whether earlier books of this agent have sent rows. `holds`: whether an entry is on these.

        Raises TrustError where these books are an older copy of themselves.
        """
        self._last = found = self._read()
        if found is None:
            return False
        if found.books != books:
            return True
        if not holds(found.head):
            raise TrustError(
                f"Expected the entry of round {found.round} in the ledger, which ends at {round}: the state "
                "folder is an old copy, or another process uses a second one. Rows have left since, and what "
                "was spent is missing. Restore the newest; without it this agent must leave the federation."
            )
        return False

    def note(self, books: str, round: int, head: str) -> None:
        """Rows of `round` may leave from now on."""
        if self._read() != self._last:
            raise TrustError(
                f"Expected in {self.path} what this agent wrote last, found something else: two agents run "
                "under this manifest with one identity. End one of them; both have spent."
            )
        entry = _MarkedEntry(books, round, head)
        beside = self.path.with_name(f".{MARK_FILE}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside.write_text(json.dumps(asdict(entry)) + "\n", encoding="utf-8")
            os.replace(beside, self.path)
        except OSError as error:
            raise InputError(
                f"Could not write {self.path}: {error.strerror}. It is how an old copy of the state folder "
                "is found: make the folder of the identity writable, or room on the disk. Nothing was sent."
            ) from error
        self._last = entry

    def _read(self) -> _MarkedEntry | None:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            return _MarkedEntry(str(tree["books"]), int(tree["round"]), str(tree["head"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # lost, or never written: neighbours are asked in any case

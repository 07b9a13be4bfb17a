"""What a running agent says of itself, in a small file of its state folder: what the books do not hold.

Written whole, never half; read by `topdp agent status` and by `pause` and `stop`, which want to see that they
were heard. A file that a dead process left is recognised: it names its process, and when that began. One that
no agent wrote is refused.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from topdp.errors import InputError

FILE = "status.json"
LARGEST = 2**20  # bytes; a line for each of thousands of neighbours
EVERY = 5.0  # seconds at most between two writings
SILENT = 3 * EVERY  # seconds after which one that cannot be looked up counts as gone

State = Literal["waits", "computes", "paused", "ends", "ended"]
Process = Literal["running", "not answering", "not running"]


class StandingError(InputError):
    """A file by that name which no agent of this version has written."""


@dataclass(frozen=True)
class Standing:
    """Where a process is. Times are seconds of the calendar."""

    process: int
    begun: str  # of the process, in its machine's own count: the number of a dead one may be used again
    written: float
    state: State
    round: int  # the last on the books
    rounds: int  # T
    budget: float
    waits_for: Mapping[str, float] = field(default_factory=dict)  # whom: since when
    heard: Mapping[str, float] = field(default_factory=dict)  # whom: when last
    scores: Mapping[str, Any] | None = None
    code: int | None = None  # how the process ended, once it has

    def write(self, folder: Path) -> None:
        """Without waiting for the disk: after a power cut nobody is running anyhow."""
        path = folder / FILE
        beside = path.with_name(f".{FILE}.{os.getpid()}")
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(self), file)
            os.replace(beside, path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise

    @classmethod
    def read(cls, folder: Path) -> Standing | None:
        """What was written last; None where nothing was."""
        path = folder / FILE
        try:
            facts = os.lstat(path)
            whole = stat.S_ISREG(facts.st_mode) and facts.st_size <= LARGEST
            found = cls(**json.loads(path.read_text(encoding="utf-8"))) if whole else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, RecursionError):
            found = None
        if found is None or not found._fits():
            raise StandingError(
                f"Expected in {path} what an agent of this version says of itself, got something else: the "
                "file is damaged, or another program's. The books are not touched by it: remove the file, or "
                "start the agent, which writes it anew."
            )
        return found

    def _fits(self) -> bool:
        """Whether every field is of its kind: then nobody who reads or shows them can stumble."""
        return (
            all(map(_whole, (self.process, self.round, self.rounds)))
            and (self.code is None or _whole(self.code))
            and isinstance(self.begun, str)
            and self.state in STATES
            and _number(self.written)
            and (_number(self.budget) or self.budget == math.inf)
            and all(
                isinstance(one, dict)
                and all(who.isprintable() and _number(when) for who, when in one.items())
                for one in (self.waits_for, self.heard)
            )
            and (self.scores is None or (isinstance(self.scores, dict) and _plain(self.scores)))
        )

    @property
    def liveness(self) -> Process:
        """Whether the process that wrote this is there."""
        age = time.time() - self.written
        if self.state == "ended":
            return "not running"
        if self.begun.startswith(_here()):
            there = birth(self.process) == self.begun
            return "not running" if not there else "running" if age <= SILENT else "not answering"
        return "running" if age <= SILENT else "not running"  # in another container: by its file alone


STATES = ("waits", "computes", "paused", "ends", "ended")
MOST = 2**31  # rounds, and numbers of processes


def _whole(value: Any) -> bool:
    return type(value) is int and -1 <= value <= MOST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**63


def _plain(value: Any, depth: int = 3) -> bool:
    """What scores are made of: names and numbers, also such as are not defined, in few folds."""
    if isinstance(value, dict | list):
        inside = [*value, *(value.values() if isinstance(value, dict) else ())]
        return depth > 0 and all(_plain(one, depth - 1) for one in inside)
    if isinstance(value, str):
        return value.isprintable()
    return value is None or isinstance(value, float) or _number(value)


def birth(process: int) -> str:
    """What no other process on earth has: machine, its start, namespace of numbers, and when it began."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        fields = facts.rpartition(")")[2].split()  # its name may hold anything
        return _here() + ("" if fields[0] == "Z" else fields[19])
    except (OSError, IndexError):
        try:
            os.kill(process, 0)
        except OSError:
            return ""
        return _here()


def _here() -> str:
    """The machine since its start, and the namespace in which processes have their numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} "
    except OSError:
        return f"{os.uname().nodename} "

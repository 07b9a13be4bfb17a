"""What a running agent says of itself, in a small file of its state folder: what the books do not hold.

Written whole, never half; read by `topdp agent status` and by `pause` and `stop`, which want to see that they
were heard. A file that a dead process left is recognised: it names its process, and when that began.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

FILE = "status.json"
EVERY = 5.0  # seconds at most between two writings
SILENT = 3 * EVERY  # seconds after which one that cannot be looked up counts as gone

State = Literal["waits", "computes", "paused", "ends", "ended"]
Process = Literal["running", "not answering", "not running"]


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
        """What was written last; None where nothing was, or what is there is not ours."""
        try:
            found = cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
            numbers = (found.process, found.written, found.round, found.rounds, found.budget)
            maps = (found.waits_for, found.heard)
            fits = all(isinstance(one, int | float) for one in numbers) and all(
                isinstance(one, dict) and all(isinstance(v, int | float) for v in one.values())
                for one in maps
            )
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return found if fits and found.state in STATES else None

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

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

STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 2**20  # bytes; a line for each of thousands of neighbours
STATUS_INTERVAL_SECONDS = 5.0  # seconds at most between two writings
SILENCE_SECONDS = (
    3 * STATUS_INTERVAL_SECONDS
)  # seconds after which one that cannot be looked up counts as gone

AgentState = Literal["waits", "computes", "paused", "ends", "ended"]
Liveness = Literal["running", "not answering", "not running"]


class StatusFileError(InputError):
    """A file by that name which no agent of this version has written."""


@dataclass(frozen=True)
class ProcessStatus:
    """Where a process is. Times are seconds of the calendar."""

    process: int
    begun: str  # of the process, in its machine's own count: the number of a dead one may be used again
    written: float
    state: AgentState
    round: int  # the last on the books
    rounds: int  # T
    budget: float
    waits_for: Mapping[str, float] = field(default_factory=dict)  # whom: since when
    heard: Mapping[str, float] = field(default_factory=dict)  # whom: when last
    scores: Mapping[str, Any] | None = None
    code: int | None = None  # how the process ended, once it has

    def write(self, folder: Path) -> None:
        """Without waiting for the disk: after a power cut nobody is running anyhow."""
        path = folder / STATUS_FILE
        beside = path.with_name(f".{STATUS_FILE}.{os.getpid()}")
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
    def read(cls, folder: Path) -> ProcessStatus | None:
        """What was written last; None where nothing was."""
        path = folder / STATUS_FILE
        try:
            facts = os.lstat(path)
            whole = stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_STATUS_BYTES
            found = cls(**json.loads(path.read_text(encoding="utf-8"))) if whole else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, RecursionError):
            found = None
        if found is None or not found._fits():
            raise StatusFileError(
                f"Expected in {path} what an agent of this version says of itself, got something else: the "
                "file is damaged, or another program's. The books are not touched by it: remove the file, or "
                "start the agent, which writes it anew."
            )
        return found

    def _fits(self) -> bool:
        """Whether every field is of its kind: then nobody who reads or shows them can stumble."""
        return (
            all(map(_is_integer, (self.process, self.round, self.rounds)))
            and (self.code is None or _is_integer(self.code))
            and isinstance(self.begun, str)
            and self.state in AGENT_STATES
            and _is_number(self.written)
            and (_is_number(self.budget) or self.budget == math.inf)
            and all(
                isinstance(one, dict)
                and all(who.isprintable() and _is_number(when) for who, when in one.items())
                for one in (self.waits_for, self.heard)
            )
            and (self.scores is None or (isinstance(self.scores, dict) and _is_plain(self.scores)))
        )

    @property
    def liveness(self) -> Liveness:
        """Whether the process that wrote this is there."""
        age = time.time() - self.written
        if self.state == "ended":
            return "not running"
        if self.begun.startswith(_machine_id()):
            there = process_birth(self.process) == self.begun
            return "not running" if not there else "running" if age <= SILENCE_SECONDS else "not answering"
        return (
            "running" if age <= SILENCE_SECONDS else "not running"
        )  # in another container: by its file alone


AGENT_STATES = ("waits", "computes", "paused", "ends", "ended")
MAX_STATUS_INTEGER = 2**31  # rounds, and numbers of processes


def _is_integer(value: Any) -> bool:
    return type(value) is int and -1 <= value <= MAX_STATUS_INTEGER


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**63


def _is_plain(value: Any, depth: int = 3) -> bool:
    """What scores are made of: names and numbers, also such as are not defined, in few folds."""
    if isinstance(value, dict | list):
        inside = [*value, *(value.values() if isinstance(value, dict) else ())]
        return depth > 0 and all(_is_plain(one, depth - 1) for one in inside)
    if isinstance(value, str):
        return value.isprintable()
    return value is None or isinstance(value, float) or _is_number(value)


def process_birth(process: int) -> str:
    """What no other process on earth has: machine, its start, namespace of numbers, and when it began."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        fields = facts.rpartition(")")[2].split()  # its name may hold anything
        return _machine_id() + ("" if fields[0] == "Z" else fields[19])
    except (OSError, IndexError):
        try:
            os.kill(process, 0)
        except OSError:
            return ""
        return _machine_id()


def _machine_id() -> str:
    """The machine since its start, and the namespace in which processes have their numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} "
    except OSError:
        return f"{os.uname().nodename} "

"""The status of a running agent, in a small file of its state folder, and its description in words.

It holds what the ledger does not. `topdp agent status` reads it; `pause` and `stop` read it to see whether
they took effect. It is written atomically. A file that a dead process left is recognised: it names its
process and when that began. A file that no agent wrote is refused. Needs neither torch nor gRPC.
"""

from __future__ import annotations

import json
import os
import platform
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from topdp.base.files import write_atomically
from topdp.errors import InputError

STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 2**20  # a line for each of thousands of neighbours
MAX_STATUS_INTEGER = 2**31  # rounds, and process ids
STATUS_INTERVAL_SECONDS = 5.0  # at most, between two writings
PROCESS_SILENCE_SECONDS = 3 * STATUS_INTERVAL_SECONDS
"""A process that cannot be looked up counts as gone after this time."""

AgentState = Literal["waits", "computes", "paused", "ends", "ended"]
Liveness = Literal["running", "not answering", "not running"]


class StatusFileError(InputError):
    """A status file that no agent of this version has written."""


def _expect_plain(value: Any, depth: int = 3) -> Any:
    """Raise ValueError unless `value` consists of names, numbers and None, nested at most `depth` deep."""
    if isinstance(value, dict | list) and depth:
        for item in [*value, *(value.values() if isinstance(value, dict) else ())]:
            _expect_plain(item, depth - 1)
    elif isinstance(value, str):
        if not value.isprintable():
            raise ValueError
    elif value is not None and not (isinstance(value, float) or (type(value) is int and 0 <= value < 2**63)):
        raise ValueError
    return value


Count = Annotated[int, Field(ge=-1, le=MAX_STATUS_INTEGER)]
Seconds = Annotated[float, Field(ge=0, lt=2**63)]
Printable = Annotated[str, AfterValidator(_expect_plain)]


class ProcessStatus(BaseModel):
    """The status of a process, as JSON in the file. Times are seconds since the epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    process: Count
    begun: str  # when the process began (`process_birth`), since ids of dead processes are used again
    written: Seconds
    state: AgentState
    round: Count  # the last one in the ledger
    rounds: Count  # T
    budget: Annotated[float, Field(ge=0)]
    waits_for: dict[Printable, Seconds] = {}  # neighbour -> since when
    heard: dict[Printable, Seconds] = {}  # neighbour -> when last
    scores: Annotated[dict[str, Any], AfterValidator(_expect_plain)] | None = None
    code: Count | None = None  # the exit code, once the process has ended

    def write(self, folder: Path) -> None:
        """Write the file without waiting for the disk: after a power cut no process runs anyway."""
        write_atomically(folder / STATUS_FILE, json.dumps(self.model_dump()), mode=0o600, durable=False)

    @classmethod
    def read(cls, folder: Path) -> ProcessStatus | None:
        """Return the last status, or None if there is none."""
        path = folder / STATUS_FILE
        try:
            facts = os.lstat(path)
            is_plain_file = stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_STATUS_BYTES
            if not is_plain_file:
                raise ValueError
            return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, RecursionError):
            raise StatusFileError(
                f"Expected the status of an agent of this version in {path}, got something else: the file is "
                "damaged, or another program's. The ledger is not affected: remove the file, or start the "
                "agent, which writes it again."
            ) from None

    @property
    def liveness(self) -> Liveness:
        """Whether the process that wrote this status runs."""
        is_recent = time.time() - self.written <= PROCESS_SILENCE_SECONDS
        is_here = self.begun.startswith(_machine_id())  # else only the file shows whether the process runs
        if self.state == "ended" or (is_here and process_birth(self.process) != self.begun):
            return "not running"
        if is_recent:
            return "running"
        return "not answering" if is_here else "not running"


def process_birth(process: int) -> str:
    """Return a name that no other process has: machine, its boot, process namespace, and start time."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        fields = facts.rpartition(")")[2].split()  # the name before may contain anything
        return _machine_id() + ("" if fields[0] == "Z" else fields[19])
    except (OSError, IndexError):
        try:
            os.kill(process, 0)
        except OSError:
            return ""
        return _machine_id()


def _machine_id() -> str:
    """Return a name of the machine since its boot, and of its process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} "
    except OSError:
        return f"{platform.node()} "


def epsilon_in_words(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.4g}"


def age_in_words(since: float, now: float | None = None) -> str:
    """Return the time since `since`, both in seconds since the epoch, as text.

    >>> age_in_words(100, 142), age_in_words(100, 100 + 3 * 3600 + 120), age_in_words(100, 90)
    ('42 s', '3 h 2 min', '0 s')
    """
    seconds = max(0, round((time.time() if now is None else now) - since))
    if seconds < 120:
        return f"{seconds} s"
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def progress_in_words(status: ProcessStatus, spent: float | None, charged_by: str) -> str:
    """Return round, budget, and the neighbours that the agent waits for, as text."""
    words = f"round {max(status.round, 0)} of {status.rounds}" if status.round >= 0 else "no release yet"
    words += f", epsilon {epsilon_in_words(spent)} of {status.budget:.4g} spent ({charged_by})"
    if status.state == "paused":
        words += ", paused"
    if status.state == "ends":
        words += ", all rounds done"
    waits = [f"{peer} since {age_in_words(since)}" for peer, since in status.waits_for.items()]
    return words + (f", waits for {', '.join(waits)}" if waits else "")


def scores_in_words(scores: Mapping[str, Any]) -> str:
    """Return the scores of `OwnerEvaluation` as text.

    >>> scores_in_words({"round": 3, "on": "test", "records": 40, "loss": 0.2, "metrics": {"accuracy": 0.9}})
    'accuracy 90.00% on 40 test records of its own (round 3)'
    """
    from topdp.runs.metric_labels import metric_text

    metrics = [f"{name} {metric_text(name, value)}" for name, value in scores["metrics"].items()]
    metrics = metrics or [f"loss {scores['loss']:.4g}"]
    where = f"{scores['records']} {scores['on']} records of its own (round {scores['round']})"
    return f"{', '.join(metrics)} on {where}"

"""The status of an agent: the file that its process writes, the facts in its ledger, and both in words.

The status file is in the state folder and holds what the ledger does not. `topdp agent status` reads both;
`pause` and `stop` read the file to see whether they took effect. The file is written atomically. It names its
process and when that process began, so a file of a dead process is recognised. A file that no agent wrote is
refused. This module needs neither torch nor gRPC. `ledger/ledger_check` verifies that a ledger is intact.
"""

from __future__ import annotations

import json
import os
import platform
import stat
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.node.operator_orders import PAUSE_FILE, OperatorOrders
from topdp.agents.node.quarantine import quarantined_peers
from topdp.base.files import write_atomically
from topdp.base.number_text import rounded_up
from topdp.errors import ExitCode, InputError
from topdp.privacy.answers import WORST_CASE

STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 2**20  # enough for thousands of neighbours
MAX_STATUS_INTEGER = 2**31  # rounds, and process ids
STATUS_INTERVAL_SECONDS = 5.0  # the longest time between two updates of the file
PROCESS_SILENCE_SECONDS = 3 * STATUS_INTERVAL_SECONDS
"""A process of another machine counts as ended if its status is older than this."""

OMITTED_WHEN_EMPTY = {"seeded", "rehearsal", "stopped", "departed", "departures", "gone", "paused", "doing"}
OMITTED_WHEN_EMPTY |= {"suspects"}
OMITTED_WHEN_EMPTY |= {"waits_for", "heard", "scores"}
"""Facts that are shown only if they apply. Quarantines are always shown, even if there are none."""

AgentState = Literal["waits", "computes", "paused", "ends", "ended"]
Liveness = Literal["running", "not answering", "not running"]


class StatusFileError(InputError):
    """A status file that no agent of this version wrote."""


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
    waits_for: dict[Printable, Seconds] = {}  # neighbour -> start of the wait
    heard: dict[Printable, Seconds] = {}  # neighbour -> time of its last message
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
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_STATUS_BYTES:
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
        is_here = self.begun.startswith(_machine_id())  # otherwise only the age of the file tells
        if self.state == "ended" or (is_here and process_birth(self.process) != self.begun):
            return "not running"
        if is_recent:
            return "running"
        return "not answering" if is_here else "not running"


def process_birth(process: int) -> str:
    """Return a name that no other process has: machine, its boot, process namespace, and start time."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        fields = facts.rpartition(")")[2].split()  # after the name, which may contain anything
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
    return "infinite" if epsilon is None else rounded_up(epsilon)


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


def read_status(state: Path) -> dict[str, Any]:
    """Return the facts that `topdp agent status --json` prints."""
    with closing(Ledger(state, writable=False)) as ledger:
        facts = charged_facts(ledger)
        facts["seen"] = {peer: ledger.last_received(peer) for peer in ledger.recorded_peers()}
        facts["quarantined"] = quarantined_peers(ledger)
    status = ProcessStatus.read(state)
    if facts["budget"] is None and status is not None:  # no start has recorded it in the ledger yet
        facts["budget"] = status.budget
    process = "not running" if status is None else status.liveness
    running = status if process != "not running" else None
    facts |= {
        "paused": OperatorOrders(state).given_at(PAUSE_FILE),
        "process": process,
        "id": running.process if running else None,
        "doing": running.state if running else None,
        "written": status.written if status else None,
        "rounds": status.rounds if status else None,  # of the last start
        "waits_for": dict(running.waits_for) if running else {},
        "heard": dict(running.heard) if running else {},
        "scores": status.scores if status else None,
        "code": status.code if status else None,
    }
    if facts["rounds"] is not None and facts["ends"] is not None:  # the process may not know the end yet
        facts["rounds"] = min(facts["rounds"], max(facts["ends"], facts["round"]))
    return facts


def charged_facts(ledger: Ledger) -> dict[str, Any]:
    """Return what a ledger records about its agent's charges and the run that they belong to."""
    delta = ledger.meta.get(start_choices.DELTA_KEY)
    return {
        "agent": ledger.meta.get("agent"),
        "federation": ledger.meta.get("federation"),
        "round": ledger.round,
        "epsilon": ledger.spent,
        "delta": None if delta is None else float(delta),
        "charged_by": ledger.charged_by,
        WORST_CASE.key: ledger.worst_case,
        "seeded": start_choices.ever_chosen(ledger, start_choices.SEEDED_KEY),
        "rehearsal": start_choices.ever_chosen(ledger, start_choices.REHEARSAL_KEY),
        "budget": start_choices.recorded_budget(ledger),
        "stopped": ledger.stopped_at,
        "ends": ledger.final_round,
        "departed": ledger.departed,
        "departures": ledger.covered_departures(),
        "suspects": ledger.suspects,
        "gone": ledger.departed_members(),
    }


def finished(facts: dict[str, Any]) -> bool:
    """Return whether the agent has completed all its rounds and its process has ended."""
    is_complete = facts["rounds"] is not None and facts["round"] >= facts["rounds"]
    return is_complete and facts["process"] == "not running"


def exit_code(facts: dict[str, Any]) -> int:
    """Return the exit code of `topdp agent status`: that of the agent, or 6 if it hangs or was killed."""
    if facts["process"] == "not answering" or (facts["process"] == "not running" and facts["code"] is None):
        return 0 if facts["written"] is None else ExitCode.UNAVAILABLE
    return 0 if facts["process"] == "running" else int(facts["code"])


def describe_status(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts for people: ages instead of times, without facts that do not apply."""
    in_other_words = ("written", "id", "code", "budget", "rounds", "ends", "delta")
    shown = {key: value for key, value in facts.items() if key not in in_other_words}
    if facts["written"] is not None and facts["process"] == "not answering":
        shown["process"] = f"not answering since {age_in_words(facts['written'])} (process {facts['id']})"
    elif facts["id"] is not None:
        shown["process"] = f"running (process {facts['id']})"
    elif facts["code"] is not None:
        shown["process"] = f"not running: it ended with code {facts['code']}"
    elif facts["written"] is not None:
        shown["process"] = f"not running: it was killed, or died, {age_in_words(facts['written'])} ago"
    shown["waits_for"] = {peer: f"since {age_in_words(since)}" for peer, since in facts["waits_for"].items()}
    shown["heard"] = {peer: f"{age_in_words(since)} ago" for peer, since in facts["heard"].items()}
    shown["paused"] = None if facts["paused"] is None else f"since {age_in_words(facts['paused'])}"
    shown["epsilon"] = epsilon_in_words(facts["epsilon"])
    if facts["budget"] is not None:
        shown["epsilon"] += f" of {facts['budget']:.4g}"
    if facts["delta"] is not None:
        shown["epsilon"] += f" at delta {facts['delta']:.2g}"
    if facts["rounds"] is not None:
        shown["round"] = f"{facts['round']} of {facts['rounds']}"
    if facts["ends"] is not None:
        shown["round"] = f"{shown['round']}: this run was amended, and ends with round {facts['ends']}"
    for key in OMITTED_WHEN_EMPTY:
        if shown[key] is None or shown[key] is False or shown[key] == {}:
            del shown[key]
    return {key: "yes" if value is True else value for key, value in shown.items()}


def status_line(state: Path, facts: dict[str, Any]) -> str:
    """Return one line, for output that is not a terminal."""
    status = ProcessStatus.read(state)
    if status is None:
        return f"{facts['agent']}: round {facts['round']}, {facts['process']}"
    words = progress_in_words(status, facts["epsilon"], facts["charged_by"])
    return f"{facts['agent']}: {words}, {facts['process']}"

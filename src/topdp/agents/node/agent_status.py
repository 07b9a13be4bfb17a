"""Where an agent stands, seen from outside: its books, and what its process says of itself. Reads only.

Needs neither torch nor gRPC. Whether books are whole is another question (`agents/ledger/ledger_check.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.node.operator_orders import PAUSE_FILE, OperatorOrders
from topdp.agents.node.status_file import ProcessStatus
from topdp.agents.node.status_words import age_in_words, epsilon_in_words, progress_in_words
from topdp.agents.runtime.run_end import last_round

OMITTED_WHEN_EMPTY = {
    "seeded",
    "rehearsal",
    "stopped",
    "departed",
    "departures",
    "gone",
    "paused",
    "doing",
    "waits_for",
}
OMITTED_WHEN_EMPTY |= {"heard", "scores"}
"""What people are told only where it is so. Who is quarantined is always told, be it nobody."""

CHANGING_KEYS = ("written", "heard")
"""What changes all the time, and is no change to tell."""


def read_status(state: Path) -> dict[str, Any]:
    """What `topdp agent status --json` prints."""
    ledger = Ledger(state, writable=False)
    try:
        peers = ledger.recorded_peers()
        facts: dict[str, Any] = {
            "agent": ledger.meta.get("agent"),
            "federation": ledger.meta.get("federation"),
            "round": ledger.round,
            "epsilon": ledger.spent,
            "delta": float(ledger.meta[start_choices.DELTA_KEY])
            if start_choices.DELTA_KEY in ledger.meta
            else None,
            "charged_by": ledger.charged_by,
            "worst_case": ledger.last_entry.worst_case if ledger.last_entry else 0.0,
            "seeded": start_choices.ever_chosen(ledger, start_choices.SEEDED_KEY),
            "rehearsal": start_choices.ever_chosen(ledger, start_choices.REHEARSAL_KEY),
            "budget": start_choices.recorded_budget(ledger),
            "stopped": ledger.stopped_at,
            "ends": last_round(ledger),
            "departed": ledger.departed,
            "departures": ledger.covered_departures(),
            "gone": ledger.departed_members(),
            "seen": {peer: ledger.last_received(peer) for peer in peers},
            "quarantined": {
                peer: {"code": why.code.name, "words": why.words}
                for peer in peers
                if (why := ledger.quarantined(peer)) is not None
            },
        }
    finally:
        ledger.close()
    found = ProcessStatus.read(state)
    if facts["budget"] is None and found is not None:  # books of before budgets stood in them
        facts["budget"] = found.budget
    facts |= {"paused": OperatorOrders(state).since(PAUSE_FILE), **_process_facts(found)}
    if facts["rounds"] is not None and facts["ends"] is not None:  # the process may not know of it yet
        facts["rounds"] = min(facts["rounds"], max(facts["ends"], facts["round"]))
    return facts


def _process_facts(found: ProcessStatus | None) -> dict[str, Any]:
    """`rounds`: what the last start was told; null before any."""
    process = "not running" if found is None else found.liveness
    there = found if found is not None and process != "not running" else None
    return {
        "process": process,
        "id": there.process if there else None,
        "doing": there.state if there else None,
        "written": found.written if found else None,
        "rounds": found.rounds if found else None,
        "waits_for": dict(there.waits_for) if there else {},
        "heard": dict(there.heard) if there else {},
        "scores": found.scores if found else None,
        "code": found.code if found else None,
    }


def stable_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """What is worth telling when it changes."""
    return {key: value for key, value in facts.items() if key not in CHANGING_KEYS}


def finished(facts: dict[str, Any]) -> bool:
    """Whether the agent has done all its rounds, and its process has ended."""
    return (
        facts["process"] == "not running"
        and facts["rounds"] is not None
        and facts["round"] >= facts["rounds"]
    )


def describe_status(facts: dict[str, Any]) -> dict[str, Any]:
    """The same for people: times as ages, and what is not so left out where it says nothing."""
    told = {key: value for key, value in facts.items() if key not in ("written", "id", "code")}
    if facts["written"] is not None and facts["process"] == "not answering":
        told["process"] = f"not answering since {age_in_words(facts['written'])} (process {facts['id']})"
    elif facts["id"] is not None:
        told["process"] = f"running (process {facts['id']})"
    elif facts["code"] is not None:
        told["process"] = f"not running: it ended with code {facts['code']}"
    elif facts["written"] is not None:
        told["process"] = f"not running: it was killed, or died, {age_in_words(facts['written'])} ago"
    told["waits_for"] = {who: f"since {age_in_words(since)}" for who, since in facts["waits_for"].items()}
    told["heard"] = {who: f"{age_in_words(since)} ago" for who, since in facts["heard"].items()}
    told["paused"] = None if facts["paused"] is None else f"since {age_in_words(facts['paused'])}"
    told["epsilon"] = epsilon_in_words(facts["epsilon"])
    if facts["budget"] is not None:
        told["epsilon"] += f" of {facts['budget']:.4g}"
    if facts["delta"] is not None:
        told["epsilon"] += f" at delta {facts['delta']:.2g}"
    if facts["rounds"] is not None:
        told["round"] = f"{facts['round']} of {facts['rounds']}"
    if facts["ends"] is not None:
        told["round"] = f"{told['round']}: this run was amended, and ends with round {facts['ends']}"
    for key in ("budget", "rounds", "ends", "delta"):
        told.pop(key)
    told = {key: "yes" if value is True else value for key, value in told.items()}
    nothing = [
        key for key in OMITTED_WHEN_EMPTY if told[key] is None or told[key] is False or told[key] == {}
    ]
    return {key: value for key, value in told.items() if key not in nothing}


def status_line(state: Path, facts: dict[str, Any]) -> str:
    """For a log that is not a terminal."""
    found = ProcessStatus.read(state)
    if found is None:
        return f"{facts['agent']}: round {facts['round']}, {facts['process']}"
    words = progress_in_words(found, facts["epsilon"], facts["charged_by"])
    return f"{facts['agent']}: {words}, {facts['process']}"

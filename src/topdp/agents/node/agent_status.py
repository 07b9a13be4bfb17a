"""Where an agent stands, seen from outside: its books, and what its process says of itself. Reads only.

Needs neither torch nor gRPC. Whether books are whole is another question (`agents/ledger/ledger_check.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.node.operator_orders import PAUSE, Orders
from topdp.agents.node.status_file import Standing
from topdp.agents.node.status_words import epsilon_in_words, progress_in_words, since_in_words
from topdp.agents.runtime.run_end import last_round

QUIET = {"seeded", "rehearsal", "stopped", "departed", "departures", "gone", "paused", "doing", "waits_for"}
QUIET |= {"heard", "scores"}
"""What people are told only where it is so. Who is quarantined is always told, be it nobody."""

PASSING = ("written", "heard")
"""What changes all the time, and is no change to tell."""


def facts_of(state: Path) -> dict[str, Any]:
    """What `topdp agent status --json` prints."""
    ledger = Ledger(state, writable=False)
    try:
        peers = ledger.known_peers()
        facts: dict[str, Any] = {
            "agent": ledger.meta.get("agent"),
            "federation": ledger.meta.get("federation"),
            "round": ledger.round,
            "epsilon": ledger.spent,
            "delta": float(ledger.meta[start_choices.DELTA]) if start_choices.DELTA in ledger.meta else None,
            "charged_by": ledger.charged_by,
            "worst_case": ledger.last.worst_case if ledger.last else 0.0,
            "seeded": start_choices.was(ledger, start_choices.SEEDED),
            "rehearsal": start_choices.was(ledger, start_choices.REHEARSAL),
            "budget": start_choices.budget(ledger),
            "stopped": ledger.stopped_at,
            "ends": last_round(ledger),
            "departed": ledger.departed,
            "departures": ledger.departures(),
            "gone": ledger.counted_out(),
            "seen": {peer: ledger.seen(peer) for peer in peers},
            "quarantined": {
                peer: {"code": why.code.name, "words": why.words}
                for peer in peers
                if (why := ledger.quarantined(peer)) is not None
            },
        }
    finally:
        ledger.close()
    found = Standing.read(state)
    if facts["budget"] is None and found is not None:  # books of before budgets stood in them
        facts["budget"] = found.budget
    facts |= {"paused": Orders(state).since(PAUSE), **_of_process(found)}
    if facts["rounds"] is not None and facts["ends"] is not None:  # the process may not know of it yet
        facts["rounds"] = min(facts["rounds"], max(facts["ends"], facts["round"]))
    return facts


def _of_process(found: Standing | None) -> dict[str, Any]:
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


def lasting(facts: dict[str, Any]) -> dict[str, Any]:
    """What is worth telling when it changes."""
    return {key: value for key, value in facts.items() if key not in PASSING}


def finished(facts: dict[str, Any]) -> bool:
    """Whether the agent has done all its rounds, and its process has ended."""
    return (
        facts["process"] == "not running"
        and facts["rounds"] is not None
        and facts["round"] >= facts["rounds"]
    )


def in_words(facts: dict[str, Any]) -> dict[str, Any]:
    """The same for people: times as ages, and what is not so left out where it says nothing."""
    told = {key: value for key, value in facts.items() if key not in ("written", "id", "code")}
    if facts["written"] is not None and facts["process"] == "not answering":
        told["process"] = f"not answering since {since_in_words(facts['written'])} (process {facts['id']})"
    elif facts["id"] is not None:
        told["process"] = f"running (process {facts['id']})"
    elif facts["code"] is not None:
        told["process"] = f"not running: it ended with code {facts['code']}"
    elif facts["written"] is not None:
        told["process"] = f"not running: it was killed, or died, {since_in_words(facts['written'])} ago"
    told["waits_for"] = {who: f"since {since_in_words(since)}" for who, since in facts["waits_for"].items()}
    told["heard"] = {who: f"{since_in_words(since)} ago" for who, since in facts["heard"].items()}
    told["paused"] = None if facts["paused"] is None else f"since {since_in_words(facts['paused'])}"
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
    nothing = [key for key in QUIET if told[key] is None or told[key] is False or told[key] == {}]
    return {key: value for key, value in told.items() if key not in nothing}


def in_one_line(state: Path, facts: dict[str, Any]) -> str:
    """For a log that is not a terminal."""
    found = Standing.read(state)
    if found is None:
        return f"{facts['agent']}: round {facts['round']}, {facts['process']}"
    words = progress_in_words(found, facts["epsilon"], facts["charged_by"])
    return f"{facts['agent']}: {words}, {facts['process']}"

"""The status of an agent as seen from outside: from its ledger and its status file. Reads only.

Needs neither torch nor gRPC. Whether a ledger is whole is checked in `agents/ledger/ledger_check.py`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.node.operator_orders import PAUSE_FILE, OperatorOrders
from topdp.agents.node.quarantine import quarantined_peers
from topdp.agents.node.status_file import ProcessStatus, age_in_words, epsilon_in_words, progress_in_words
from topdp.privacy.answers import WORST_CASE

OMITTED_WHEN_EMPTY = {"seeded", "rehearsal", "stopped", "departed", "departures", "gone", "paused", "doing"}
OMITTED_WHEN_EMPTY |= {"waits_for", "heard", "scores"}
"""Facts that people see only where they apply. Quarantines are always shown, even if there are none."""

CHANGING_KEYS = ("written", "heard")
"""Facts that change all the time; a new value is not reported as a change."""


def read_status(state: Path) -> dict[str, Any]:
    """Return the facts that `topdp agent status --json` prints."""
    with closing(Ledger(state, writable=False)) as ledger:
        facts = charged_facts(ledger)
        facts["seen"] = {peer: ledger.last_received(peer) for peer in ledger.recorded_peers()}
        facts["quarantined"] = quarantined_peers(ledger)
    status = ProcessStatus.read(state)
    if facts["budget"] is None and status is not None:  # the ledger of a version that did not record budgets
        facts["budget"] = status.budget
    facts |= {"paused": OperatorOrders(state).since(PAUSE_FILE), **_process_facts(status)}
    if facts["rounds"] is not None and facts["ends"] is not None:  # the process may not know the end yet
        facts["rounds"] = min(facts["rounds"], max(facts["ends"], facts["round"]))
    return facts


def charged_facts(ledger: Ledger) -> dict[str, Any]:
    """What a ledger says of its agent's charges, and of the run that they belong to."""
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
        "gone": ledger.departed_members(),
    }


def _process_facts(status: ProcessStatus | None) -> dict[str, Any]:
    """Return the facts of the status file. `rounds` is that of the last start; None before the first."""
    process = "not running" if status is None else status.liveness
    running = status if status is not None and process != "not running" else None
    return {
        "process": process,
        "id": running.process if running else None,
        "doing": running.state if running else None,
        "written": status.written if status else None,
        "rounds": status.rounds if status else None,
        "waits_for": dict(running.waits_for) if running else {},
        "heard": dict(running.heard) if running else {},
        "scores": status.scores if status else None,
        "code": status.code if status else None,
    }


def stable_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts whose changes are reported."""
    return {key: value for key, value in facts.items() if key not in CHANGING_KEYS}


def finished(facts: dict[str, Any]) -> bool:
    """Return whether the agent has completed all its rounds and its process has ended."""
    return (
        facts["process"] == "not running"
        and facts["rounds"] is not None
        and facts["round"] >= facts["rounds"]
    )


def describe_status(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts for people: ages instead of times, without facts that do not apply."""
    shown = {key: value for key, value in facts.items() if key not in ("written", "id", "code")}
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
    for key in ("budget", "rounds", "ends", "delta"):
        shown.pop(key)
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

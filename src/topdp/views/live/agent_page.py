"""What an agent's page shows, and the part of it that an agent publishes. Reads the state folder only.

Whoever looks at an agent from here cannot stop it: books are opened for reading, in another process, and
SQLite lets the agent write meanwhile.

**Guarantees.** Neither parameters nor data: rows, digests and keys are not read. What is *published* holds no
number that was computed from records: round, epsilon and budget follow from the plan, and what is said of
links from whether somebody was heard. Scores on an agent's own records are in its own view alone, since
publishing them is outside every account.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

POINTS = 400  # charges in a view at most: as many as a curve has room for
NOT_SHOWN = ("agent", "id", "seen", "heard", "waits_for", "quarantined")  # or shown in another form
USUAL = 5.0  # seconds for which one waits in every round, and nothing is wrong
QUIET = 60.0  # seconds after which a neighbour counts as silent

PUBLISHED = (
    "name", "federation", "process", "doing", "round", "rounds", "epsilon", "budget", "charged_by", "paused",
    "stopped",
)  # fmt: skip


def agent_view(state: Path, now: float | None = None) -> dict[str, Any]:
    """Everything that an agent's own page shows, ready for JSON. `epsilon` None: infinite."""
    from topdp.agents.node.agent_status import read_status

    facts = read_status(state)
    charges, sent = _charges(state)
    view = {key: value for key, value in facts.items() if key not in NOT_SHOWN}
    return {
        **view,
        "name": str(facts["agent"]),
        "paused": facts["paused"] is not None,
        "links": _links(facts, sent, time.time() if now is None else now),
        "charges": charges,
        "notes": _notes(facts),
    }


def published(view: dict[str, Any]) -> dict[str, Any]:
    """What others may see of a view: where the agent is, and whom it hears."""
    links = {
        peer: {"state": link["state"], "received": link["received"]} for peer, link in view["links"].items()
    }
    return {**{key: view[key] for key in PUBLISHED}, "links": links}


def _links(facts: dict[str, Any], sent: dict[str, int], now: float) -> dict[str, dict[str, Any]]:
    there = facts["process"] == "running"
    names = {*facts["seen"], *facts["heard"], *facts["waits_for"], *facts["gone"], *sent}
    links = {}
    for peer in sorted(names):
        heard, waits = facts["heard"].get(peer), facts["waits_for"].get(peer)
        why = facts["quarantined"].get(peer)
        if why is not None:
            state = "refused"
        elif peer in facts["gone"]:
            state = "gone"
        elif not there:
            state = "unknown"
        elif waits is not None and now - waits > USUAL:
            state = "waited for"
        else:
            state = "silent" if heard is None or now - heard > QUIET else "heard"
        links[peer] = {
            "state": state,
            "heard": heard,
            "waits": waits,
            "sent": sent.get(peer),
            "received": None if facts["seen"].get(peer, -1) < 0 else facts["seen"][peer],
            "words": None if why is None else f"{why['code']}: {why['words']}",
        }
    return links


def _charges(state: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Charges, thinned to `POINTS` with the last of them; and the newest round sent to each neighbour."""
    from topdp.agents.ledger.ledger import Ledger
    from topdp.agents.ledger.ledger_entries import LedgerEntry

    ledger = Ledger(state, writable=False)
    try:
        last = ledger.last_entry.number if ledger.last_entry else -1
        every = max(1, -(-(last + 1) // POINTS))
        query = "SELECT entry FROM charges WHERE number % ? = 0 OR number = ? ORDER BY number"
        entries = [LedgerEntry.read(text) for (text,) in ledger.database.rows(query, every, last)]
    finally:
        ledger.close()
    sent = {peer: entry.round for entry in entries for peer in entry.digests}
    keys = ("round", "kind", "charge", "total", "worst_case")
    return [{key: getattr(entry, key) for key in keys} for entry in entries], sent


def _notes(facts: dict[str, Any]) -> list[str]:
    """What a reader must know before believing a number."""
    notes = []
    if facts["seeded"]:
        notes.append("Its noise came from a seed that others know: for tests, not private.")
    if facts["rehearsal"]:
        notes.append("A rehearsal with canaries: gradients were written down without noise; not private.")
    if facts["stopped"] is not None:
        notes.append(
            f"Its budget ended before the plan: its data entered no round from {facts['stopped']} on."
        )
    if facts["ends"] is not None:
        notes.append(f"This run was amended, and ends with round {facts['ends']}.")
    if facts["departed"] is not None:
        notes.append("It departed from the plan: epsilon is that of the worst case from there on.")
    if facts["process"] == "not answering":
        notes.append("Its process is there and has written nothing for a while.")
    elif facts["process"] == "not running" and facts["code"] is None and facts["written"] is not None:
        notes.append("Its process was killed, or died: the same `topdp agent start` continues.")
    return notes

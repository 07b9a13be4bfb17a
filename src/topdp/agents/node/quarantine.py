"""Whom an agent no longer believes, and how a person who has looked takes that back, with a reason.

Lifting is for an agent that does not run (its process keeps the books locked), and holds from its next start.

**Guarantees.** What the quarantine has cost stays: a departure from the plan stays one, and who charges by
worst case since then goes on so. Who was given up for good where draws are shared stays so: the others have
counted it out. A neighbour that repeats what it did is quarantined again.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topdp.agents.ledger.ledger import Ledger, PartnerMode
from topdp.errors import InputError
from topdp.privacy.answers import WORST_CASE
from topdp.runs.config import did_you_mean

LIFTED_KEY_PREFIX = "lifted "  # begins the key of what was lifted; a number follows


def read_quarantine(state: Path) -> dict[str, Any]:
    """Who is quarantined and why, and what was lifted before."""
    ledger = Ledger(state, writable=False)
    try:
        return {
            "quarantined": {
                peer: {"code": why.code.name, "words": why.words}
                for peer in ledger.recorded_peers()
                if (why := ledger.quarantined(peer)) is not None
            },
            "lifted": _lifted_entries(ledger),
        }
    finally:
        ledger.close()


def lift_quarantine(state: Path, peer: str, reason: str) -> dict[str, Any]:
    """`peer` is believed again from the next start on; what is on the books of it then."""
    if not reason.strip():
        raise InputError("--reason: expected what a person has found, got nothing.")
    ledger = _for_writing(state)
    try:
        why = ledger.quarantined(peer)
        if why is None:
            known = [one for one in ledger.recorded_peers() if ledger.quarantined(one) is not None]
            raise InputError(f"{peer} is not quarantined here.{did_you_mean(peer, known) if known else ''}")
        facts = {
            "peer": peer,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "round": ledger.round,
            "code": why.code.name,
            "words": why.words,
            "reason": reason.strip(),
        }
        # The reason first: a crash in between must not leave somebody believed without one.
        ledger.database.remember(f"{LIFTED_KEY_PREFIX}{len(_lifted_entries(ledger))}", json.dumps(facts))
        ledger.lift_quarantine(peer)
        return {**facts, "remarks": _remarks(ledger, peer)}
    finally:
        ledger.close()


def _remarks(ledger: Ledger, peer: str) -> list[str]:
    """What lifting does not bring back."""
    remarks = []
    if ledger.departed is not None:
        remarks.append(
            f"The plan was departed from ({ledger.departed}): charges stay by {ledger.charged_by}."
        )
    if peer in ledger.departed_members():
        remarks.append(f"{peer} was counted out for good: it takes no further part in this run.")
    return remarks


def _lifted_entries(ledger: Ledger) -> list[dict[str, Any]]:
    found = [(key, value) for key, value in ledger.meta.items() if key.startswith(LIFTED_KEY_PREFIX)]
    return [
        json.loads(value)
        for _, value in sorted(found, key=lambda one: int(one[0].removeprefix(LIFTED_KEY_PREFIX)))
    ]


def _for_writing(state: Path) -> Ledger:
    """The ledger as its own agent opens it."""
    reading = Ledger(state, writable=False)
    meta = dict(reading.meta)
    reading.close()
    partners: PartnerMode = "found" if meta.get("partners") == "found" else "planned"
    return Ledger(
        state,
        meta.get("federation", ""),
        meta.get("agent", ""),
        partners=partners,
        guarantee=meta.get("guarantee", WORST_CASE.name),
        holds_after_departures=meta.get("whoever_is_missing") == str(True),
    )

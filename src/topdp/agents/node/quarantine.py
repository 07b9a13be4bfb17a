"""Quarantined neighbours, whose rows an agent no longer accepts, and how a person lifts a quarantine.

A quarantine is lifted while the agent is stopped (its process locks the ledger), and from its next start on.

**Guarantees.** The cost of the quarantine stays: a departure from the plan is not revoked, and an agent that
has charged by worst case since then continues to. Where draws are shared, a departed neighbour stays
departed: the other agents count it as a colluder. A neighbour that offends again is quarantined again.
"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topdp.agents.ledger.ledger import Ledger
from topdp.errors import InputError
from topdp.runs.config import did_you_mean

LIFTED_KEY_PREFIX = "lifted "  # followed by a number: the key of a lifted quarantine


def read_quarantine(state: Path) -> dict[str, Any]:
    """Return the quarantined neighbours with reasons, and the quarantines that were lifted before."""
    with closing(Ledger(state, writable=False)) as ledger:
        return {"quarantined": quarantined_peers(ledger), "lifted": _lifted_entries(ledger)}


def quarantined_peers(ledger: Ledger) -> dict[str, dict[str, str]]:
    """Map each quarantined neighbour to the code and words of the reason."""
    return {
        peer: {"code": reason.code.name, "words": reason.words}
        for peer in ledger.recorded_peers()
        if (reason := ledger.quarantined(peer)) is not None
    }


def lift_quarantine(state: Path, peer: str, reason: str) -> dict[str, Any]:
    """Accept rows of `peer` from the next start on. Return the facts that the ledger records."""
    if not reason.strip():
        raise InputError("--reason: expected what a person has found, got nothing.")
    with closing(Ledger(state)) as ledger:
        cause = ledger.quarantined(peer)
        if cause is None:
            quarantined = list(quarantined_peers(ledger))
            hint = did_you_mean(peer, quarantined) if quarantined else ""
            raise InputError(f"{peer} is not quarantined here.{hint}")
        facts = {
            "peer": peer,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "round": ledger.round,
            "code": cause.code.name,
            "words": cause.words,
            "reason": reason.strip(),
        }
        # The reason first: a crash in between must not lift a quarantine without a reason.
        ledger.database.remember(f"{LIFTED_KEY_PREFIX}{len(_lifted_entries(ledger))}", json.dumps(facts))
        ledger.lift_quarantine(peer)
        remarks = []  # what is not restored
        if ledger.departed is not None:
            remarks.append(
                f"The plan was departed from ({ledger.departed}): charges stay by {ledger.charged_by}."
            )
        if peer in ledger.departed_members():
            remarks.append(f"{peer} was given up for good: it takes no further part in this run.")
        return {**facts, "remarks": remarks}


def _lifted_entries(ledger: Ledger) -> list[dict[str, Any]]:
    entries = [entry for entry in ledger.meta.items() if entry[0].startswith(LIFTED_KEY_PREFIX)]
    entries.sort(key=lambda entry: int(entry[0].removeprefix(LIFTED_KEY_PREFIX)))
    return [json.loads(value) for _, value in entries]

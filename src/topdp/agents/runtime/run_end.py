"""Where a run ends: with its plan, or earlier where its manifest was amended."""

from __future__ import annotations

import json
from collections.abc import Iterable

from topdp.agents.ledger.ledger import Ledger
from topdp.plan import Plan

ENDS, LEAVES = "ends", "leaves"


def end_with(ledger: Ledger, round: int, leaves: Iterable[str] = ()) -> None:
    """Nothing is made after `round`, whatever a later start says; or after an earlier one that was named.

    `leaves`: who is no member any more. It may be gone for good, and is not stayed for.
    """
    ledger.database.remember(ENDS, str(min(round, int(ledger.meta.get(ENDS, round)))))
    ledger.database.remember(LEAVES, json.dumps(sorted({*leaves, *leaving(ledger)})))


def leaving(ledger: Ledger) -> frozenset[str]:
    """Who is no member any more once this run has ended."""
    return frozenset(json.loads(ledger.meta.get(LEAVES, "[]")))


def last_round(ledger: Ledger) -> int | None:
    """The round after which these books end for good; None where the plan says it."""
    return None if (ends := ledger.meta.get(ENDS)) is None else int(ends)


def all_done(ledger: Ledger, plan: Plan) -> bool:
    """Whether every round is on the books."""
    ends = last_round(ledger)
    return ledger.round + 1 >= (plan.releases if ends is None else min(plan.releases, ends + 1))

"""Choices made at the starts of an agent, recorded in its ledger: a restart can only be stricter.

Seeded noise and canaries stay recorded permanently, whatever later starts choose. An agent's own budget can
only become smaller. Cyclic batches keep the order of the records. `Ledger` checks the manifest, and whether
partners are planned or found by live pairing.

**Guarantees.** Once a release was made under noise that can be reproduced, or while gradients without noise
were recorded, every result says so. The charges never exceed the smallest budget that was ever requested.
"""

from __future__ import annotations

import math

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError
from topdp.errors import DataError

LEDGER_ID_KEY = "books"
SEEDED_KEY, REHEARSAL_KEY = "seeded", "rehearsal"
BUDGET_KEY = "budget"
DELTA_KEY = "delta"  # of the agent, by the manifest; all charges refer to it
LEFT_BEHIND_KEY = "left behind"
"""The ledger's key for the fact that the run is over for this agent: its shared draws are left out."""

TEST_OPTIONS = {SEEDED_KEY: "--seeded", REHEARSAL_KEY: "--canaries"}


def record_choices(
    ledger: Ledger, *, seeded: bool, rehearsal: bool, requested: float | None, granted: float
) -> float:
    """Record the choices of this start, or raise LedgerError. Return ε of the budget from now on.

    `seeded`: whether noise is seeded. `rehearsal`: whether canaries take the place of records. `requested`:
    ε of the agent's own budget; None: that of an earlier start, or else `granted`, the ε of the manifest.
    """
    recorded = recorded_budget(ledger)
    if requested is not None and recorded is not None and requested > recorded:
        raise LedgerError(
            f"--epsilon: expected at most {recorded:.6g}, the budget of this state folder, got "
            f"{requested:.6g}: a budget can be made smaller and never larger. Omit --epsilon to keep it."
        )
    for key, is_chosen in ((SEEDED_KEY, seeded), (REHEARSAL_KEY, rehearsal)):
        if is_chosen and not ever_chosen(ledger, key):
            if ledger.last_entry is not None:
                raise LedgerError(
                    f"{TEST_OPTIONS[key]}: expected no such option, because releases in the ledger in "
                    f"{ledger.folder} were made without it. Start again without it, or with another state "
                    "folder."
                )
            ledger.database.remember(key, str(True))
    smallest = min([granted, *(value for value in (recorded, requested) if value is not None)])
    if smallest != recorded:
        ledger.database.remember(BUDGET_KEY, repr(smallest))
    return smallest


def ever_chosen(ledger: Ledger, key: str) -> bool:
    """Return whether some start chose `key`: SEEDED_KEY or REHEARSAL_KEY."""
    return ledger.meta.get(key) == str(True)


def protects_data(ledger: Ledger) -> bool:
    """Return whether noise is secret and no gradients are recorded: no start had seeded noise or canaries."""
    return not any(ever_chosen(ledger, key) for key in TEST_OPTIONS)


def expect_record_order(ledger: Ledger, order: str) -> None:
    """Record `order`, a digest of the records in the order of cyclic batches; it must never change.

    It is recorded before the first release. A record that moved within the cycle would be used more often
    than accounts assume, so a lost order is not replaced.
    """
    recorded = ledger.meta.get("order")
    if ledger.last_entry is None:
        ledger.database.remember("order", order)
    elif recorded is None:
        raise TamperedError(
            f"Expected the digest of the record order in {ledger.folder / LEDGER_FILE}, because its releases "
            f"used cyclic batches, got none. Restore the newest copy of {ledger.folder}. Without it this "
            "agent must leave: let the others sign an amendment (`topdp federation amend --remove`)."
        )
    elif recorded != order:
        raise DataError(
            "Expected the records in the order of the first start, got others: cyclic batches would use some "
            "records more often than was accounted for. Give --data the file of the first start."
        )


def recorded_budget(ledger: Ledger) -> float | None:
    """Return ε of the budget in the ledger; None before the first start that recorded one."""
    text = ledger.meta.get(BUDGET_KEY)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise TamperedError(
            f"Expected a finite budget > 0 in the ledger in {ledger.folder}, got {text!r:.80}. Do not delete "
            "the file: its charges were spent."
        )
    return value

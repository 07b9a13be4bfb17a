"""What an agent was told at its starts, kept on its books: a restart can only be stricter, and hides nothing.

Seeded noise and canaries stay on the books for ever, whatever later starts say; a budget of one's own can
only become smaller. Which manifest, and whether partners are planned or found, is `ledger`'s to compare.

**Guarantees.** Once a release was made under noise that can be repeated, or beside notes without noise, every
result says so. What is charged never passes the smallest budget that was ever asked for.
"""

from __future__ import annotations

import math

from topdp.agents.books.database import LedgerError, TamperedError
from topdp.agents.books.ledger import Ledger

SEEDED, REHEARSAL, BUDGET = "seeded", "rehearsal", "budget"
OPTIONS = {SEEDED: "--seeded", REHEARSAL: "--canaries"}


def settle(ledger: Ledger, seeded: bool, rehearsal: bool, asked: float | None, granted: float) -> float:
    """Writes down what this start chose, or refuses it; the budget from now on.

    `asked`: a budget of one's own; None: that of an earlier start, or all that is `granted`.
    """
    known = budget(ledger)
    if asked is not None and known is not None and asked > known:
        raise LedgerError(
            f"--epsilon: expected at most {known:.6g}, the budget of this state folder, got {asked:.6g}: a "
            "budget can be made smaller and never larger. Leave --epsilon away to keep it."
        )
    for key, chosen in ((SEEDED, seeded), (REHEARSAL, rehearsal)):
        if chosen and not was(ledger, key):
            _expect_from_the_start(ledger, key)
            ledger.database.remember(key, str(True))
    least = min([granted, *(value for value in (known, asked) if value is not None)])
    if least != known:
        ledger.database.remember(BUDGET, repr(least))
    return least


def was(ledger: Ledger, key: str) -> bool:
    """Whether some start had seeded noise, or canaries."""
    return ledger.meta.get(key) == str(True)


def _expect_from_the_start(ledger: Ledger, key: str) -> None:
    """Releases that were made otherwise stay what they are. Format 4 did not say how they were made."""
    unknown = "migrated_from" in ledger.meta and BUDGET not in ledger.meta
    if ledger.last is not None and not unknown:
        raise LedgerError(
            f"{OPTIONS[key]}: expected no such option, since releases on the books in {ledger.folder} were "
            "made without it. Start again without it, or with another state folder."
        )


def budget(ledger: Ledger) -> float | None:
    """The budget that the books are kept to; None before the first start that wrote one down."""
    text = ledger.meta.get(BUDGET)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise TamperedError(f"Expected a budget in the ledger in {ledger.folder}, got {text!r:.80}.")
    return value

"""What an agent was told at its starts, kept on its books: a restart can only be stricter, and hides nothing.

Seeded noise and canaries stay on the books for ever, whatever later starts say; a budget of one's own can
only become smaller; cyclic batches keep the order of the records. Books that an older version began are gone
on with once a person has said so. Which manifest, and whether partners are planned or found, is `ledger`'s.

**Guarantees.** Once a release was made under noise that can be repeated, or beside notes without noise, every
result says so. What is charged never passes the smallest budget that was ever asked for.
"""

from __future__ import annotations

import math

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_database import LEDGER_FILE, LedgerError, TamperedError
from topdp.errors import DataError, TrustError

SEEDED_KEY, REHEARSAL_KEY, BUDGET_KEY, UPGRADE_KEY, DELTA_KEY = (
    "seeded",
    "rehearsal",
    "budget",
    "upgrade",
    "delta",
)
TEST_OPTIONS = {SEEDED_KEY: "--seeded", REHEARSAL_KEY: "--canaries"}


def record_choices(
    ledger: Ledger, seeded: bool, rehearsal: bool, asked: float | None, granted: float
) -> float:
    """Writes down what this start chose, or refuses it; the budget from now on.

    `asked`: a budget of one's own; None: that of an earlier start, or all that is `granted`.
    """
    known = recorded_budget(ledger)
    if asked is not None and known is not None and asked > known:
        raise LedgerError(
            f"--epsilon: expected at most {known:.6g}, the budget of this state folder, got {asked:.6g}: a "
            "budget can be made smaller and never larger. Leave --epsilon away to keep it."
        )
    for key, chosen in ((SEEDED_KEY, seeded), (REHEARSAL_KEY, rehearsal)):
        if chosen and not ever_chosen(ledger, key):
            _expect_from_the_start(ledger, key)
            ledger.database.remember(key, str(True))
    least = min([granted, *(value for value in (known, asked) if value is not None)])
    if least != known:
        ledger.database.remember(BUDGET_KEY, repr(least))
    return least


def ever_chosen(ledger: Ledger, key: str) -> bool:
    """Whether some start had seeded noise, or canaries."""
    return ledger.meta.get(key) == str(True)


def _expect_from_the_start(ledger: Ledger, key: str) -> None:
    """Releases that were made otherwise stay what they are. Format 4 did not say how they were made."""
    unknown = "migrated_from" in ledger.meta and BUDGET_KEY not in ledger.meta
    if ledger.last_entry is not None and not unknown:
        raise LedgerError(
            f"{TEST_OPTIONS[key]}: expected no such option, since releases on the books in "
            f"{ledger.folder} were "
            "made without it. Start again without it, or with another state folder."
        )


def expect_record_order(ledger: Ledger, order: str) -> None:
    """`order` stands for the records as cyclic batches take them, and must not change between releases.

    Written down before the first release. A record that moved to another place of the cycle would be used
    more often than accounts say, so what was lost is not drawn anew.
    """
    known = ledger.meta.get("order")
    if ledger.last_entry is None:
        ledger.database.remember("order", order)
    elif known is None:
        raise TamperedError(
            f"Expected the order of the records in {ledger.folder / LEDGER_FILE}, which its releases "
            "followed: it "
            "is gone. Restore the newest copy; without it this agent must leave the federation."
        )
    elif known != order:
        raise DataError(
            "Expected the records, in the order, with which this agent began, got others: cyclic batches "
            "would use some records more often than was accounted for. Give --data the file of the start."
        )


def expect_upgrade_agreed(ledger: Ledger, agreed: bool) -> None:
    """Refuses releases that a version without signatures made, unless a person knows that none is missing.

    Neighbours cannot show that such a row was this agent's. If these books are an old copy, their word looks
    like a lie, and rounds would be made twice that are charged once.
    """
    made = ledger.database.one("SELECT charges FROM notes WHERE place = 'meta' AND key = 'migrated_from'")
    if made is None or not made[0] or ever_chosen(ledger, UPGRADE_KEY) or agreed:
        return
    raise TrustError(
        f"The ledger in {ledger.folder} was begun by a version of topdp that did not sign rows, so "
        "neighbours could not show it if this were an old copy. End the run with that version; or, if no "
        "backup was put back, compare the last round with what neighbours have `seen` (topdp agent status), "
        "and go on with --upgrade."
    )


def record_upgrade(ledger: Ledger) -> None:
    """A person knows that these books are the newest; stays so."""
    if "migrated_from" in ledger.meta and not ever_chosen(ledger, UPGRADE_KEY):
        ledger.database.remember(UPGRADE_KEY, str(True))


def record_delta(ledger: Ledger, delta: float) -> None:
    """At which δ all charges are: the manifest's, for who reads the books without it."""
    if DELTA_KEY not in ledger.meta:
        ledger.database.remember(DELTA_KEY, repr(delta))


def recorded_budget(ledger: Ledger) -> float | None:
    """The budget that the books are kept to; None before the first start that wrote one down."""
    text = ledger.meta.get(BUDGET_KEY)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise TamperedError(f"Expected a budget in the ledger in {ledger.folder}, got {text!r:.80}.")
    return value

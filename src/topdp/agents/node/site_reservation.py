"""One agent and the book of its site: lets the run in before its first release, and counts what it spent.

**Guarantees.** Nothing is sent before the run's whole budget is on the site's book, and no charge that passes
it is on the agent's books before it is on the site's. A copied, restored or new state folder is another run.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from pathlib import Path

import numpy as np

from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_database import LEDGER_FILE, LedgerError
from topdp.agents.ledger.record_fingerprints import fingerprint_records
from topdp.agents.ledger.site_budget import BudgetRequest, SiteBudget
from topdp.agents.runtime.agent import Agent
from topdp.base.array_types import AnyArray
from topdp.privacy.answers import WORST_CASE

logger = logging.getLogger("topdp.agents")

SITE_VARIABLE = "TOPDP_SITE"
SITE_RUN_KEY = "site_run"  # the key of the ledger's name in the site's book


def site_folder(site: Path | None, identity: Path) -> tuple[Path, bool]:
    """Where the site's book is, and whether somebody chose that: --site, TOPDP_SITE, the identity folder."""
    chosen = site or (Path(os.environ[SITE_VARIABLE]) if os.environ.get(SITE_VARIABLE) else None)
    return (chosen, True) if chosen else (identity / "site", False)


class SiteReservation:
    """The run of one agent in the book of its site."""

    def __init__(
        self, book: SiteBudget, agent: Agent, records: tuple[AnyArray, AnyArray], source: str
    ) -> None:
        ledger, manifest = agent.ledger, agent.context.manifest
        privacy = manifest.config.privacy
        hidden = not any(start_choices.ever_chosen(ledger, key) for key in start_choices.TEST_OPTIONS)
        spent = math.inf if ledger.spent is None or not hidden else ledger.spent
        wanted = BudgetRequest(
            books=_ledger_id(ledger),
            federation=manifest.hash,
            agent=agent.name,
            folder=str(ledger.folder.resolve()),
            guarantee=ledger.charged_by,
            adjacency=privacy.adjacency,
            delta=float(privacy.delta),
            epsilon=max(agent.context.epsilon, spent),
            spent=spent,
        )
        data = fingerprint_records(book.key, np.asarray(records[0]), np.asarray(records[1]), source)
        self.book, self.agent = book, agent
        self.books, self._hidden = wanted.books, hidden
        self._reserved = book.enter(wanted, data, _charge_count(ledger))
        ledger.before_charge = self._before

    def _before(self, epsilon: float) -> None:
        if epsilon > self._reserved:
            self.book.raise_to(self.books, epsilon)
            self._reserved = epsilon

    def end(self) -> None:
        """Gives back what was not spent, where no further release can be made."""
        ledger = self.agent.ledger
        if self.agent.loop.all_done:
            spent = math.inf if ledger.spent is None or not self._hidden else ledger.spent
            self.book.conclude(self.books, spent, _charge_count(ledger))
        self.book.close()


def reserve_site_budget(
    agent: Agent, site: Path | None, identity: Path, records: tuple[AnyArray, AnyArray], source: str
) -> SiteReservation | None:
    """The agent's run in the site's book; None where nobody chose a place and there is none to write to."""
    folder, chosen = site_folder(site, identity)
    try:
        book = SiteBudget(folder)
    except LedgerError as error:
        if chosen:
            raise
        logger.warning(
            "%s: no book of the site: %s Runs on the same records are not added up.", agent.name, error
        )
        return None
    try:
        return SiteReservation(book, agent, records, source)
    except BaseException:
        book.close()
        raise


def close_run(site: Path, state: Path) -> float:
    """Ends a run for good: its data enter no round any more, what it did not spend is free; ε spent."""
    seen = Ledger(state, writable=False)
    facts, whoever = seen.meta, seen.meta.get("whoever_is_missing") == str(True)
    seen.close()
    ledger = Ledger(
        state,
        facts.get("federation", ""),
        facts.get("agent", ""),
        partners="found" if facts.get("partners") == "found" else "planned",
        guarantee=facts.get("guarantee", WORST_CASE.name),
        holds_after_departures=whoever,
    )
    book = SiteBudget(site)
    try:
        if ledger.stopped_at is None:
            ledger.stop_data(ledger.round + 1)
        hidden = not any(start_choices.ever_chosen(ledger, key) for key in start_choices.TEST_OPTIONS)
        spent = math.inf if ledger.spent is None or not hidden else ledger.spent
        if not book.conclude(_ledger_id(ledger), spent, _charge_count(ledger)):
            raise LedgerError(f"Expected a run of {state} in the site's book in {site}, there is none.")
        return spent
    finally:
        book.close()
        ledger.close()


def _ledger_id(ledger: Ledger) -> str:
    """A ledger's name in the book: its own, and the file's, which a copy does not share."""
    if SITE_RUN_KEY not in ledger.meta:
        ledger.database.remember(SITE_RUN_KEY, secrets.token_hex(16))
    file = (ledger.folder / LEDGER_FILE).stat()
    return f"{ledger.meta[SITE_RUN_KEY]} {file.st_dev} {file.st_ino}"


def _charge_count(ledger: Ledger) -> int:
    return ledger.last_entry.number + 1 if ledger.last_entry else 0

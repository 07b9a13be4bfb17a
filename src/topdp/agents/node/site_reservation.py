"""The run of one agent in the site budget: reserved with its first charge, final after its last.

By default the site budget of an identity is in the folder of the user's programs (`XDG_STATE_HOME`), so an
identity folder that is restored from a backup does not take it along.

**Guarantees.** Nothing is sent before the run's whole budget is in the site budget, and no charge that
exceeds it is in the ledger before it is in the site budget. An agent that charges nothing, because its
neighbours have other terms, reserves nothing. A copied, restored or new state folder is another run.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from contextlib import closing
from pathlib import Path

import numpy as np

from topdp.agents.agreement.identity import CARD_FILE
from topdp.agents.agreement.identity_card import read_card
from topdp.agents.agreement.run_marks import RunSecret
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import LedgerError, infinite_if_none
from topdp.agents.ledger.record_fingerprints import fingerprint_persons, fingerprint_records
from topdp.agents.ledger.site_budget import SITE_BUDGET_FILE, BudgetRequest, SiteBudget, copy_site_budget
from topdp.agents.ledger.start_choices import LEFT_BEHIND_KEY, protects_data
from topdp.agents.runtime.agent import Agent
from topdp.base.array_types import AnyArray
from topdp.base.files import write_atomically
from topdp.errors import InputError

logger = logging.getLogger("topdp.agents")

SITE_VARIABLE = "TOPDP_SITE"
SITE_RUN_KEY = "site_run"  # the key of the random part of a ledger's id in the site budget
MOVED_FILE = "moved_to"  # in the folder where earlier versions kept the site budget: where it is now


def site_folder(site: Path | None, identity: Path) -> tuple[Path, bool]:
    """Return the folder of the site budget, and whether the user chose it (with --site or TOPDP_SITE).

    The default is outside the identity folder, and contains the fingerprint of the first card. A site budget
    in the identity folder, where earlier versions kept it, is copied there once.
    """
    chosen = site or (Path(os.environ[SITE_VARIABLE]) if os.environ.get(SITE_VARIABLE) else None)
    if chosen:
        return chosen, True
    former, fingerprint = identity / "site", read_card(identity / CARD_FILE).fingerprint
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder, moved = home / "topdp" / f"site-{fingerprint[:16]}", former / MOVED_FILE
    if (folder / SITE_BUDGET_FILE).exists():
        return folder, False
    if moved.exists():
        raise InputError(
            f"Expected the site budget of this identity in {moved.read_text().strip()}, as {moved} says, but "
            "it is not there. Name its folder with --site; without it, earlier runs would not be added up."
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (former / SITE_BUDGET_FILE).exists():
            copy_site_budget(former, folder)
            write_atomically(moved, f"{folder.resolve()}\n")
    except OSError as error:
        logger.warning(
            "the site budget is in the identity folder, because %s cannot be written (%s): if that folder is "
            "restored from a backup, earlier runs are forgotten. Name another one with --site.", folder, error
        )  # fmt: skip
        return former, False
    return folder, False


class SiteReservation:
    """The run of one agent in the site budget."""

    def __init__(
        self,
        budget: SiteBudget,
        agent: Agent,
        records: tuple[AnyArray, AnyArray],
        source: str,
        *,
        identifiers: AnyArray | None = None,
    ) -> None:
        ledger, manifest = agent.ledger, agent.context.manifest
        privacy, spent = manifest.config.privacy, _spent(ledger)
        request = BudgetRequest(
            ledger_id=_ledger_id(ledger),
            federation=manifest.hash,
            agent=agent.name,
            folder=str(ledger.folder.resolve()),
            guarantee=ledger.charged_by,
            adjacency=privacy.adjacency,
            delta=agent.context.setup.delta(agent.context.part.agent),
            epsilon=max(agent.context.epsilon, spent),
            spent=spent,
        )
        if identifiers is None:
            data = fingerprint_records(budget.key, np.asarray(records[0]), np.asarray(records[1]), source)
        else:
            data = fingerprint_persons(budget.key, identifiers, source)
        self.budget, self.agent, self._ledger_id = budget, agent, request.ledger_id
        self._request, self._data = request, data
        self._reserved: float | None = None
        if ledger.charge_count:
            self._reserved = budget.reserve(request, data, ledger.charge_count)
        else:
            budget.expect_room(request, data)
        ledger.before_charge = self._reserve_if_needed

    def _reserve_if_needed(self, epsilon: float) -> None:
        if self._reserved is None:
            self._reserved = self.budget.reserve(self._request, self._data, 0)
        if epsilon > self._reserved:
            self.budget.raise_reservation(self._ledger_id, epsilon)
            self._reserved = epsilon

    def end(self) -> None:
        """Release the unspent part of the reservation if the run can make no further release."""
        ledger = self.agent.ledger
        if self.agent.loop.all_done:
            self.budget.finalize(self._ledger_id, _spent(ledger), ledger.charge_count)
        self.budget.close()


def reserve_site_budget(
    agent: Agent,
    site: Path | None,
    identity: Path,
    records: tuple[AnyArray, AnyArray],
    source: str,
    identifiers: AnyArray | None = None,
) -> SiteReservation | None:
    """Reserve the agent's run; None where the user chose no folder and the default one cannot be written.

    `identifiers`: of each record's person, if the person is the unit of protection.
    """
    folder, is_chosen = site_folder(site, identity)
    try:
        budget = SiteBudget(folder)
    except LedgerError as error:
        if is_chosen:
            raise
        logger.warning("%s: no site budget: %s Runs on the same records are not added up.", agent.name, error)
        return None
    try:
        return SiteReservation(budget, agent, records, source, identifiers=identifiers)
    except BaseException:
        budget.close()
        raise


def close_run(site: Path, state: Path, leave: Path | None = None) -> float:
    """End a run for good and free what it did not spend: its data enter no further round. Return ε spent.

    `leave`: the identity folder, if the agent takes no further part: its key for shared noise is erased.
    """
    with closing(Ledger(state)) as ledger, closing(SiteBudget(site)) as budget:
        if leave is not None:
            ledger.database.remember(LEFT_BEHIND_KEY, "yes")
            RunSecret(leave, ledger.meta["federation"]).erase()
        if ledger.stopped_at is None:
            ledger.stop_data(ledger.round + 1)
        spent = _spent(ledger)
        is_known = budget.finalize(_ledger_id(ledger), spent, ledger.charge_count) > 0
        if not is_known and ledger.charge_count and leave is None:
            raise LedgerError(f"Expected a run of {state} in the site budget in {site}, there is none.")
        return spent


def _spent(ledger: Ledger) -> float:
    return infinite_if_none(ledger.spent) if protects_data(ledger) else math.inf


def _ledger_id(ledger: Ledger) -> str:
    """Return a random id with the identity of the file, which a copy does not share."""
    if SITE_RUN_KEY not in ledger.meta:
        ledger.database.remember(SITE_RUN_KEY, secrets.token_hex(16))
    file = (ledger.folder / LEDGER_FILE).stat()
    return f"{ledger.meta[SITE_RUN_KEY]} {file.st_dev} {file.st_ino}"

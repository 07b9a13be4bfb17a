"""The budget that an amendment leaves to an agent, computed from its own ledger of the run before.

**Guarantees.** Privacy costs compose: a run that ends early has sent a part of the rows that its account
covers, and the new run begins at the public start. So both together are (ε₁ + ε₂, δ₁ + δ₂)-private
(sequential composition), under the conditions of "A run that is amended" in docs/privacy.md. ε₁ is the larger
of the amendment's value and that of the agent's own ledger, which must be complete and the newest. An agent
with an earlier run that the amendment omits does not start. Only one of two amendments can run.
"""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

from topdp.agents.agreement.manifest import Amendment, Manifest
from topdp.agents.agreement.run_marks import RollbackMark
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_entries import infinite_if_none
from topdp.errors import BudgetError, InputError, TrustError


def carry_budget_over(manifest: Manifest, name: str, state: Path | None, identity: Path) -> float | None:
    """Return ε that `name` may spend under an amendment, by its ledger in `state`; None for a new member.

    From then on, only this amendment can use the rest of that budget.
    """
    amendment = manifest.amends
    if amendment is None and state is not None:
        raise InputError(
            "--after: expected a manifest that amends another one, got one that amends none: budgets of the "
            "run before would not be counted. Omit --after if that is intended."
        )
    expect_listed(manifest, name, identity, is_member=state is not None)
    if amendment is None or name not in amendment.granted:
        return None
    if state is None:
        raise InputError(
            f"Expected the state folder of the run before, {amendment.manifest[:16]}, since this manifest "
            "amends it and its budgets continue: name it with --after."
        )
    with closing(Ledger(state, writable=False)) as ledger:
        verify(ledger)
        remaining = remaining_budget(amendment, name, ledger)
        mark = RollbackMark(identity, amendment.manifest)
        if mark.resume(ledger.meta.get(start_choices.LEDGER_ID_KEY, ""), ledger.round, ledger.has_entry):
            raise TrustError(
                f"--after: expected the newest ledger of {name} for the run {amendment.manifest[:16]}, got "
                f"another in {state}: the agent ran later with another state folder, and what that spent "
                "counts too."
            )
        mark.continue_with(manifest.hash)
        return remaining


def remaining_budget(amendment: Amendment, name: str, ledger: Ledger) -> float:
    """Return ε that `name` may spend under an amendment, given its ledger of the previous run.

    The agent's own budget still applies, as after a restart. Raise BudgetError if nothing remains.
    """
    federation, agent = ledger.meta["federation"], ledger.meta["agent"]
    has_ended = ledger.final_round is not None and ledger.round >= amendment.round
    if (federation, agent) != (amendment.manifest, name):
        raise TrustError(
            f"--after: expected the ledger of {name} for the run {amendment.manifest[:16]}, got that of "
            f"{agent} for {federation[:16]}. Name the state folder of {name} for that run."
        )
    if not has_ended:
        raise TrustError(
            f"--after: expected a ledger that ended with round {amendment.round}, got one that has not "
            "ended. First end that run with `topdp agent start --amended-by`, so that it spends nothing more."
        )
    granted = min(amendment.granted[name], start_choices.recorded_budget(ledger) or math.inf)
    remaining = granted - max(amendment.spent[name], infinite_if_none(ledger.spent))
    if remaining <= 0:
        raise BudgetError(
            f"Expected a remaining budget > 0 for {name}, got {remaining:.6g} of {granted:.6g}: the previous "
            "run has spent it. Remove the agent from the amendment."
        )
    return remaining


def expect_listed(manifest: Manifest, name: str, identity: Path, is_member: bool = False) -> None:
    """Raise TrustError if an amendment omits what `name` has spent in the previous run."""
    amendment = manifest.amends
    if amendment is None or name in amendment.granted:
        return
    if is_member or RollbackMark(identity, amendment.manifest).path.exists():
        raise TrustError(
            f"Expected what {name} was granted and has spent in the run {amendment.manifest[:16]}, since it "
            f"was a member; the amendment {manifest.hash[:16]} does not list it, so all would be granted "
            "again. Have it made again with `topdp federation amend`, from the manifest of that run."
        )

"""The budget that an amendment leaves to an agent, computed from its own ledger of the run before.

**Guarantees.** An agent that has spent more than its plan is held to its own ledger, which must be whole and
the newest. An agent that the amendment forgets does not begin, and of two amendments one is run. The sum
holds under the conditions of "A run that is amended" in docs/privacy.md.
"""

from __future__ import annotations

from pathlib import Path

from topdp.agents.agreement.amendments import PreviousRun, amendment_of, remaining_budget
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.agreement.run_marks import RollbackMark
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.errors import InputError, TrustError


def carry_budget_over(manifest: Manifest, name: str, state: Path | None, identity: Path) -> float | None:
    """ε that `name` may spend under an amendment, by its ledger in `state`; None for a new member.

    From then on the rest of that budget belongs to this amendment alone.
    """
    amendment = amendment_of(manifest)
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
    ledger = Ledger(state, writable=False)
    try:
        verify(ledger)
        meta = ledger.meta
        previous = PreviousRun(
            federation=meta["federation"],
            agent=meta["agent"],
            ended=ledger.final_round is not None and ledger.round >= amendment.round,
            spent=ledger.spent,
            budget=start_choices.recorded_budget(ledger),
        )
        remaining = remaining_budget(manifest, name, previous)
        mark = RollbackMark(identity, amendment.manifest)
        if mark.resume(meta.get(start_choices.LEDGER_ID_KEY, ""), ledger.round, ledger.has_entry):
            raise TrustError(
                f"--after: expected the newest ledger of {name} for the run {amendment.manifest[:16]}, got "
                f"another in {state}: the agent ran later with another state folder, and what that spent "
                "counts too."
            )
        mark.continue_with(manifest.hash)
        return remaining
    finally:
        ledger.close()


def expect_listed(manifest: Manifest, name: str, identity: Path, is_member: bool = False) -> None:
    """Refuse an amendment that omits what `name` has spent in the run before."""
    amendment = amendment_of(manifest)
    if amendment is None or name in amendment.granted:
        return
    if is_member or RollbackMark(identity, amendment.manifest).exists:
        raise TrustError(
            f"Expected what {name} was granted and has spent in the run {amendment.manifest[:16]}, since it "
            f"was a member; the amendment {manifest.hash[:16]} does not list it, so all would be granted "
            "again. Have it made again with `topdp federation amend`, from the manifest of that run."
        )

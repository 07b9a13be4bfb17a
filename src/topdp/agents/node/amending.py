"""The next manifest of a federation whose members change: who, linked to whom, with what is left of budgets.

The run before ends for all after a named round, and a new one begins at the public start with the rest of
every budget. That is the simplest way whose account is plainly sound: no observer of the second run learns
more of the first than the first has cost. Estimates of the first are not taken over: they were seen by some,
and no account here covers showing them to others.

**Guarantees.** What members have spent after that round is computed by the meter that their ledgers are
charged by, for a run that followed its plan. Who has spent more is held to its own books, which must be whole
and the newest that there are; who is forgotten does not begin, and of two amendments one is run. When the sum
holds: "A run that is amended" in docs/privacy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.amendments import Amendment, PreviousRun, amendment_of, remaining_budget
from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.agreement.run_marks import RollbackMark
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.runtime.budget_meter import build_meter
from topdp.agents.runtime.run_end import last_round
from topdp.errors import BudgetError, InputError, TrustError
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.query import Query
from topdp.runs import builders
from topdp.runs.config import PoissonBatch, parse
from topdp.topology import from_edges

if TYPE_CHECKING:
    from topdp.privacy.account import Account


@dataclass(frozen=True)
class MembershipChange:
    """What is to change, and when."""

    round: int  # the last one of the run before
    add: tuple[Card, ...] = ()
    remove: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()  # beside those that stay
    records: tuple[int, ...] = ()  # of those who are added
    rounds: int | None = None  # of the new run; None: those that are left


def amend(before: Manifest, change: MembershipChange) -> tuple[Manifest, Account, list[str]]:
    """(the amendment, what the new run costs, what the one who makes it should know)."""
    from topdp.agents.agreement import federation_manifest  # agents that start do not need it

    setup = RunSetup.of(before)
    _expect_valid_change(setup, change)
    spent = spent_by(setup, change.round)
    granted = granted_budgets(before)
    stay = [card for card in before.cards if card.name not in change.remove]
    cards = [*stay, *change.add]
    names = [card.name for card in cards]
    left = {name: granted[name] - spent[name] for name in spent}
    for name in (card.name for card in stay):
        if left[name] <= 0:
            raise BudgetError(f"Expected something left of the budget of {name} after round {change.round}.")
    records = dict(zip(before.names, setup.counts, strict=True))
    records |= dict(zip((card.name for card in change.add), change.records, strict=True))
    tree = before.config.model_dump(exclude_none=True)
    tree["privacy"].pop("sigma", None)
    # Who joins gets what the others were granted at the beginning, at most.
    tree["privacy"]["epsilon"] = [left.get(name, min(granted.values())) for name in names]
    tree["topology"]["agents"] = len(names)
    done = change.round // setup.plan.releases_per_round
    tree["rounds"] = change.rounds or max(1, before.config.rounds - done)
    tree["data"].pop("sizes", None)
    kept = {(before.names[i], before.names[j]) for i, j in before.links}
    pairs = [pair for pair in (*kept, *change.links) if set(pair) <= set(names)]
    edges = sorted({tuple(sorted((names.index(a), names.index(b)))) for a, b in pairs})
    graph = from_edges(edges, len(names), name="federation", labels=tuple(names))
    counts = tuple(records[name] for name in names)
    made, account, said = federation_manifest.build_manifest(
        cards, graph, counts, parse(tree, "amendment"), before.rules
    )
    said += round_choice_remarks(before)
    told = Amendment(before.hash, change.round, before.config.privacy.delta, granted, spent)
    return manifests.as_amendment(made, told.to_tree()), account, said


def spent_by(setup: RunSetup, round: int) -> dict[str, float]:
    """ε that each agent's books show after `round`, if the plan is followed."""
    privacy, found = setup.manifest.config.privacy, {}
    analysis = builders.analysis(setup.manifest.config, setup.counts)
    waits = not setup.manifest.rules.tolerates_silence
    for agent, name in enumerate(setup.manifest.names):
        gauge = build_meter(
            setup.plan,
            analysis,
            agent,
            privacy.delta,
            privacy.guarantee,
            waits,
            Query(colluders=setup.coalition, allow_slow=privacy.allow_slow),
        )
        history = [(r, float(gauge.planned[r])) for r in range(round)]
        found[name] = gauge.cost(round, history, 0.0, float(gauge.planned[round]), planned=True).charge
    return found


def round_choice_remarks(before: Manifest) -> list[str]:
    """What whoever names the round must know, where accounts do not cover every way to choose it."""
    config = before.config
    guarantee, sampled = config.privacy.guarantee, isinstance(config.data.batch, PoissonBatch)
    if guarantee_kind(guarantee).proved and not sampled:
        return []
    why = "Poisson samples" if sampled else f"privacy.guarantee = {guarantee}"
    return [
        f"The round must not have been chosen by what models or rows of this run showed: under {why} no "
        "account covers that. A date, or a member's own reasons, are fine."
    ]


def carried_over(terms: Manifest, name: str, folder: Path | None, identity: Path) -> float | None:
    """ε that `name` may spend under an amendment, by its books in `folder`; None: it was not there before.

    From then on it is this amendment's alone.
    """
    found = amendment_of(terms)
    if found is None and folder is not None:
        raise InputError(
            "--after: expected a manifest that amends another one, got one that amends none: budgets of the "
            "run before would not be counted. Leave --after away if that is meant."
        )
    expect_counted(terms, name, identity, was_there=folder is not None)
    if found is None or name not in found.granted:
        return None
    if folder is None:
        raise InputError(
            f"Expected the state folder of the run before, {found.manifest[:16]}, since this manifest amends "
            "it and budgets go on from there: name it with --after."
        )
    ledger = Ledger(folder, writable=False)
    try:
        verify(ledger)
        facts = ledger.meta
        ended = last_round(ledger) is not None and ledger.round >= found.round
        said = PreviousRun(
            facts["federation"], facts["agent"], ended, ledger.spent, start_choices.recorded_budget(ledger)
        )
        left = remaining_budget(terms, name, said)
        mark = RollbackMark(identity, found.manifest)
        if mark.resume(facts.get(start_choices.LEDGER_ID_KEY, ""), ledger.round, ledger.has_entry):
            raise TrustError(
                f"--after: expected the newest books of {name} for the run {found.manifest[:16]}, got others "
                f"in {folder}: since these, it ran with another state folder, and what that spent counts too."
            )
        mark.continue_with(terms.hash)
        return left
    finally:
        ledger.close()


def expect_counted(terms: Manifest, name: str, identity: Path, was_there: bool = False) -> None:
    """Refuses an amendment that forgets what `name` has spent in the run before; its key's folder knows."""
    found = amendment_of(terms)
    if found is None or name in found.granted:
        return
    if was_there or RollbackMark(identity, found.manifest).exists:
        raise TrustError(
            f"Expected what {name} was granted and has spent in the run {found.manifest[:16]}, since it was "
            f"there; the amendment {terms.hash[:16]} does not list it, so all would be granted anew. Have it "
            "made again with `topdp federation amend`, from the manifest of that run."
        )


def granted_budgets(manifest: Manifest) -> dict[str, float]:
    """What each member may spend."""
    granted = builders.per_agent("privacy.epsilon", manifest.config.privacy.epsilon, len(manifest.names))
    return dict(zip(manifest.names, granted.tolist(), strict=True))


def _expect_valid_change(setup: RunSetup, change: MembershipChange) -> None:
    names = setup.manifest.names
    if not 0 <= change.round < setup.plan.releases - 1:
        raise InputError(
            f"--from-round: expected a round from 1 to {setup.plan.releases - 1}, got {change.round + 1}: "
            "the run before ends with the one before it."
        )
    if amendment_of(setup.manifest) is not None:
        raise InputError(
            "Expected a manifest that amends none: what two runs before have spent is not added up here. "
            "Make a new manifest with `topdp federation create`, with budgets that count all of them."
        )
    for name in change.remove:
        setup.manifest.number(name)
    if known := {card.name for card in change.add} & set(names):
        raise InputError(f"--add: expected agents that are not in the manifest, got {', '.join(known)}.")
    if len(change.add) != len(change.records):
        raise InputError(
            f"--records: expected a number for each of {len(change.add)} cards added, got "
            f"{len(change.records)}."
        )
    if not change.add and not change.remove:
        raise InputError("Expected somebody to add or to remove: --add CARD, --remove NAME.")

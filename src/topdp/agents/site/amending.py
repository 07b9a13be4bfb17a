"""The next manifest of a federation whose members change: who, linked to whom, with what is left of budgets.

The run before ends for all after a named round, and a new one begins at the public start with the rest of
every budget. That is the simplest way whose account is plainly sound: no observer of the second run learns
more of the first than the first has cost. Estimates of the first are not taken over: they were seen by some,
and no account here covers showing them to others.

**Guarantees.** What members have spent after that round is computed by the meter that their ledgers are
charged by, for a run that followed its plan. Who has spent more is held to its own books (`amendments.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topdp.agents.life.budget import meter
from topdp.agents.terms import federation
from topdp.agents.terms import manifest as manifests
from topdp.agents.terms.amendments import Amendment, amendment_of
from topdp.agents.terms.identity import Card
from topdp.agents.terms.manifest import Manifest
from topdp.agents.terms.setup import Setup
from topdp.errors import BudgetError, InputError
from topdp.privacy.account import Account
from topdp.settings import build
from topdp.settings.config import parse
from topdp.topology import from_edges


@dataclass(frozen=True)
class Change:
    """What is to change, and when."""

    round: int  # the last one of the run before
    add: tuple[Card, ...] = ()
    remove: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()  # beside those that stay
    records: tuple[int, ...] = ()  # of those who are added
    rounds: int | None = None  # of the new run; None: those that are left


def amend(before: Manifest, change: Change) -> tuple[Manifest, Account, list[str]]:
    """(the amendment, what the new run costs, what the one who makes it should know)."""
    setup = Setup.of(before)
    _expect_possible(setup, change)
    spent = spent_by(setup, change.round)
    granted = budgets(before)
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
    tree["rounds"] = change.rounds or before.config.rounds - change.round
    tree["data"].pop("sizes", None)
    kept = {(before.names[i], before.names[j]) for i, j in before.links}
    pairs = [pair for pair in (*kept, *change.links) if set(pair) <= set(names)]
    edges = sorted({tuple(sorted((names.index(a), names.index(b)))) for a, b in pairs})
    graph = from_edges(edges, len(names), name="federation", labels=tuple(names))
    counts = tuple(records[name] for name in names)
    made, account, said = federation.of(cards, graph, counts, parse(tree, "amendment"), before.rules)
    told = Amendment(before.hash, change.round, before.config.privacy.delta, granted, spent)
    return manifests.amending(made, told.to_tree()), account, said


def spent_by(setup: Setup, round: int) -> dict[str, float]:
    """ε that each agent's books show after `round`, if the plan is followed."""
    privacy, found = setup.manifest.config.privacy, {}
    analysis = build.analysis(setup.manifest.config, setup.counts)
    waits = not setup.manifest.rules.goes_on
    for agent, name in enumerate(setup.manifest.names):
        gauge = meter(
            setup.plan,
            analysis,
            agent,
            privacy.delta,
            privacy.guarantee,
            waits,
            setup.coalition,
            privacy.patient,
        )
        history = [(r, float(gauge.planned[r])) for r in range(round)]
        found[name] = gauge.cost(round, history, 0.0, float(gauge.planned[round]), planned=True).charge
    return found


def budgets(manifest: Manifest) -> dict[str, float]:
    """What each member may spend."""
    granted = build.per_agent("privacy.epsilon", manifest.config.privacy.epsilon, len(manifest.names))
    return dict(zip(manifest.names, granted.tolist(), strict=True))


def _expect_possible(setup: Setup, change: Change) -> None:
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

"""Make the next manifest of a federation whose members change: members, links, and remaining budgets.

The previous run ends for all after a named round, and a new one begins at the public start with the rest of
every budget. No observer of the second run learns more about the first than the first has cost. Estimates of
the first run are not reused: some agents saw them, and no account here covers showing them to others.

**Guarantees.** The ε that members have spent after that round is computed with the meter by which their
ledgers charge, for a run that followed its plan. If an agent's own ledger shows more, `carried_budget`
counts that.
"""

from __future__ import annotations

from dataclasses import dataclass

from topdp.agents.agreement import federation_manifest
from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import Amendment, Manifest, as_amendment
from topdp.agents.agreement.run_setup import RunSetup, granted_budgets, granted_deltas
from topdp.agents.runtime.budget_meter import build_meter
from topdp.errors import BudgetError, InputError
from topdp.privacy.accounting import Account
from topdp.privacy.answers import guarantee_kind
from topdp.runs.config import PoissonBatch, parse
from topdp.topology import from_edges


@dataclass(frozen=True, kw_only=True)
class MembershipChange:
    """A change of members, and the round after which it applies."""

    round: int  # the last one of the previous run
    add: tuple[Card, ...] = ()
    remove: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()  # besides those that stay
    records: tuple[int, ...] = ()  # of the members that are added
    rounds: int | None = None  # of the new run; None: the remaining ones


def amend(before: Manifest, change: MembershipChange) -> tuple[Manifest, Account, list[str]]:
    """Make an amendment. Return (manifest, account of the new run, remarks for the user)."""
    setup = RunSetup.of(before)
    _expect_valid_change(setup, change)
    spent, granted, delta = spent_by(setup, change.round), granted_budgets(before), granted_deltas(before)
    staying = [card for card in before.cards if card.name not in change.remove]
    cards = [*staying, *change.add]
    names = [card.name for card in cards]
    remaining = {name: granted[name] - spent[name] for name in spent}
    for card in staying:
        if remaining[card.name] <= 0:
            raise BudgetError(
                f"Expected something left of the budget of {card.name} after round {change.round}."
            )
    records = dict(zip(before.names, setup.counts, strict=True))
    records |= dict(zip((card.name for card in change.add), change.records, strict=True))
    tree = before.config.model_dump(exclude_none=True)
    tree["privacy"].pop("sigma", None)
    # A new member is granted at most what the others were granted at the beginning, and the smallest δ.
    tree["privacy"]["epsilon"] = [remaining.get(name, min(granted.values())) for name in names]
    own_deltas = isinstance(before.config.privacy.delta, list)
    if own_deltas:
        tree["privacy"]["delta"] = [delta.get(name, min(delta.values())) for name in names]
    if isinstance(before.config.privacy.weights, list):  # a new member has the full weight
        weights = dict(zip(before.names, before.config.privacy.weights, strict=True))
        tree["privacy"]["weights"] = [weights.get(name, 1.0) for name in names]
    tree["topology"]["agents"] = len(names)
    releases_per_round = setup.plan.releases_per_round
    tree["rounds"] = change.rounds or max(1, before.config.rounds - change.round // releases_per_round)
    tree["data"].pop("sizes", None)
    links = {(before.names[i], before.names[j]) for i, j in before.links}
    pairs = [pair for pair in (*links, *change.links) if set(pair) <= set(names)]
    edges = sorted({tuple(sorted((names.index(a), names.index(b)))) for a, b in pairs})
    graph = from_edges(edges, len(names), name="federation", labels=tuple(names))
    counts = tuple(records[name] for name in names)
    manifest, account, remarks = federation_manifest.build_manifest(
        cards, graph, counts, parse(tree, "amendment"), before.rules
    )
    amendment = Amendment(
        manifest=before.hash,
        round=change.round,
        delta=delta if own_deltas else delta[before.names[0]],
        granted=granted,
        spent=spent,
    )
    return as_amendment(manifest, amendment.model_dump()), account, [*remarks, *round_choice_remarks(before)]


def spent_by(setup: RunSetup, round: int) -> dict[str, float]:
    """Map each member to ε that its ledger shows after `round` if the plan is followed."""
    spent = {}
    for agent, name in enumerate(setup.manifest.names):
        meter = build_meter(setup, agent)
        history = [(r, float(meter.planned[r])) for r in range(round)]
        spent[name] = meter.cost(round, history, 0.0, float(meter.planned[round]), planned=True).charge
    return spent


def round_choice_remarks(before: Manifest) -> list[str]:
    """Return remarks on the choice of the round, where accounts do not cover every way to choose it."""
    config = before.config
    guarantee, sampled = config.privacy.guarantee, isinstance(config.data.batch, PoissonBatch)
    if guarantee_kind(guarantee).proved and not sampled:
        return []
    condition = "Poisson samples" if sampled else f"privacy.guarantee = {guarantee}"
    return [
        f"The round must not depend on what models or rows of this run showed: under {condition} no account "
        "covers that. A date, or a member's own reasons, are fine."
    ]


def _expect_valid_change(setup: RunSetup, change: MembershipChange) -> None:
    names = setup.manifest.names
    if not 0 <= change.round < setup.plan.releases - 1:
        raise InputError(
            f"--from-round: expected a round from 1 to {setup.plan.releases - 1}, got {change.round + 1}: "
            "the run before ends with the round before it."
        )
    if setup.manifest.amends is not None:
        raise InputError(
            "Expected a manifest that amends none: the spending of two earlier runs is not added up here. "
            "Make a new manifest with `topdp federation create`, with budgets that count all of them."
        )
    for name in change.remove:
        setup.manifest.number(name)
    if members := {card.name for card in change.add} & set(names):
        raise InputError(f"--add: expected agents that are not in the manifest, got {', '.join(members)}.")
    if len(change.add) != len(change.records):
        raise InputError(
            f"--records: expected a number for each of {len(change.add)} cards added, got "
            f"{len(change.records)}."
        )
    if not change.add and not change.remove:
        raise InputError("Expected members to add or to remove: --add CARD, --remove NAME.")

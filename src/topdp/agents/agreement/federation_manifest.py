"""A manifest that agents can run from: cards and a configuration, calibrated and complete."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from topdp.agents.agreement import manifest
from topdp.agents.agreement.hidden_rows import expect_steps_below_noise, hides, largest_exact
from topdp.agents.agreement.identity_card import Card, read_card
from topdp.agents.agreement.manifest import Manifest, Rules, rules_from
from topdp.agents.agreement.run_setup import Setup, completed
from topdp.privacy.account import Account
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import MAX_UNASKED_COALITIONS
from topdp.runs import builders
from topdp.runs.config import ConfigError, RunConfig
from topdp.topology import Topology, from_edges


def create(
    cards: list[Path], records: str, config: RunConfig, links: str | None, rules: dict[str, Any]
) -> tuple[Manifest, Account, list[str]]:
    """(the manifest, what it costs, what the one who makes it should know)."""
    read = [read_card(card) for card in cards]
    names = tuple(card.name for card in read)
    graph = builders.graph(config) if links is None else _graph(links, names)
    kept, agreed = rules.get("departures"), rules_from({**rules, "departures": rules.get("departures") or 0})
    if kept and not keeps_reserve(config, agreed):
        raise ConfigError(
            f"--departures: expected none, got {kept}: a reserve is for privacy.guarantee=adaptive, agents "
            "that wait, and methods without shared noise; elsewhere charges do not count on who may be gone, "
            "or nothing can be kept for it."
        )
    if kept is None:
        agreed = agreed.model_copy(update={"departures": default_departures(config, len(read), agreed)})
    return of(read, graph, counts_of(records, len(read)), config, agreed)


def expect_cards(cards: list[Path]) -> None:
    """Refuses files that are no cards, and fewer than two: before their number is a graph's."""
    for card in cards:
        read_card(card)
    if len(cards) < 2:
        raise ConfigError(f"Expected the cards of at least two agents, got {len(cards)}.")


def of(
    cards: list[Card], graph: Topology, counts: tuple[int, ...], config: RunConfig, rules: Rules
) -> tuple[Manifest, Account, list[str]]:
    if config.report.sinks:
        raise ConfigError(
            f"report.sinks: expected none for agents, got {', '.join(config.report.sinks)}: sinks and "
            "callbacks are the simulator's. Agents have numbers for Prometheus: topdp agent start --metrics."
        )
    complete, account = completed(config, graph, counts, goes_on=rules.goes_on, departures=rules.departures)
    pairs = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    said = list(account.warnings)
    guarantee = config.privacy.guarantee
    kind = guarantee_kind(guarantee)
    shared = kind.counts_colluders and config.method.name == "correlated"
    if rules.goes_on and shared:
        said.append(
            "Where agents share noise, one that is silent for the idle timeout is given up for good: let it "
            "be longer than a restart takes (--idle-timeout)."
        )
    elif rules.goes_on and kind.relies_on_others:
        said.append(
            f"Agents that may go on without a neighbour charge by worst case, and this noise is calibrated "
            f"for {guarantee}: their budgets will end early. Use --dead-neighbour wait, or "
            "privacy.guarantee=worst-case."
        )
    elif keeps_reserve(config, rules):
        said += _what_a_departure_costs(config, complete, account, graph, counts, rules.departures)
    elif not rules.goes_on and kind.relies_on_others and not kind.counts_colluders:
        said.append(
            f"{guarantee} holds while everybody follows the plan: from the first neighbour that drops out or "
            f"is refused, an agent charges by worst case (up to epsilon {_largest(account):.4g}) and its "
            "data may enter no more. privacy.guarantee=adaptive keeps a reserve for that."
        )
    made = manifest.create(cards, pairs, complete, rules)
    setup = Setup.of(made)
    exact = largest_exact(setup.plan)
    hidden = hides(guarantee, setup.plan, setup.coalition, not rules.goes_on)
    if hidden:
        expect_steps_below_noise(setup.plan)
    if hidden and rules.largest_norm > exact:
        said.append(
            f"rules.largest_norm is {exact:.3g}: longer rows would be rounded on their way next to so little "
            f"noise, and {guarantee} counts on rows that some do not see."
        )
        made = manifest.create(cards, pairs, complete, rules.model_copy(update={"largest_norm": exact}))
    return made, account, said


def keeps_reserve(config: RunConfig, rules: Rules) -> bool:
    """Whether charges count on noise of others, so that a reserve for departures is worth something."""
    counts_colluders = guarantee_kind(config.privacy.guarantee).counts_colluders
    return counts_colluders and config.method.name != "correlated" and not rules.goes_on


def default_departures(config: RunConfig, agents: int, rules: Rules) -> int:
    """One: a single member that fails or lies must not end the training of all. More is the users' choice.

    None where that makes no difference, or so many coalitions that they are not looked at unasked.
    """
    colluders = config.privacy.colluders + 1
    coalitions = math.comb(agents, min(colluders, agents - 1))
    looked_at = config.privacy.allow_slow or coalitions <= MAX_UNASKED_COALITIONS
    return int(keeps_reserve(config, rules) and looked_at)


def _what_a_departure_costs(
    config: RunConfig,
    complete: RunConfig,
    account: Account,
    graph: Topology,
    counts: tuple[int, ...],
    kept: int,
) -> list[str]:
    """What the reserve costs, and what happens beyond it, in words."""
    beyond = (
        "those who see more charge by worst case from then on (up to epsilon "
        f"{_largest(account):.4g}), and their data may enter no more."
    )
    if not kept:
        return [f"Nothing is kept in reserve for an agent that drops out or is refused: {beyond}"]
    who = "One agent" if kept == 1 else f"{kept} agents"
    cost = "with the noise that was given"
    if config.privacy.sigma is None:
        least, _ = completed(config, graph, counts)
        more, fewer = (np.asarray(one.privacy.sigma, dtype=float) for one in (complete, least))
        ratio = float(np.max(more / fewer))
        cost = f"for that noise is {ratio:.3g} times as large as without (--departures 0)"
        if ratio < 1.0005:
            cost = "that costs no noise here"
    return [f"{who} may drop out or be refused, and nobody's budget ends: {cost}; {beyond}"]


def _largest(account: Account) -> float:
    """The largest worst-case ε of an agent."""
    epsilon = account.worst_case.epsilon
    return math.inf if epsilon is None else float(np.max(epsilon))


def counts_of(records: str, agents: int) -> tuple[int, ...]:
    """`1200,800,950` -> (1200, 800, 950); one number stands for all."""
    try:
        counts = tuple(int(part) for part in records.split(","))
    except ValueError:
        counts = ()
    if len(counts) == 1:
        counts *= agents
    if len(counts) != agents or min(counts) < 1:
        raise ConfigError(
            f"--records: expected one whole number >= 1, or {agents} with commas, got {records!r}."
        )
    return counts


def _graph(links: str, names: tuple[str, ...]) -> Topology:
    edges = [(names.index(a), names.index(b)) for a, b in named_links(links, names)]
    return from_edges(edges, len(names), name="federation", labels=names)


def named_links(links: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """`ada-bob,bob-cleo`; names may hold dashes as long as one reading fits."""
    pairs = []
    for link in links.split(","):
        cuts = [(link[:k], link[k + 1 :]) for k, letter in enumerate(link) if letter == "-"]
        fits = [(a.strip(), b.strip()) for a, b in cuts if a.strip() in names and b.strip() in names]
        if len(fits) != 1:
            raise ConfigError(f"--links: expected two names of cards with a dash between, got {link!r}.")
        pairs.append(fits[0])
    return pairs

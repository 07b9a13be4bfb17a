"""A manifest that agents can run from: cards and a configuration, calibrated and complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topdp.agents.terms import identity, manifest
from topdp.agents.terms.identity import Card
from topdp.agents.terms.manifest import Manifest, Rules, rules_from
from topdp.agents.terms.setup import completed
from topdp.privacy.account import Account
from topdp.settings import build
from topdp.settings.config import ConfigError, RunConfig
from topdp.topology import Topology, from_edges


def create(
    cards: list[Path], records: str, config: RunConfig, links: str | None, rules: dict[str, Any]
) -> tuple[Manifest, Account, list[str]]:
    """(the manifest, what it costs, what the one who makes it should know)."""
    read = [identity.read_card(card) for card in cards]
    names = tuple(card.name for card in read)
    graph = build.graph(config) if links is None else _graph(links, names)
    return of(read, graph, counts_of(records, len(read)), config, rules_from(rules))


def expect_cards(cards: list[Path]) -> None:
    """Refuses files that are no cards, and fewer than two: before their number is a graph's."""
    for card in cards:
        identity.read_card(card)
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
    complete, account = completed(config, graph, counts, goes_on=rules.goes_on)
    pairs = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    said = list(account.warnings)
    guarantee = config.privacy.guarantee
    shared = guarantee == "adaptive" and config.method.name == "correlated"
    if rules.goes_on and shared:
        said.append(
            "Where agents share noise, one that is silent for the idle timeout is given up for good: let it "
            "be longer than a restart takes (--idle-timeout)."
        )
    elif rules.goes_on and guarantee != "worst-case":
        said.append(
            f"Agents that may go on without a neighbour charge by worst case, and this noise is calibrated "
            f"for {guarantee}: their budgets will end early. Use --dead-neighbour wait, or "
            "privacy.guarantee=worst-case."
        )
    return manifest.create(cards, pairs, complete, rules), account, said


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
    """`ada-bob,bob-cleo`; names may hold dashes as long as one reading fits."""
    edges = []
    for link in links.split(","):
        cuts = [(link[:k], link[k + 1 :]) for k, letter in enumerate(link) if letter == "-"]
        fits = [(a.strip(), b.strip()) for a, b in cuts if a.strip() in names and b.strip() in names]
        if len(fits) != 1:
            raise ConfigError(f"--links: expected two names of cards with a dash between, got {link!r}.")
        edges.append((names.index(fits[0][0]), names.index(fits[0][1])))
    return from_edges(edges, len(names), name="federation", labels=names)

"""A manifest that agents can run from: cards and a configuration, calibrated and complete."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from topdp.agents.agreement import manifest
from topdp.agents.agreement.hidden_rows import expect_steps_below_noise, max_exact_norm, relies_on_hidden_rows
from topdp.agents.agreement.identity_card import Card, read_card
from topdp.agents.agreement.manifest import Manifest, Rules, parse_rules
from topdp.agents.agreement.run_setup import (
    RunSetup,
    expect_no_attack,
    expect_no_rounding,
    expect_small_delta,
)
from topdp.base.progress import Progress, silent
from topdp.privacy.account import Account
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import MAX_UNASKED_COALITIONS
from topdp.privacy.observers.survivors import with_reserve
from topdp.runs import builders
from topdp.runs.config import ConfigError, RunConfig, parse
from topdp.runs.planning import accounted, plan_and_account, query_of
from topdp.runs.resolve_auto import settled
from topdp.topology import Topology, from_edges

EPSILON_MARGIN = 1 + 1e-9


def create_manifest(
    cards: list[Path], records: str, config: RunConfig, links: str | None, rules: dict[str, Any]
) -> tuple[Manifest, Account, list[str]]:
    """(the manifest, what it costs, what the one who makes it should know)."""
    read = [read_card(card) for card in cards]
    names = tuple(card.name for card in read)
    graph = builders.graph(config) if links is None else _parse_graph(links, names)
    kept, agreed = rules.get("departures"), parse_rules({**rules, "departures": rules.get("departures") or 0})
    if kept and not keeps_reserve(config, agreed):
        raise ConfigError(
            f"--departures: expected none, got {kept}: a reserve is for privacy.guarantee=adaptive, agents "
            "that wait, and methods without shared noise; elsewhere charges do not count on who may be gone, "
            "or nothing can be kept for it."
        )
    if kept is None:
        agreed = agreed.model_copy(update={"departures": default_departures(config, len(read), agreed)})
    return build_manifest(read, graph, parse_record_counts(records, len(read)), config, agreed)


def expect_cards(cards: list[Path]) -> None:
    """Refuses files that are no cards, and fewer than two: before their number is a graph's."""
    for card in cards:
        read_card(card)
    if len(cards) < 2:
        raise ConfigError(f"Expected the cards of at least two agents, got {len(cards)}.")


def build_manifest(
    cards: list[Card], graph: Topology, counts: tuple[int, ...], config: RunConfig, rules: Rules
) -> tuple[Manifest, Account, list[str]]:
    if config.report.sinks:
        raise ConfigError(
            f"report.sinks: expected none for agents, got {', '.join(config.report.sinks)}: sinks and "
            "callbacks are the simulator's. Agents have numbers for Prometheus: topdp agent start --metrics."
        )
    complete, account = complete_config(
        config, graph, counts, tolerates_silence=rules.tolerates_silence, departures=rules.departures
    )
    pairs = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    said = list(account.warnings)
    guarantee = config.privacy.guarantee
    kind = guarantee_kind(guarantee)
    shared = kind.counts_colluders and builders.method(config).shares_noise
    if rules.tolerates_silence and shared:
        said.append(
            "Where agents share noise, one that is silent for the idle timeout is given up for good: let it "
            "be longer than a restart takes (--idle-timeout)."
        )
    elif rules.tolerates_silence and kind.relies_on_others:
        said.append(
            f"Agents that may go on without a neighbour charge by worst case, and this noise is calibrated "
            f"for {guarantee}: their budgets will end early. Use --dead-neighbour wait, or "
            "privacy.guarantee=worst-case."
        )
    elif keeps_reserve(config, rules):
        said += _departure_remarks(config, complete, account, graph, counts, rules.departures)
    elif not rules.tolerates_silence and kind.relies_on_others and not kind.counts_colluders:
        said.append(
            f"{guarantee} holds while everybody follows the plan: from the first neighbour that drops out or "
            "is refused, an agent charges by worst case (up to epsilon "
            f"{_largest_worst_case(account):.4g}) and its "
            "data may enter no more. privacy.guarantee=adaptive keeps a reserve for that."
        )
    made = manifest.new_manifest(cards, pairs, complete, rules)
    setup = RunSetup.of(made)
    exact = max_exact_norm(setup.plan)
    hidden = relies_on_hidden_rows(guarantee, setup.plan, setup.coalition, not rules.tolerates_silence)
    if hidden:
        expect_steps_below_noise(setup.plan)
    if hidden and rules.largest_norm > exact:
        said.append(
            f"rules.largest_norm is {exact:.3g}: longer rows would be rounded on their way next to so little "
            f"noise, and {guarantee} counts on rows that some do not see."
        )
        made = manifest.new_manifest(cards, pairs, complete, rules.model_copy(update={"largest_norm": exact}))
    return made, account, said


def keeps_reserve(config: RunConfig, rules: Rules) -> bool:
    """Whether charges count on noise of others, so that a reserve for departures is worth something."""
    return _counts_colluders(config) and not rules.tolerates_silence


def _counts_colluders(config: RunConfig) -> bool:
    """Whether agents that are gone can be counted as colluders from the beginning."""
    kind = guarantee_kind(config.privacy.guarantee)
    return kind.counts_colluders and not builders.method(config).shares_noise


def default_departures(config: RunConfig, agents: int, rules: Rules) -> int:
    """One: a single member that fails or lies must not end the training of all. More is the users' choice.

    None where that makes no difference, or so many coalitions that they are not looked at unasked.
    """
    colluders = config.privacy.colluders + 1
    coalitions = math.comb(agents, min(colluders, agents - 1))
    looked_at = config.privacy.allow_slow or coalitions <= MAX_UNASKED_COALITIONS
    return int(keeps_reserve(config, rules) and looked_at)


def _departure_remarks(
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
        f"{_largest_worst_case(account):.4g}), and their data may enter no more."
    )
    if not kept:
        return [f"Nothing is kept in reserve for an agent that drops out or is refused: {beyond}"]
    who = "One agent" if kept == 1 else f"{kept} agents"
    cost = "with the noise that was given"
    if config.privacy.sigma is None:
        least, _ = complete_config(config, graph, counts)
        more, fewer = (np.asarray(one.privacy.sigma, dtype=float) for one in (complete, least))
        ratio = float(np.max(more / fewer))
        cost = f"for that noise is {ratio:.3g} times as large as without (--departures 0)"
        if ratio < 1.0005:
            cost = "that costs no noise here"
    return [f"{who} may drop out or be refused, and nobody's budget ends: {cost}; {beyond}"]


def _largest_worst_case(account: Account) -> float:
    """The largest worst-case ε of an agent."""
    epsilon = account.worst_case.epsilon
    return math.inf if epsilon is None else float(np.max(epsilon))


def parse_record_counts(records: str, agents: int) -> tuple[int, ...]:
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


def _parse_graph(links: str, names: tuple[str, ...]) -> Topology:
    edges = [(names.index(a), names.index(b)) for a, b in parse_links(links, names)]
    return from_edges(edges, len(names), name="federation", labels=names)


def parse_links(links: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """`ada-bob,bob-cleo`; names may hold dashes as long as one reading fits."""
    pairs = []
    for link in links.split(","):
        cuts = [(link[:k], link[k + 1 :]) for k, letter in enumerate(link) if letter == "-"]
        fits = [(a.strip(), b.strip()) for a, b in cuts if a.strip() in names and b.strip() in names]
        if len(fits) != 1:
            raise ConfigError(f"--links: expected two names of cards with a dash between, got {link!r}.")
        pairs.append(fits[0])
    return pairs


def with_colluders(config: RunConfig, agents: int, more: int) -> RunConfig:
    """The configuration as if so many more agents colluded: what it costs if they are gone.

    Unchanged where noise is shared: who is gone counts from the round on in which it goes.
    """
    most = min(config.privacy.colluders + more, agents - 1)
    if not _counts_colluders(config) or most <= config.privacy.colluders:
        return config
    privacy = config.privacy.model_copy(update={"colluders": most})
    return config.model_copy(update={"privacy": privacy})


def complete_config(
    config: RunConfig,
    graph: Topology,
    counts: tuple[int, ...],
    progress: Progress = silent,
    tolerates_silence: bool = False,
    departures: int = 0,
) -> tuple[RunConfig, Account]:
    """The configuration with noise, budgets and records of every agent written out, and what it costs.

    `tolerates_silence`: agents go on without a silent neighbour. Where draws are shared, a little more noise
    is added, so that budgets hold what each agent keeps in reserve for the case that it is gone itself.
    `departures`: so many agents may drop out and the noise is still enough (`Rules.departures`).
    """
    builders.expect_named(config)
    expect_no_attack(config)
    expect_no_rounding(config)
    expect_small_delta(config, counts)
    config = settled(config, graph, counts)
    reserved = with_colluders(config, graph.agents, departures)
    plan, account = plan_and_account(reserved, graph, counts, progress)
    guarantee, privacy, analysis = config.privacy.guarantee, config.privacy, builders.analysis(config, counts)
    given, more = builders.sigma(config, graph.agents) is not None, 1.0
    if tolerates_silence and guarantee_kind(guarantee).composes_releases(plan):
        more = with_reserve(plan, analysis.exposure(), query_of(config))
    if more > 1:
        # Noise that is given stays as it is: with the reserve it is worth what less noise is without.
        account = accounted(
            reserved, plan.noise_scaled(1 / more if given else more), analysis, None, progress
        )
    spent = account.answer(guarantee)
    if spent.epsilon is None or not np.isfinite(spent.epsilon).all():
        raise ConfigError(
            f"privacy.guarantee: agents charge their budgets by {guarantee}, which has no finite epsilon "
            f"here: {spent.reason} Choose another guarantee or method."
        )
    if not given:
        epsilon = builders.per_agent("privacy.epsilon", config.privacy.epsilon, graph.agents).tolist()
    else:
        epsilon = [max(float(e), 1e-12) * EPSILON_MARGIN for e in spent.epsilon]
    sigma = (plan.full_scale * (1.0 if given else more) / privacy.clip).tolist()
    tree = config.model_dump(exclude_none=True)
    tree["topology"]["agents"] = graph.agents
    tree["privacy"] |= {"sigma": sigma, "epsilon": epsilon}
    tree["data"] |= {"partition": "sizes", "sizes": [float(count) for count in counts]}
    for where in ("sites", "test"):  # each agent knows where its own records are, and nobody else
        tree["data"].pop(where, None)
    return parse(tree, "federation"), account

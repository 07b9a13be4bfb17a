"""Make a manifest that agents can run: cards and a configuration, calibrated and complete."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from topdp.agents.agreement import manifest
from topdp.agents.agreement.hidden_rows import expect_steps_below_noise, max_exact_norm, relies_on_hidden_rows
from topdp.agents.agreement.identity_card import Card, read_card
from topdp.agents.agreement.manifest import Manifest, Rules, parse_rules
from topdp.agents.agreement.run_setup import RunSetup, expect_supported
from topdp.base.progress import silent
from topdp.privacy.accounting import Account
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import MAX_UNASKED_COALITIONS
from topdp.privacy.observers.survivors import with_reserve
from topdp.runs.config import ConfigError, RunConfig, parse
from topdp.runs.methods import METHODS
from topdp.runs.named_model import expect_named_task
from topdp.runs.planning import accounted, plan_and_account, query_of
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline, budgets
from topdp.topology import Topology, from_edges

EPSILON_MARGIN = 1 + 1e-9


def create_manifest(
    card_files: list[Path], records: str, config: RunConfig, links: str | None, options: dict[str, Any]
) -> tuple[Manifest, Account, list[str]]:
    """Make a manifest from what a user entered. Return (manifest, account, remarks for the user).

    `options`: keys of `Rules`. `departures` may be None: the default.
    """
    cards = [read_card(file) for file in card_files]
    names = tuple(card.name for card in cards)
    graph = RunOutline.of(config).graph if links is None else _parse_graph(links, names)
    departures = options.get("departures")
    rules = parse_rules({**options, "departures": departures or 0})
    if departures and not keeps_reserve(config, rules):
        raise ConfigError(
            f"--departures: expected none, got {departures}: a reserve is for privacy.guarantee=adaptive, "
            "agents that wait, and methods without shared noise. Elsewhere charges do not depend on who may "
            "be gone, or no reserve is possible."
        )
    if departures is None:
        rules = rules.model_copy(update={"departures": default_departures(config, len(cards), rules)})
    return build_manifest(cards, graph, parse_record_counts(records, len(cards)), config, rules)


def expect_cards(card_files: list[Path]) -> None:
    """Refuse files that are not cards, and fewer than two."""
    for file in card_files:
        read_card(file)
    if len(card_files) < 2:
        raise ConfigError(f"Expected the cards of at least two agents, got {len(card_files)}.")


def build_manifest(
    cards: list[Card], graph: Topology, counts: tuple[int, ...], config: RunConfig, rules: Rules
) -> tuple[Manifest, Account, list[str]]:
    """Calibrate and complete a manifest. Return (manifest, account, remarks for the user)."""
    if config.report.sinks:
        raise ConfigError(
            f"report.sinks: expected none for agents, got {', '.join(config.report.sinks)}: sinks and "
            "callbacks are the simulator's. Agents export metrics to Prometheus: topdp agent start --metrics."
        )
    complete, account = complete_config(
        config, graph, counts, tolerates_silence=rules.tolerates_silence, departures=rules.departures
    )
    guarantee = config.privacy.guarantee
    kind = guarantee_kind(guarantee)
    remarks = list(account.warnings)
    if keeps_reserve(config, rules):
        remarks.append(_reserve_remark(config, complete, account, graph, counts, rules.departures))
    elif rules.tolerates_silence and kind.counts_colluders and METHODS[config.method.name].shares_noise:
        remarks.append(
            "Where agents share noise, an agent that is silent for the idle timeout is given up for good: "
            "make it longer than a restart takes (--idle-timeout)."
        )
    elif rules.tolerates_silence and kind.relies_on_others:
        remarks.append(
            "Agents that may go on without a neighbour charge by worst case, and this noise is calibrated "
            f"for {guarantee}: their budgets will end early. Use --dead-neighbour wait, or "
            "privacy.guarantee=worst-case."
        )
    elif not rules.tolerates_silence and kind.relies_on_others and not kind.counts_colluders:
        remarks.append(
            f"{guarantee} holds while all agents follow the plan: from the first neighbour that drops out or "
            f"is refused, an agent charges by worst case (up to epsilon {_largest_worst_case(account):.4g}), "
            "and its data may enter no more. privacy.guarantee=adaptive keeps a reserve for that."
        )
    pairs = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    complete_manifest = manifest.new_manifest(cards, pairs, complete, rules)
    setup = RunSetup.of(complete_manifest)
    if relies_on_hidden_rows(guarantee, setup.plan, setup.coalition, not rules.tolerates_silence):
        expect_steps_below_noise(setup.plan)
        exact = max_exact_norm(setup.plan)
        if rules.largest_norm > exact:
            remarks.append(
                f"rules.largest_norm is {exact:.3g}: longer rows would be rounded on their way next to so "
                f"little noise, and {guarantee} relies on rows that some do not see."
            )
            rules = rules.model_copy(update={"largest_norm": exact})
            complete_manifest = manifest.new_manifest(cards, pairs, complete, rules)
    return complete_manifest, account, remarks


def keeps_reserve(config: RunConfig, rules: Rules) -> bool:
    """Whether charges rely on noise of other agents, so that a reserve for departures makes a difference."""
    return _counts_departures(config) and not rules.tolerates_silence


def _counts_departures(config: RunConfig) -> bool:
    """Whether the noise can be chosen as if agents that depart later had colluded from the beginning."""
    kind = guarantee_kind(config.privacy.guarantee)
    return kind.counts_colluders and not METHODS[config.method.name].shares_noise


def default_departures(config: RunConfig, agents: int, rules: Rules) -> int:
    """One: a single member that fails or lies must not end the training of all. Users may choose more.

    None where that makes no difference, or where there are too many coalitions to examine by default.
    """
    colluders = config.privacy.colluders + 1
    coalitions = math.comb(agents, min(colluders, agents - 1))
    examined = config.privacy.allow_slow or coalitions <= MAX_UNASKED_COALITIONS
    return int(keeps_reserve(config, rules) and examined)


def _reserve_remark(
    config: RunConfig,
    complete: RunConfig,
    account: Account,
    graph: Topology,
    counts: tuple[int, ...],
    departures: int,
) -> str:
    """What the reserve costs, and what happens beyond it."""
    beyond = (
        "those who see more charge by worst case from then on (up to epsilon "
        f"{_largest_worst_case(account):.4g}), and their data may enter no more."
    )
    if not departures:
        return f"There is no reserve for an agent that drops out or is refused: {beyond}"
    agents = "One agent" if departures == 1 else f"{departures} agents"
    cost = "with the given noise"
    if config.privacy.sigma is None:
        without, _ = complete_config(config, graph, counts)
        sigma, least = (np.asarray(each.privacy.sigma, dtype=float) for each in (complete, without))
        ratio = float(np.max(sigma / least))
        cost = f"for that noise is {ratio:.3g} times as large as without (--departures 0)"
        if ratio < 1.0005:
            cost = "that costs no noise here"
    return f"{agents} may drop out or be refused, and nobody's budget ends: {cost}; {beyond}"


def _largest_worst_case(account: Account) -> float:
    """The largest worst-case ε of an agent."""
    epsilon = account.worst_case.epsilon
    return math.inf if epsilon is None else float(np.max(epsilon))


def parse_record_counts(records: str, agents: int) -> tuple[int, ...]:
    """`1200,800,950` -> (1200, 800, 950); one number applies to all agents."""
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
    """`ada-bob,bob-cleo`; names may contain dashes as long as the link is unambiguous."""
    pairs = []
    for link in links.split(","):
        cuts = [(link[:k], link[k + 1 :]) for k, letter in enumerate(link) if letter == "-"]
        fits = [(a.strip(), b.strip()) for a, b in cuts if a.strip() in names and b.strip() in names]
        if len(fits) != 1:
            raise ConfigError(f"--links: expected two names of cards with a dash between, got {link!r}.")
        pairs.append(fits[0])
    return pairs


def _with_more_colluders(config: RunConfig, agents: int, departures: int) -> RunConfig:
    """The configuration with `departures` more colluders: what it costs once they are gone.

    Unchanged where noise is shared: there an agent counts as a colluder from the round in which it goes.
    """
    colluders = min(config.privacy.colluders + departures, agents - 1)
    if not _counts_departures(config) or colluders <= config.privacy.colluders:
        return config
    privacy = config.privacy.model_copy(update={"colluders": colluders})
    return config.model_copy(update={"privacy": privacy})


def complete_config(
    config: RunConfig,
    graph: Topology,
    counts: tuple[int, ...],
    *,
    tolerates_silence: bool = False,
    departures: int = 0,
) -> tuple[RunConfig, Account]:
    """Return the configuration with noise, budgets and record counts of every agent, and its account.

    `tolerates_silence`: agents go on without a silent neighbour. Where draws are shared, a little more noise
    is added, so that budgets hold what each agent keeps in reserve for the case that it is gone itself.
    `departures`: how many agents may drop out while the noise still suffices (`Rules.departures`).
    """
    expect_named_task(config)
    expect_supported(config, counts)
    run = resolve(config, graph, counts)
    config = run.config
    reserved = resolve(_with_more_colluders(config, graph.agents, departures), graph, counts)
    plan, account = plan_and_account(reserved)
    privacy, guarantee = config.privacy, config.privacy.guarantee
    is_given, factor = run.sigma is not None, 1.0
    if tolerates_silence and guarantee_kind(guarantee).composes_releases(plan):
        factor = with_reserve(plan, run.analysis.exposure(), query_of(config))
    if factor > 1:
        # Given noise stays as it is: with the reserve it is worth what less noise is without.
        account = accounted(reserved, plan.noise_scaled(1 / factor if is_given else factor), None, silent)
    spent = account.answer(guarantee)
    if spent.epsilon is None or not np.isfinite(spent.epsilon).all():
        raise ConfigError(
            f"privacy.guarantee: agents charge their budgets by {guarantee}, which has no finite epsilon "
            f"here: {spent.reason} Choose another guarantee or method."
        )
    if is_given:
        epsilon = [max(float(e), 1e-12) * EPSILON_MARGIN for e in spent.epsilon]
    else:
        epsilon = budgets(config, graph.agents).tolist()
    sigma = (plan.full_scale * (1.0 if is_given else factor) / privacy.clip).tolist()
    tree = config.model_dump(exclude_none=True)
    tree["topology"]["agents"] = graph.agents
    tree["privacy"] |= {"sigma": sigma, "epsilon": epsilon}
    tree["data"] |= {"partition": "sizes", "sizes": [float(count) for count in counts]}
    for key in ("sites", "test"):  # where each agent's records are is known to that agent alone
        tree["data"].pop(key, None)
    return parse(tree, "federation"), account

"""Make a manifest that agents can run: with cards, and a calibrated and complete configuration."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from topdp.agents.agreement import manifest
from topdp.agents.agreement.hidden_rows import expect_steps_below_noise, max_exact_norm, relies_on_hidden_rows
from topdp.agents.agreement.identity_card import Card, read_card
from topdp.agents.agreement.manifest import Manifest, Rules, parse_rules
from topdp.agents.agreement.run_setup import RunSetup, expect_supported
from topdp.base.number_text import rounded_up
from topdp.base.progress import silent
from topdp.plan.robust_rules import ROBUST_RULES
from topdp.privacy.accounting import Account
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import MAX_UNASKED_COALITIONS
from topdp.privacy.observers.survivors import with_reserve
from topdp.runs.config import ConfigError, RunConfig, parse
from topdp.runs.named_model import expect_named_task
from topdp.runs.planning import accounted, plan_and_account, query_of
from topdp.runs.resolve import resolve, resolve_outline
from topdp.runs.run_outline import RunOutline, budgets, method_of
from topdp.topology import Topology, from_edges

EPSILON_MARGIN = 1 + 1e-9
OWN_DATA = "own"
"""The value of `data.name` in a manifest: every agent has records of its own."""


def create_manifest(
    card_files: list[Path], records: str, config: RunConfig, links: str | None, options: dict[str, Any]
) -> tuple[Manifest, Account, list[str]]:
    """Make a manifest from a user's input. Return (manifest, account, remarks for the user).

    `records`: record counts, as for `parse_record_counts`. `links`: pairs of names, as for `parse_links`;
    None: the graph of `config`. `options`: values of `Rules`; `departures` may be None for the default.
    """
    if "name" not in config.data.model_fields_set:  # not the data set that simulations use by default
        config = config.model_copy(update={"data": config.data.model_copy(update={"name": OWN_DATA})})
    cards = [read_card(file) for file in card_files]
    names = tuple(card.name for card in cards)
    graph = RunOutline.of(config).graph if links is None else _parse_graph(links, names)
    departures = options.get("departures")
    rules = parse_rules({**options, "departures": departures or 0})
    if departures and not keeps_reserve(config, rules):
        raise ConfigError(
            f"--departures: expected none, got {departures}: a reserve requires privacy.guarantee=adaptive, "
            "and agents that wait or, where they share noise, that go on. Otherwise charges do not depend on "
            "departures, or no reserve is possible. Omit --departures."
        )
    if departures is None:
        rules = rules.model_copy(update={"departures": default_departures(config, len(cards), rules)})
    return build_manifest(cards, graph, parse_record_counts(records, len(cards)), config, rules)


def expect_cards(card_files: list[Path]) -> None:
    """Raise an error unless `card_files` are at least two cards."""
    for file in card_files:
        read_card(file)
    if len(card_files) < 2:
        raise ConfigError(f"Expected the cards of at least two agents, got {len(card_files)}.")


def expect_chosen_rule(config: RunConfig) -> None:
    """Raise ConfigError unless the user has chosen a robust rule, or none."""
    if "rule" not in config.robust.model_fields_set:
        raise ConfigError(
            f"--robust: expected a rule against hostile members ({', '.join(ROBUST_RULES)}), or none, got "
            "nothing. Without a rule, one hostile or faulty member can spoil the model of all, and the run "
            "still ends as a success: docs/robust.md. Choose --robust none if all members are trusted."
        )


def build_manifest(
    cards: list[Card], graph: Topology, counts: tuple[int, ...], config: RunConfig, rules: Rules
) -> tuple[Manifest, Account, list[str]]:
    """Make a manifest with calibrated noise. Return (manifest, account, remarks for the user).

    `counts`: number of records of each agent, in the order of `cards`.
    """
    if config.report.sinks:
        raise ConfigError(
            f"report.sinks: expected none for agents, got {', '.join(config.report.sinks)}: only the "
            "simulator has sinks. Agents export metrics to Prometheus: use topdp agent start --metrics."
        )
    complete, account = complete_config(config, graph, counts, rules)
    guarantee = config.privacy.guarantee
    kind = guarantee_kind(guarantee)
    remarks = list(account.warnings)
    if keeps_reserve(config, rules):
        ratio = None
        if rules.departures and config.privacy.sigma is None:
            without, _ = complete_config(config, graph, counts, rules.model_copy(update={"departures": 0}))
            sigma, smallest = (np.asarray(each.privacy.sigma, dtype=float) for each in (complete, without))
            ratio = float(np.max(sigma / smallest))
        remarks.append(_reserve_remark(rules, ratio, account))
    if rules.tolerates_silence and kind.counts_colluders and method_of(config).shares_noise:
        remarks.append(
            "Where agents share noise, an agent that is silent for the idle timeout is excluded for good: "
            "make the timeout longer than a restart takes (--idle-timeout)."
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
            "is refused, an agent charges by worst case (up to epsilon "
            f"{rounded_up(_largest_worst_case(account))}), and may have to stop using its data. "
            "privacy.guarantee=adaptive keeps a reserve for that."
        )
    pairs = [(cards[i].name, cards[j].name) for i, j in graph.edges.tolist()]
    setup = RunSetup.of(manifest.new_manifest(cards, pairs, complete, rules))
    if relies_on_hidden_rows(guarantee, setup.plan, setup.coalition, not rules.tolerates_silence):
        expect_steps_below_noise(setup.plan)
        exact = max_exact_norm(setup.plan)
        if rules.largest_norm > exact:
            remarks.append(
                f"rules.largest_norm is {exact:.3g}: with so little noise, rows with a larger norm would be "
                f"rounded, and {guarantee} relies on rows that some agents do not see."
            )
            rules = rules.model_copy(update={"largest_norm": exact})
    return manifest.new_manifest(cards, pairs, complete, rules), account, remarks


def keeps_reserve(config: RunConfig, rules: Rules) -> bool:
    """Return whether charges grow with departures, so that a reserve for departures has an effect.

    They rely on other agents' noise while agents wait. Where agents share noise, they go on without an agent
    that then counts as a colluder.
    """
    kind, shares_noise = guarantee_kind(config.privacy.guarantee), method_of(config).shares_noise
    return kind.counts_colluders and shares_noise == rules.tolerates_silence


def _counts_departures(config: RunConfig) -> bool:
    """Return whether noise can be calibrated as if departing agents had colluded from the beginning."""
    kind = guarantee_kind(config.privacy.guarantee)
    return kind.counts_colluders and not method_of(config).shares_noise


def default_departures(config: RunConfig, agents: int, rules: Rules) -> int:
    """Return the default reserve: 1, so that one member that fails or lies does not end all training.

    Return 0 if a reserve has no effect, if there are too many coalitions to examine by default, or if shared
    noise would hide nothing from those that count as colluders.
    """
    colluders = config.privacy.colluders + 1
    coalitions = math.comb(agents, min(colluders, agents - 1))
    examined = config.privacy.allow_slow or coalitions <= MAX_UNASKED_COALITIONS
    hides = colluders < agents - 1 or not method_of(config).shares_noise
    return int(keeps_reserve(config, rules) and examined and hides)


def _reserve_remark(rules: Rules, ratio: float | None, account: Account) -> str:
    """Return a remark on the noise that the reserve costs, and on what happens when it is used up.

    `ratio`: noise with the reserve divided by noise without it; None if the user gave the noise.
    """
    departures = rules.departures
    beyond = (
        "after more departures, each agent that is gone counts as one more colluder, and data may have to "
        "stop long before the last round."
        if rules.tolerates_silence
        else "agents that observe more departures charge by worst case from then on (up to epsilon "
        f"{rounded_up(_largest_worst_case(account))}), and may have to stop using their data."
    )
    if not departures:
        return f"There is no reserve for an agent that drops out or is refused: {beyond}"
    agents = "One agent" if departures == 1 else f"{departures} agents"
    if ratio is None:
        cost = "with the given noise"
    elif ratio < 1.0005:
        cost = "this needs no additional noise here"
    else:
        cost = f"noise is {ratio:.3g} times as large as without a reserve (--departures 0)"
    return f"{agents} may drop out or be refused, and no budget is exhausted early: {cost}; {beyond}"


def _largest_worst_case(account: Account) -> float:
    """Return the largest worst-case ε of an agent."""
    epsilon = account.worst_case.epsilon
    return math.inf if epsilon is None else float(np.max(epsilon))


def parse_record_counts(records: str, agents: int) -> tuple[int, ...]:
    """Parse record counts: `1200,800,950` gives (1200, 800, 950); one number applies to all agents."""
    try:
        counts = tuple(int(part) for part in records.split(","))
    except ValueError:
        counts = ()
    if len(counts) == 1:
        counts *= agents
    if len(counts) != agents or min(counts) < 1:
        raise ConfigError(
            f"--records: expected one whole number >= 1, or {agents} separated by commas, got {records!r}."
        )
    return counts


def _parse_graph(links: str, names: tuple[str, ...]) -> Topology:
    edges = [(names.index(a), names.index(b)) for a, b in parse_links(links, names)]
    return from_edges(edges, len(names), name="federation", labels=names)


def parse_links(links: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Parse links such as `ada-bob,bob-cleo` into pairs of names.

    Names may contain dashes as long as the link is unambiguous.
    """
    pairs = []
    for link in links.split(","):
        splits = [(link[:k], link[k + 1 :]) for k, letter in enumerate(link) if letter == "-"]
        matches = [(a.strip(), b.strip()) for a, b in splits if a.strip() in names and b.strip() in names]
        if len(matches) != 1:
            raise ConfigError(
                f"--links: expected the names of two agents with a dash between, such as "
                f"{names[0]}-{names[-1]}, got {link!r}."
            )
        pairs.append(matches[0])
    return pairs


def complete_config(
    config: RunConfig, graph: Topology, counts: tuple[int, ...], rules: Rules
) -> tuple[RunConfig, Account]:
    """Return the configuration with noise, budgets and record counts of every agent, and its account.

    `counts`: number of records of each agent. If agents go on without a silent neighbour and draws are
    shared, more noise is added: budgets must include what each agent reserves for its own departure, and the
    agents in the reserve count as colluders from the beginning.
    """
    expect_named_task(config)
    outline = RunOutline.of(config, graph)
    expect_supported(outline, counts)
    run = resolve_outline(outline, counts)
    config = run.config
    privacy, guarantee = config.privacy, config.privacy.guarantee
    colluders = privacy.colluders
    if _counts_departures(config) or keeps_reserve(config, rules):
        colluders = max(colluders, min(colluders + rules.departures, graph.agents - 1))
    with_reserve_used = privacy.model_copy(update={"colluders": colluders})
    reserved = resolve(config.model_copy(update={"privacy": with_reserve_used}), graph, counts)
    plan, account = plan_and_account(reserved)
    is_given, factor = run.sigma is not None, 1.0
    if rules.tolerates_silence and guarantee_kind(guarantee).composes_releases(plan):
        factor = with_reserve(plan, run.analysis.exposure(), replace(query_of(config), colluders=colluders))
    if factor > 1:
        # Given noise is not changed: with the reserve it has the ε of less noise without a reserve.
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
    tree = config.model_dump(exclude_none=True, exclude={"noise_seed"})  # real agents have noise of their own
    tree["topology"]["agents"] = graph.agents
    tree["privacy"] |= {"sigma": sigma, "epsilon": epsilon}
    tree["data"] |= {"partition": "sizes", "sizes": [float(count) for count in counts]}
    for key in ("sites", "test"):  # only the agent itself knows the location of its records
        tree["data"].pop(key, None)
    return parse(tree, "federation"), account

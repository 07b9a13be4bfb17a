"""What follows from a manifest: the plan, what it costs, and what one agent needs to take part in it.

A manifest that agents run from states everything the plan depends on: `privacy.sigma` (one per agent),
`privacy.epsilon` (the agents' budgets) and `data.sizes` (their numbers of records). `completed` writes them
into a configuration; calibrating on each site instead could differ in a last digit, and so in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topdp.agents.agreement.manifest import Manifest
from topdp.plan import Plan
from topdp.privacy.account import Account
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import in_the_open
from topdp.privacy.observers.survivors import with_reserve
from topdp.privacy.observers.view import Progress
from topdp.runs import builders
from topdp.runs.config import ConfigError, RunConfig, parse
from topdp.runs.planning import accounted, plan_and_account, plan_writer, query_of
from topdp.runs.resolve_auto import settled
from topdp.topology import Topology

if TYPE_CHECKING:
    from torch import nn


ROUNDED_UP = 1 + 1e-9


@dataclass(frozen=True)
class Setup:
    """The same for every agent of a federation: what was agreed, and the plan that follows from it."""

    manifest: Manifest
    plan: Plan

    @classmethod
    def of(cls, manifest: Manifest) -> Setup:
        """From a manifest whose configuration is complete."""
        config, graph = manifest.config, manifest.topology
        expect_no_attack(config)
        expect_no_rounding(config)
        counts = _counts(config)
        sigma = builders.sigma(config, graph.agents)
        if sigma is None or len(counts) != graph.agents:
            raise ConfigError(
                f"Expected privacy.sigma, and in data.sizes the records of each of {graph.agents} agents: "
                "make the manifest with `topdp federation create --records N1,N2,...`."
            )
        expect_small_delta(config, counts)
        return cls(manifest, plan_writer(config, graph, counts)(sigma * config.privacy.clip))

    @property
    def counts(self) -> tuple[int, ...]:
        """The records of every agent."""
        return _counts(self.manifest.config)

    @property
    def coalition(self) -> int:
        """How many agents pool what they see in what is charged: colluders, and a reserve for departures."""
        privacy, agents = self.manifest.config.privacy, len(self.manifest.names)
        if in_the_open(self.plan):  # there who is gone is counted when it goes
            return privacy.colluders
        return min(privacy.colluders + self.manifest.rules.departures, agents - 1)

    @property
    def reserve(self) -> int:
        """How many others may be gone while what is charged holds: all, where it counts all as colluders."""
        privacy, agents = self.manifest.config.privacy, len(self.manifest.names)
        if not guarantee_kind(privacy.guarantee).counts_colluders or in_the_open(self.plan):
            return 0
        return agents if self.coalition == agents - 1 else self.coalition - privacy.colluders

    def budget(self, agent: int) -> float:
        """ε that the manifest grants to `agent`."""
        granted = self.manifest.config.privacy.epsilon
        return float(builders.per_agent("privacy.epsilon", granted, len(self.manifest.names))[agent])

    def model(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return builders.model(self.manifest.config, input_shape, outputs)


def with_colluders(config: RunConfig, agents: int, more: int) -> RunConfig:
    """The configuration as if so many more agents colluded: what it costs if they are gone.

    Unchanged where noise is shared: who is gone counts from the round on in which it goes.
    """
    most = min(config.privacy.colluders + more, agents - 1)
    kind = guarantee_kind(config.privacy.guarantee)
    counts = kind.counts_colluders and config.method.name != "correlated"
    if not counts or most <= config.privacy.colluders:
        return config
    privacy = config.privacy.model_copy(update={"colluders": most})
    return config.model_copy(update={"privacy": privacy})


def expect_no_attack(config: RunConfig) -> None:
    """Refuses an attack: that is for simulated runs."""
    if config.attack.name != "none":
        raise ConfigError(
            f'attack.name: expected "none" for real agents, got "{config.attack.name}": `topdp run` '
            "simulates attacks."
        )


def expect_no_rounding(config: RunConfig) -> None:
    """Refuses rows that are kept in fewer digits: those of real agents are on a public grid of their own."""
    if config.train.rows != "model":
        raise ConfigError(
            f'train.rows: expected "model" for real agents, got "{config.train.rows}": their rows lie on a '
            "grid that is part of the guarantee. `topdp run` simulates with fewer digits."
        )


def expect_small_delta(config: RunConfig, counts: tuple[int, ...]) -> None:
    """Refuses a δ under which one may show a record of every agent whole, and keep to the letter."""
    delta, least = config.privacy.delta, min(counts)
    if delta * least >= 1:
        raise ConfigError(
            f"privacy.delta: expected less than 1/{least}, one over the fewest records of an agent, got "
            f"{delta:g}: under such a delta a record may be shown as it is. Use 1e-5, or less."
        )


def _counts(config: RunConfig) -> tuple[int, ...]:
    return tuple(int(size) for size in config.data.sizes or ())


def completed(
    config: RunConfig,
    graph: Topology,
    counts: tuple[int, ...],
    progress: Progress | None = None,
    goes_on: bool = False,
    departures: int = 0,
) -> tuple[RunConfig, Account]:
    """The configuration with noise, budgets and records of every agent written out, and what it costs.

    `goes_on`: the rule is to go on without who is gone. Where draws are shared there is a little more noise
    then, so that budgets hold what each agent keeps in reserve for the case that it is gone itself.
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
    if goes_on and guarantee_kind(guarantee).composes_releases(plan):
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
        epsilon = [max(float(e), 1e-12) * ROUNDED_UP for e in spent.epsilon]
    sigma = (plan.full_scale * (1.0 if given else more) / privacy.clip).tolist()
    tree = config.model_dump(exclude_none=True)
    tree["topology"]["agents"] = graph.agents
    tree["privacy"] |= {"sigma": sigma, "epsilon": epsilon}
    tree["data"] |= {"partition": "sizes", "sizes": [float(count) for count in counts]}
    for where in ("sites", "test"):  # each agent knows where its own records are, and nobody else
        tree["data"].pop(where, None)
    return parse(tree, "federation"), account

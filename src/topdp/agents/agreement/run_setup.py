"""What follows from a manifest: the plan, what it costs, and what one agent needs to take part in it.

A manifest that agents run from states everything the plan depends on: `privacy.sigma` (one per agent),
`privacy.epsilon` (the agents' budgets) and `data.sizes` (their numbers of records). `completed` writes them
into a configuration; calibrating on each site instead could differ in a last digit, and so in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from topdp.agents.agreement.manifest import Manifest
from topdp.plan import Plan
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import in_the_open
from topdp.runs import builders
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.plan_writing import plan_writer

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RunSetup:
    """The same for every agent of a federation: what was agreed, and the plan that follows from it."""

    manifest: Manifest
    plan: Plan

    @classmethod
    def of(cls, manifest: Manifest) -> RunSetup:
        """From a manifest whose configuration is complete."""
        config, graph = manifest.config, manifest.topology
        expect_no_attack(config)
        expect_no_rounding(config)
        counts = _record_counts(config)
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
        return _record_counts(self.manifest.config)

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


def _record_counts(config: RunConfig) -> tuple[int, ...]:
    return tuple(int(size) for size in config.data.sizes or ())

"""What a manifest determines: the plan, budgets and record counts, and the number of colluders for charges.

A manifest that agents run states everything that the plan depends on: `privacy.sigma` (one per agent),
`privacy.epsilon` (the agents' budgets) and `data.sizes` (their record counts). `federation_manifest` writes
them: if each agent calibrated again, noise could differ in the last digit, and so could the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topdp.agents.agreement.manifest import Manifest
from topdp.plan import Capability, Plan, Planned, unsupported
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import in_the_open
from topdp.runs.config import ConfigError
from topdp.runs.epsilon_text import delta_text
from topdp.runs.named_model import named_model
from topdp.runs.resolved_run import ResolvedRun, records_of
from topdp.runs.run_outline import RunOutline, budgets, deltas

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RunSetup:
    """The manifest and the plan that it determines; the same for every agent of a federation."""

    manifest: Manifest
    run: ResolvedRun
    plan: Plan

    @classmethod
    def of(cls, manifest: Manifest) -> RunSetup:
        """Return the setup of a manifest. Raise ConfigError unless its configuration is complete."""
        config, graph = manifest.config, manifest.topology
        counts = tuple(int(size) for size in config.data.sizes or ())
        outline = RunOutline.of(config, graph)
        if outline.sigma is None or len(counts) != graph.agents:
            raise ConfigError(
                f"Expected privacy.sigma, and in data.sizes the number of records of each of {graph.agents} "
                f"agents, got {len(counts)} numbers and {'no ' if outline.sigma is None else ''}sigma. Make "
                "the manifest with `topdp federation create --records N1,N2,...`."
            )
        expect_supported(outline, counts)
        run = ResolvedRun.with_records(outline, *records_of(outline, counts))
        return cls(manifest, run, run.write_plan(outline.sigma * config.privacy.clip))

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of records of every agent."""
        return self.run.counts

    @property
    def coalition(self) -> int:
        """The number of colluders that charges assume: `privacy.colluders` plus the reserve."""
        privacy, agents = self.manifest.config.privacy, len(self.manifest.names)
        if in_the_open(self.plan):  # there, a departed agent counts from its departure on, within its reserve
            return privacy.colluders
        return min(privacy.colluders + self.manifest.rules.departures, agents - 1)

    @property
    def reserve(self) -> int:
        """How many other agents may depart while charges hold; all of them if all count as colluders."""
        privacy, agents = self.manifest.config.privacy, len(self.manifest.names)
        if not guarantee_kind(privacy.guarantee).counts_colluders or in_the_open(self.plan):
            return 0
        return agents if self.coalition == agents - 1 else self.coalition - privacy.colluders

    def budget(self, agent: int) -> float:
        """Return ε that the manifest grants to agent number `agent`."""
        return granted_budgets(self.manifest)[self.manifest.names[agent]]

    def delta(self, agent: int) -> float:
        """Return δ at which agent number `agent` charges."""
        return float(self.run.delta[agent])

    def model(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return named_model(self.manifest.config, input_shape, outputs)


def granted_budgets(manifest: Manifest) -> dict[str, float]:
    """Map each member to ε that the manifest grants to it."""
    granted = budgets(manifest.config, len(manifest.names))
    return dict(zip(manifest.names, granted.tolist(), strict=True))


def granted_deltas(manifest: Manifest) -> dict[str, float]:
    """Map each member to δ at which it charges."""
    granted = deltas(manifest.config, len(manifest.names))
    return dict(zip(manifest.names, granted.tolist(), strict=True))


def supports(plan: Planned) -> str | None:
    """Return None if agents can execute a plan, and otherwise the reason why they cannot."""
    return unsupported(plan, {Capability.ADAPTIVE_STEPS, Capability.ROBUST_MIXING, Capability.SHARED_DRAWS})


def expect_supported(outline: RunOutline, counts: tuple[int, ...]) -> None:
    """Raise ConfigError for what real agents do not support, for attacks, and for a large δ.

    `counts`: number of records of each agent. If an agent's δ is at least one over its number, the agent can
    satisfy (ε, δ) by publishing a whole record. This is refused if it holds for all agents; an account gives
    a warning if it holds for some.
    """
    config = outline.config
    attack = f"attack.name = {config.attack.name}" if config.attack.name != "none" else None
    standardise = 'data.standardise = "private"' if config.data.standardise != "none" else None
    if reason := attack or standardise or supports(outline):
        raise ConfigError(
            f"Expected settings that real agents support, got {reason}. Remove this setting, or simulate it "
            "with `topdp run`."
        )
    if (sites := config.privacy.sites_per_person) > 1:
        raise ConfigError(
            f"privacy.sites_per_person: expected 1 with real agents, got {sites}: agents charge for their "
            "own records, and cannot compare the persons of several sites. Use 1, or simulate it with "
            "`topdp run`."
        )
    if (outline.delta * np.array(counts) >= 1).all():
        fewest = min(counts)
        raise ConfigError(
            f"privacy.delta: expected less than 1/{fewest}, one over the fewest records of an agent, got "
            f"{delta_text(config.privacy.delta)}: such a delta permits publishing a whole record. Use 1e-5 "
            "or less."
        )

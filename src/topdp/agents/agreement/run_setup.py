"""What follows from a manifest: the plan, its budgets and record counts, and what charges count as colluders.

A manifest that agents run states everything the plan depends on: `privacy.sigma` (one per agent),
`privacy.epsilon` (the agents' budgets) and `data.sizes` (their record counts). `federation_manifest` writes
them: calibrating again at each site could differ in a last digit, and so in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from topdp.agents.agreement.manifest import Manifest
from topdp.plan import Plan
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.adaptive import in_the_open
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.named_model import named_model
from topdp.runs.resolved_run import ResolvedRun, records_of
from topdp.runs.run_outline import RunOutline, budgets

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RunSetup:
    """The same for every agent of a federation: the manifest, and the plan that follows from it."""

    manifest: Manifest
    run: ResolvedRun
    plan: Plan

    @classmethod
    def of(cls, manifest: Manifest) -> RunSetup:
        """From a manifest whose configuration is complete."""
        config, graph = manifest.config, manifest.topology
        counts = _record_counts(config)
        outline = RunOutline.of(config, graph)
        if outline.sigma is None or len(counts) != graph.agents:
            raise ConfigError(
                f"Expected privacy.sigma, and in data.sizes the records of each of {graph.agents} agents: "
                "make the manifest with `topdp federation create --records N1,N2,...`."
            )
        expect_supported(config, counts)
        run = ResolvedRun.with_records(outline, *records_of(outline, counts))
        return cls(manifest, run, run.write_plan(outline.sigma * config.privacy.clip))

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of records of every agent."""
        return self.run.counts

    @property
    def coalition(self) -> int:
        """How many agents charges count as colluders: those of the configuration, and the reserve."""
        privacy, agents = self.manifest.config.privacy, len(self.manifest.names)
        if in_the_open(self.plan):  # there, an agent that is gone is counted from that round on
            return privacy.colluders
        return min(privacy.colluders + self.manifest.rules.departures, agents - 1)

    @property
    def reserve(self) -> int:
        """How many other agents may be gone while charges hold: all, where all count as colluders."""
        privacy, agents = self.manifest.config.privacy, len(self.manifest.names)
        if not guarantee_kind(privacy.guarantee).counts_colluders or in_the_open(self.plan):
            return 0
        return agents if self.coalition == agents - 1 else self.coalition - privacy.colluders

    def budget(self, agent: int) -> float:
        """ε that the manifest grants to `agent`."""
        return granted_budgets(self.manifest)[self.manifest.names[agent]]

    def model(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return named_model(self.manifest.config, input_shape, outputs)


def granted_budgets(manifest: Manifest) -> dict[str, float]:
    """{member: ε that the manifest grants to it}"""
    granted = budgets(manifest.config, len(manifest.names))
    return dict(zip(manifest.names, granted.tolist(), strict=True))


def expect_supported(config: RunConfig, counts: tuple[int, ...]) -> None:
    """Refuse what real agents do not run: attacks, rounded rows, and a δ that permits showing a record.

    With δ of one over the fewest records or more, an agent may publish a whole record and satisfy (ε, δ).
    """
    if config.attack.name != "none":
        raise ConfigError(
            f'attack.name: expected "none" for real agents, got "{config.attack.name}": `topdp run` '
            "simulates attacks."
        )
    if config.train.rows != "model":
        raise ConfigError(
            f'train.rows: expected "model" for real agents, got "{config.train.rows}": their rows lie on a '
            "grid that is part of the guarantee. `topdp run` simulates with fewer digits."
        )
    delta, fewest = config.privacy.delta, min(counts)
    if delta * fewest >= 1:
        raise ConfigError(
            f"privacy.delta: expected less than 1/{fewest}, one over the fewest records of an agent, got "
            f"{delta:g}: under such a delta a record may be shown as it is. Use 1e-5, or less."
        )


def _record_counts(config: RunConfig) -> tuple[int, ...]:
    return tuple(int(size) for size in config.data.sizes or ())

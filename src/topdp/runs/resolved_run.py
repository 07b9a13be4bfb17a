"""A resolved run: one typed object that holds all that a configuration means. No data, no torch.

Everything that executes, accounts or reports a run reads it; nothing is derived from the configuration again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan, optimised, schedules
from topdp.plan.batches import Batches
from topdp.plan.schedules import Schedule
from topdp.privacy.published.claims import Analysis
from topdp.protocols import Protocol
from topdp.runs.config import ConfigError
from topdp.runs.run_outline import RunOutline, analysis_of


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedRun(RunOutline):
    """What a configuration means for a graph and the numbers of records of its agents.

    In `config` every `auto` that the method uses is a number: it is what a run folder keeps.

    >>> from topdp.runs.config import RunConfig
    >>> outline = RunOutline.of(RunConfig())
    >>> run = ResolvedRun.with_records(outline, *records_of(outline, (2000,) * 30))
    >>> run.schedule.releases, run.analysis.batches[0]
    (151, Full(records=2000))
    """

    analysis: Analysis
    """How records enter releases, and the published analysis of the noise."""
    schedule: Schedule
    protocol: Protocol

    @classmethod
    def with_records(cls, outline: RunOutline, analysis: Analysis, schedule: Schedule) -> Self:
        """An outline without `auto` where its method needs a number, and what follows from the records."""
        known = {field.name: getattr(outline, field.name) for field in fields(RunOutline)}
        protocol = outline.method.protocol(outline.config.method)
        return cls(**known, analysis=analysis, schedule=schedule, protocol=protocol)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of records of each agent."""
        return tuple(batches.records for batches in self.batches)

    @property
    def batches(self) -> tuple[Batches, ...]:
        """The batches of each agent."""
        return self.analysis.batches

    def write_plan(self, deviation: Floats) -> Plan:
        """The plan with full-scale noise [agents]; its random choices are the same every time."""
        inner = self.optimiser.inner(self.schedule)
        plan = self.protocol.plan(self.graph, inner, deviation, self.config.seed)
        plan = optimised(plan, self.optimiser, self.schedule.rate)
        if self.robust is None and self.rounded is None:
            return plan
        return replace(plan, robust=self.robust, rounded=self.rounded)


def records_of(outline: RunOutline, counts: tuple[int, ...]) -> tuple[Analysis, Schedule]:
    """Return how counts[i] records of agent i enter releases, and the steps and noise of all releases."""
    analysis = analysis_of(outline.config, counts)
    fewest = counts.index(min(counts))
    return analysis, _schedule(outline, analysis.batches[fewest].divisor, counts[fewest])


def _schedule(outline: RunOutline, batch: int, records: int) -> Schedule:
    """Step sizes and noise of all releases; an epoch is one pass over `records` unless configured."""
    config, train = outline.config, outline.config.train
    if isinstance(train.learning_rate, list):
        rates = _listed_rates(train.learning_rate, config.rounds, train.warmup)
    else:
        rates = schedules.learning_rates(
            train.learning_rate,
            config.rounds,
            train.fading,
            train.rounds_per_epoch or max(1, -(-records // batch)),
            train.fading_factor,
            train.fading_period,
        )
        rates = schedules.warmed_up(rates, train.warmup)
    return schedules.schedule(rates, _noise_scales(outline, rates), config.method.noise_on)


def _listed_rates(rates: list[float], rounds: int, warmup: int) -> Floats:
    if len(rates) not in (rounds, rounds + 1):
        raise ConfigError(
            f"train.learning_rate: expected one number, or a list of {rounds}, one a round, got {len(rates)}."
        )
    if warmup:
        raise ConfigError("train.warmup: a list of step sizes is taken as it is; put the warm-up into it.")
    return np.array(rates if len(rates) > rounds else [rates[0], *rates])


def _noise_scales(outline: RunOutline, rates: Floats) -> Floats:
    kind, noise = outline.noise_kind, outline.config.method.noise_schedule
    if kind == "power":
        return schedules.power_of_rate(rates, noise.exponent)
    if kind == "curvature":
        assert noise.curvature is not None
        return schedules.for_curvature(rates, noise.curvature)
    return schedules.step_decay(noise.factor if kind == "steps" else 1.0, noise.period, outline.config.rounds)

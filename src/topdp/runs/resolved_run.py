"""A resolved run: one typed object with everything that follows from a configuration. No data, no torch.

All code that executes, accounts for or reports a run reads this object, and derives nothing from the
configuration again.
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
    """A run outline with the facts that follow from the number of records of each agent.

    In `config`, every `auto` that the method uses is a number. The run folder stores this configuration.

    >>> from topdp.runs.config import RunConfig
    >>> outline = RunOutline.of(RunConfig())
    >>> run = ResolvedRun.with_records(outline, *records_of(outline, (2000,) * 30))
    >>> run.schedule.releases, run.analysis.batches[0]
    (151, Full(records=2000))
    """

    # How records enter releases, and the published analysis of the noise.
    analysis: Analysis
    schedule: Schedule
    protocol: Protocol

    @classmethod
    def with_records(cls, outline: RunOutline, analysis: Analysis, schedule: Schedule) -> Self:
        """Return the resolved run of an outline in which every `auto` that the method uses is a number."""
        values = {field.name: getattr(outline, field.name) for field in fields(RunOutline)}
        protocol = outline.method.protocol(outline.config.method)
        return cls(**values, analysis=analysis, schedule=schedule, protocol=protocol)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of records of each agent."""
        return tuple(batches.records for batches in self.batches)

    @property
    def total_weight(self) -> float:
        """The weight of the pooled mean gradient in the average of all agents; 1 with equal weights."""
        return float(np.mean([batches.share for batches in self.batches]))

    @property
    def batches(self) -> tuple[Batches, ...]:
        """The batches of each agent."""
        return self.analysis.batches

    def write_plan(self, deviation: Floats, releases: int | None = None) -> Plan:
        """Return the plan whose full-scale noise is `deviation` [agents]. Random choices follow the seed.

        `releases`: the number of gradient releases, for a quick trial; None: those of the run.
        """
        schedule = Schedule(self.schedule.rate[:releases], self.schedule.noise[:releases])
        inner = self.optimiser.inner(schedule)
        plan = self.protocol.plan(self.graph, inner, deviation, self.config.seed)
        plan = optimised(plan, self.optimiser, schedule.rate)
        if self.robust is None and self.rounded is None:
            return plan
        return replace(plan, robust=self.robust, rounded=self.rounded)


def records_of(outline: RunOutline, counts: tuple[int, ...]) -> tuple[Analysis, Schedule]:
    """Return the analysis (batches and noise) and the schedule of a run in which agent i has counts[i]
    records.
    """
    analysis = analysis_of(outline.config, counts)
    fewest = counts.index(min(counts))
    return analysis, _schedule(outline, analysis.batches[fewest].releases_per_pass)


def _schedule(outline: RunOutline, rounds_per_pass: int) -> Schedule:
    """Return the step sizes and noise of all releases.

    An epoch is one pass over the records, which takes `rounds_per_pass` rounds, unless
    `train.rounds_per_epoch` is set.
    """
    config, train = outline.config, outline.config.train
    if isinstance(train.learning_rate, list):
        rates = _listed_rates(train.learning_rate, config.rounds, train.warmup)
    else:
        rates = schedules.learning_rates(
            train.learning_rate,
            config.rounds,
            train.fading,
            train.rounds_per_epoch or rounds_per_pass,
            train.fading_factor,
            train.fading_period,
        )
        rates = schedules.warmed_up(rates, train.warmup)
    return schedules.schedule(rates, _noise_scales(outline, rates), config.method.noise_on)


def _listed_rates(rates: list[float], rounds: int, warmup: int) -> Floats:
    if len(rates) not in (rounds, rounds + 1):
        raise ConfigError(
            f"train.learning_rate: expected one number, or a list of {rounds} numbers, one for each round "
            f"(or of {rounds + 1}, beginning with round 0), got a list of {len(rates)}."
        )
    if warmup:
        raise ConfigError(
            f"train.warmup: expected 0 with a list of learning rates, got {warmup}. Put the warm-up into "
            "train.learning_rate."
        )
    return np.array(rates if len(rates) > rounds else [rates[0], *rates])


def _noise_scales(outline: RunOutline, rates: Floats) -> Floats:
    kind, noise = outline.noise_kind, outline.config.method.noise_schedule
    if kind == "power":
        return schedules.power_of_rate(rates, noise.exponent)
    if kind == "curvature":
        assert noise.curvature is not None
        return schedules.for_curvature(rates, noise.curvature)
    return schedules.step_decay(noise.factor if kind == "steps" else 1.0, noise.period, outline.config.rounds)

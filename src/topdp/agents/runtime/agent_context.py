"""Objects with which one agent computes: its part of the plan, its gradients, draws and budget meter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from topdp.agents.agreement.hidden_rows import relies_on_hidden_rows
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest, Rules
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_gradients import MAX_RECORDS_PER_PERSON, AgentGradients, ExactGradients
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.agent_rows import PlanPart
from topdp.agents.runtime.budget_meter import BudgetMeter, build_meter
from topdp.agents.runtime.row_guards import (
    RowNormLimits,
    expect_exact,
    expect_small_rounding,
    hidden_norm_limits,
    mixing_share,
    rounded_share,
    uniform_norm_limits,
)
from topdp.agents.wire import row_payload
from topdp.base.array_types import AnyArray
from topdp.base.progress import Progress, silent
from topdp.data.person_records import PersonRecords
from topdp.errors import DataError
from topdp.learning.models import FlatModel
from topdp.plan.batches import Batches
from topdp.privacy.basics.gaussian import mu_of
from topdp.runs.config import ConfigError
from topdp.runs.model_fit import expect_fitting
from topdp.runs.named_model import named_task
from topdp.runs.named_records import named_features

MAX_ROW_HEAD_BYTES = 1024  # before a row that is sent in an exchange


@dataclass(frozen=True)
class PrivateFiles:
    """An identity, and the folder that contains it and the keys of runs."""

    identity: Identity
    folder: Path


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """Objects with which an agent computes."""

    setup: RunSetup
    part: PlanPart
    start: Tensor  # the public start row, in the type in which rows travel
    gradients: AgentGradients
    draws: AgentDraws
    hooks: AgentHooks
    meter: BudgetMeter
    limits: RowNormLimits  # the largest norms of rows
    epsilon: float  # the agent's budget
    order: str | None  # digest of the records in the order of cyclic batches; the same after every restart
    requested: float | None = None  # the budget that this start requests; None: that of earlier starts
    in_thread: bool = False  # whether to compute in another thread, so that links stay alive

    @property
    def manifest(self) -> Manifest:
        return self.setup.manifest

    @property
    def name(self) -> str:
        return self.manifest.names[self.part.agent]

    def decode(self, body: bytes, largest_norm: float = math.inf) -> AnyArray:
        """Return the row [d] in `body`. Raise PayloadError if it has another type, size or a larger norm."""
        return row_payload.decode(body, len(self.start), dtype_name(self.start), largest_norm)


def build_context(
    setup: RunSetup,
    agent: int,
    records: tuple[Tensor, Tensor],
    classes: int | None,
    epsilon: float | None = None,
    in_thread: bool = False,
    key: bytes = b"",
    hooks: AgentHooks | None = None,
    progress: Progress = silent,
    persons: PersonRecords | None = None,
) -> AgentContext:
    """Return the objects with which `agent` computes. `epsilon`: its own budget, at most the manifest's.

    `records` are unchanged; the manifest defines the features of them that the model sees. `key`: a secret of
    the agent, the same after every restart, with which the digest `order` is made. `hooks`: replacements of
    steps for development; None in production. `persons`: who has which records; None: the unit is the record.
    """
    config, rules = setup.manifest.config, setup.manifest.rules
    privacy, name = config.privacy, setup.manifest.names[agent]
    granted = setup.budget(agent)
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"--epsilon: expected a finite number > 0, got {epsilon}.")
    if epsilon is not None and epsilon > granted:
        raise ConfigError(
            f"--epsilon: expected at most {granted:.6g}, the budget that the manifest grants {name}, got "
            f"{epsilon:.6g}: an agent's own budget can only be smaller."
        )
    inputs, targets = records
    _expect_persons(privacy.unit, persons)
    count, units = (len(targets), "training records") if persons is None else (persons.counts[0], "persons")
    if count != setup.counts[agent]:
        raise DataError(
            f"Expected {setup.counts[agent]} {units}, as the manifest says for {name}, got {count}. The "
            "noise is calibrated for that number."
        )
    if (features := named_features(config)) is not None:
        from topdp.data import featured_shards  # images only: agents without features do not load it

        inputs = featured_shards.of_records(inputs, features, name, progress)
    task = named_task(config)
    targets = task.targets(targets, name)
    flat = FlatModel(setup.model(tuple(inputs.shape[1:]), task.outputs(targets, classes)))
    expect_fitting(flat, task, inputs[:1], targets[:1], classes)
    analysis = setup.run.analysis
    part, hooks = PlanPart(setup.plan, agent), hooks or AgentHooks()
    draws = hooks.draws(part, config.seed, flat.dtype)
    hidden = relies_on_hidden_rows(
        privacy.guarantee, setup.plan, setup.coalition, not rules.tolerates_silence
    )
    start = flat.flatten().to(_row_type(rules, flat.dtype, hidden))
    _expect_row_fits_message(rules, start)
    hooks.prepare(part, analysis.batches[agent], privacy.clip, start)
    exact = ExactGradients(flat, privacy.clip, loss=task.loss, clipping=privacy.clipping, record=inputs[:1])
    gradients = AgentGradients(
        exact,
        (inputs, targets),
        batches=analysis.batches,
        agent=agent,
        seed=config.seed,
        draws=draws,
        hooks=hooks,
        persons=persons,
    )
    meter = build_meter(setup, agent)
    bounds = uniform_norm_limits(setup.plan, rules.largest_norm)
    norm = float(torch.linalg.vector_norm(start.double()))
    if hidden:
        gradient = max(_max_gradient_norm(batches, privacy.clip) for batches in analysis.batches)
        sizes = (gradient, len(start), rules.largest_norm, norm)
        bounds = hidden_norm_limits(setup.plan, privacy.guarantee, *sizes)
        expect_exact(setup.plan, rules.largest_norm)
    elif not norm <= rules.largest_norm:
        raise ConfigError(
            f"rules.largest_norm: expected at least {norm:.3g}, the norm of the public start, got "
            f"{rules.largest_norm:g}: accounts do not cover rounding next to longer rows."
        )
    _expect_small_rounding(setup, meter, exact, analysis.batches[agent], hidden)
    return AgentContext(
        setup=setup,
        part=part,
        start=start,
        gradients=gradients,
        draws=draws,
        hooks=hooks,
        meter=meter,
        limits=bounds,
        epsilon=granted if epsilon is None else epsilon,
        requested=epsilon,
        order=gradients.order_digest(key),
        in_thread=in_thread,
    )


def _expect_persons(unit: str, persons: PersonRecords | None) -> None:
    if (unit == "person") != (persons is not None):
        raise DataError(
            f"Expected records {'with' if unit == 'person' else 'without'} persons, because the manifest has "
            f'privacy.unit = "{unit}", got others.'
        )
    if persons is not None and (largest := int(persons.sizes(0).max())) > MAX_RECORDS_PER_PERSON:
        raise DataError(
            f"Expected at most {MAX_RECORDS_PER_PERSON} records of one person, got {largest}: the account of "
            "rounding covers no more. Remove records, or combine several into one."
        )


def dtype_name(row: Tensor) -> str:
    return str(row.dtype).removeprefix("torch.")


def _row_type(rules: Rules, model: torch.dtype, hidden: bool) -> torch.dtype:
    """Return the type in which rows travel. Hidden rows must not be rounded."""
    if hidden and rules.dtype == "float32":
        raise ConfigError(
            'rules.dtype: expected "float64" or "auto", got "float32": privacy.guarantee relies on hidden '
            "rows, and a row that is rounded to float32 is no sum. Make a new manifest, or use "
            'privacy.guarantee = "worst-case".'
        )
    if rules.dtype == "auto":
        return torch.float64 if hidden else model
    return torch.float64 if rules.dtype == "float64" else torch.float32


def _expect_row_fits_message(rules: Rules, start: Tensor) -> None:
    """Raise ConfigError if links would refuse the rows: the first would be charged and never arrive."""
    dtype = dtype_name(start)
    needed = row_payload.largest_size(len(start), dtype) + MAX_ROW_HEAD_BYTES
    if needed > rules.largest_body:
        raise ConfigError(
            f"rules.largest_body: expected at least {needed}, the bytes of a row of {len(start)} {dtype}, "
            f"got {rules.largest_body}. Make a new manifest with a larger value, or use a smaller model."
        )


def _max_gradient_norm(batches: Batches, clip: float) -> float:
    """Return the largest norm of a mean gradient."""
    return clip * batches.max_records / batches.divisor


def _expect_small_rounding(
    setup: RunSetup, meter: BudgetMeter, exact: ExactGradients, batches: Batches, hidden: bool
) -> None:
    """Raise InputError if rounding before noise adds noticeably to the cost that is charged."""
    privacy, largest = setup.manifest.config.privacy, setup.manifest.rules.largest_norm
    share = rounded_share(
        meter.spending,
        meter.planned if meter.coalition_information is None else meter.coalition_information,
        _max_gradient_norm(batches, privacy.clip),
        largest,
        exact.rounding_bound(batches.max_records, privacy.clip, batches.divisor, privacy.unit == "person"),
        together=not hidden,
    )
    if hidden and meter.by_plan is not None:
        share += mixing_share(setup.plan, largest, mu_of(float(meter.by_plan[-1]), meter.spending.delta))
    expect_small_rounding(share, largest)

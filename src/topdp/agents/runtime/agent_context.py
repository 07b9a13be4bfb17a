"""What one agent computes with: its part of the plan, its gradients, its draws, the meter of its budget."""

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
from topdp.agents.runtime.agent_gradients import AgentGradients, ExactGradients
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.agent_rows import PlanPart
from topdp.agents.runtime.budget_meter import BudgetMeter, build_meter
from topdp.agents.runtime.row_guards import (
    RowNormLimits,
    expect_exact,
    expect_fine,
    hidden_norm_limits,
    mixing_share,
    rounded_share,
    uniform_norm_limits,
)
from topdp.agents.wire import row_payload
from topdp.base.progress import Progress, silent
from topdp.learning.models import FlatModel
from topdp.plan.batches import Batches, Cycle
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.query import Query
from topdp.runs.config import ConfigError
from topdp.runs.model_fit import expect_fitting
from topdp.runs.named_model import named_task
from topdp.runs.named_records import named_features

MAX_ROW_HEAD_BYTES = 1024  # before a row that is handed over


@dataclass(frozen=True)
class PrivateFiles:
    """An identity, and the folder that holds it and the keys of runs."""

    identity: Identity
    folder: Path


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """What an agent computes with."""

    setup: RunSetup
    part: PlanPart
    start: Tensor  # the public start row, in the type in which rows travel
    gradients: AgentGradients
    draws: AgentDraws
    hooks: AgentHooks
    meter: BudgetMeter
    limits: RowNormLimits  # how long rows may be
    epsilon: float  # the agent's budget
    order: str | None  # the records in the order of cyclic batches; the same after every restart
    asked: float | None = None  # the budget that this start asked for; None: that of earlier starts, if any
    in_thread: bool = False  # compute beside the event loop, so that links stay alive

    @property
    def manifest(self) -> Manifest:
        return self.setup.manifest

    @property
    def name(self) -> str:
        return self.manifest.names[self.part.agent]


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
) -> AgentContext:
    """Return what `agent` computes with. `epsilon`: its own budget, at most the manifest's.

    `records` are its own, unchanged; the manifest says which features of them the model sees. `key`: a secret
    of the agent, the same after every restart, that keys the digest `order`. `hooks`: what development
    replaces; None in production.
    """
    config, rules = setup.manifest.config, setup.manifest.rules
    privacy = config.privacy
    granted = setup.budget(agent)
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"--epsilon: expected a finite number > 0, got {epsilon}.")
    if epsilon is not None and epsilon > granted:
        raise ConfigError(
            f"--epsilon: expected at most {granted:.6g}, the budget that the manifest grants "
            f"{setup.manifest.names[agent]}, got {epsilon:.6g}: an own budget can only be smaller."
        )
    inputs, targets = records
    if (features := named_features(config)) is not None:
        from topdp.data import featured_shards  # images only: not loaded where records stay as they are

        inputs = featured_shards.of_records(inputs, features, setup.manifest.names[agent], progress)
    task = named_task(config)
    targets = task.targets(targets, setup.manifest.names[agent])
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
    )
    meter = build_meter(
        setup.plan,
        analysis,
        agent,
        privacy.delta,
        privacy.guarantee,
        not rules.tolerates_silence,
        Query(colluders=setup.coalition, allow_slow=privacy.allow_slow),
    )
    bounds = uniform_norm_limits(setup.plan, rules.largest_norm)
    norm = float(torch.linalg.vector_norm(start.double()))
    if hidden:
        longest = max(_max_gradient_norm(one, privacy.clip) for one in analysis.batches)
        facts = (longest, len(start), rules.largest_norm, norm)
        bounds = hidden_norm_limits(setup.plan, privacy.guarantee, *facts)
        expect_exact(setup.plan, rules.largest_norm)
    elif not norm <= rules.largest_norm:
        raise ConfigError(
            f"rules.largest_norm: expected at least {norm:.3g}, the norm of the public start, got "
            f"{rules.largest_norm:g}: what is rounded next to longer rows is not accounted for."
        )
    _expect_fine_rounding(setup, meter, exact, analysis.batches[agent], hidden)
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
        asked=epsilon,
        order=gradients.order(key),
        in_thread=in_thread,
    )


def _row_type(rules: Rules, model: torch.dtype, hidden: bool) -> torch.dtype:
    """The type in which rows travel; rows that some do not see (`hidden`) must not be rounded."""
    if hidden and rules.dtype == "float32":
        raise ConfigError(
            'rules.dtype: expected "float64" or "auto", got "float32": privacy.guarantee counts on rows that '
            "some do not see, and rounding those to float32 is no sum. Make the manifest anew, or take "
            'privacy.guarantee = "worst-case".'
        )
    if rules.dtype == "auto":
        return torch.float64 if hidden else model
    return torch.float64 if rules.dtype == "float64" else torch.float32


def _expect_row_fits_message(rules: Rules, start: Tensor) -> None:
    """Refuse rows that links would not carry: the first would be charged, and nobody would get it."""
    dtype = str(start.dtype).removeprefix("torch.")
    needed = row_payload.largest_size(len(start), dtype) + MAX_ROW_HEAD_BYTES
    if needed > rules.largest_body:
        raise ConfigError(
            f"rules.largest_body: expected at least {needed}, the bytes of a row of {len(start)} {dtype}, "
            f"got {rules.largest_body}: make the manifest anew with a larger one, or take a smaller model."
        )


def _max_gradient_norm(batches: Batches, clip: float) -> float:
    """The largest norm of a mean gradient."""
    return clip * _records_of(batches) / batches.divisor


def _records_of(batches: Batches) -> int:
    return batches.size if isinstance(batches, Cycle) else batches.records


def _expect_fine_rounding(
    setup: RunSetup, meter: BudgetMeter, exact: ExactGradients, mine: Batches, hidden: bool
) -> None:
    """Refuse a run in which rounding before noise adds noticeably to what is charged."""
    privacy, largest = setup.manifest.config.privacy, setup.manifest.rules.largest_norm
    share = rounded_share(
        setup.plan,
        meter.spending.owner,
        meter.planned if meter.most is None else meter.most,
        meter.spending.sensitivity,
        _max_gradient_norm(mine, privacy.clip),
        largest,
        exact.rounding_bound(_records_of(mine), privacy.clip, mine.divisor),
        together=not hidden,
        period=meter.spending.batches.period,
    )
    if hidden and meter.by_plan is not None:
        share += mixing_share(setup.plan, largest, mu_of(float(meter.by_plan[-1]), privacy.delta))
    expect_fine(share, largest)

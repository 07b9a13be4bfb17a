"""Settings that follow the job: rounds, clip and learning rate from public facts. No data, no torch.

The facts are N records of all agents, the privacy parameter μ of the budget, and G, the norm of the gradient
of one output at the start (`learning/output_gradient.py`). If gradients have at most the norm C, a run moves
by at most the *travel* S = C·Σλ_t. The least noise that hides a record in a run of that travel has the
standard deviation S/(N·μ) in each parameter, for any number of rounds, and so about S·G/(N·μ) in an output.
Three rules follow:

- **Clip**: C = G/2, half the gradient of a record whose output is wrong by one; G/(2√M) if the loss is the
  mean of M values of a record.
- **Travel**: for classes S = N·μ/G, so the noise of an output is 1, which moves a probability little. For
  numbers, more travel means less bias, about 1/S, and more noise: S = 2·√(N·μ)/G is close to the best of
  both for targets in [-1, 1]. The learning rate is S/(C·Σλ_t), for a schedule λ_t that begins with 1.
- **Rounds**: T = 8·√(N·μ), from 100 to 400. More cost time, but no accuracy. Fewer make steps too long.

Agents whose noise is independent have √n times the noise in the average, and batches that are one of P parts
of the records √P times. N is then divided by it. docs/defaults.md shows what the rules reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from topdp.privacy.answers import guarantee_kind
from topdp.privacy.basics.gaussian import mu_of
from topdp.runs.config import ConfigError, RunConfig, is_auto
from topdp.runs.resolved_run import records_of
from topdp.runs.run_outline import RunOutline, strictest_budget

if TYPE_CHECKING:
    from topdp.learning.output_gradient import OutputGradient

AnyOutline = TypeVar("AnyOutline", bound=RunOutline)

CLIP_SHARE = 0.5  # clip / G
CLASS_OUTPUT_NOISE = 1.0  # standard deviation of the noise of an output, for classes
NUMBER_TRAVEL = 2.0  # travel · G / √(N·μ), for numbers
ROUNDS_FACTOR = 8.0  # rounds / √(N·μ)
MIN_ROUNDS, MAX_ROUNDS = 100, 400
CLASS_LOSSES = ("cross-entropy", "bce")
STEP_DIGITS = 3  # significant digits of a chosen clip or learning rate


def follows_job(config: RunConfig) -> bool:
    """Return whether a setting follows from the number of records."""
    return is_auto(config.rounds) or needs_output_gradient(config)


def needs_output_gradient(config: RunConfig) -> bool:
    """Return whether a setting follows from the gradient of the model."""
    return is_auto(config.privacy.clip) or is_auto(config.train.learning_rate)


def with_job_settings(
    outline: AnyOutline, counts: tuple[int, ...], gradient: Callable[[], OutputGradient]
) -> AnyOutline:
    """Return the outline with numbers for rounds, clip and learning rate, where they are "auto".

    `gradient`: returns the gradient of the model; called only if it is needed.
    """
    config = outline.config
    if not follows_job(config):
        return outline
    if is_auto(config.rounds):
        rounds = ROUNDS_FACTOR * math.sqrt(_signal(outline, counts, passes=1))
        outline = _with(outline, rounds=10 * math.ceil(min(max(rounds, MIN_ROUNDS), MAX_ROUNDS) / 10))
    if not needs_output_gradient(outline.config):
        return outline
    output = gradient()
    privacy, train = outline.config.privacy, outline.config.train
    if is_auto(privacy.clip):
        privacy = privacy.model_copy(update={"clip": _rounded(CLIP_SHARE * output.of_loss)})
        outline = _with(outline, privacy=privacy)
    if is_auto(train.learning_rate):
        if train.optimiser == "adam":
            raise ConfigError(
                'train.learning_rate: expected a number with train.optimiser = "adam", whose steps do not '
                'scale with gradients, got "auto". State one, for example 0.01.'
            )
        outline = _with(outline, train=train.model_copy(update={"learning_rate": 1.0}))
        analysis, schedule = records_of(outline, counts)
        passes = max(batches.releases_per_pass for batches in analysis.batches)
        signal = _signal(outline, counts, passes)
        if train.loss in CLASS_LOSSES:
            travel = CLASS_OUTPUT_NOISE * signal / output.norm
        else:
            travel = min(NUMBER_TRAVEL * math.sqrt(signal), signal) / output.norm
        # A velocity adds up 1 / (1 - momentum) gradients.
        gain = 1 / (1 - train.momentum) if train.optimiser in ("momentum", "nesterov") else 1.0
        rate = travel / (privacy.clip * gain * float(schedule.rate.sum()))
        outline = _with(outline, train=train.model_copy(update={"learning_rate": _rounded(rate)}))
    return outline


def chosen_for_job(config: RunConfig, resolved: RunConfig) -> dict[str, Any]:
    """Return the values of `resolved` for the settings that are "auto" in `config`, with their names."""
    values = {
        "method": (config.method.name, resolved.method.name),
        "rounds": (config.rounds, resolved.rounds),
        "clip": (config.privacy.clip, resolved.privacy.clip),
        "learning_rate": (config.train.learning_rate, resolved.train.learning_rate),
    }
    return {name: chosen for name, (before, chosen) in values.items() if is_auto(before)}


def _signal(outline: RunOutline, counts: tuple[int, ...], passes: int) -> float:
    """Return N·μ, with the N that has as much noise in the average of all agents."""
    config, privacy = outline.config, outline.config.privacy
    covered = outline.method.shares_noise and guarantee_kind(privacy.guarantee).relies_on_others
    agents = 1 if covered or outline.method.pools else len(counts)
    replaced = 2 if privacy.adjacency == "replace-one" else 1
    return sum(counts) * mu_of(*strictest_budget(config)) / (replaced * math.sqrt(agents * passes))


def _with(outline: AnyOutline, **changes: object) -> AnyOutline:
    return replace(outline, config=outline.config.model_copy(update=changes))


def _rounded(value: float) -> float:
    return float(f"{value:.{STEP_DIGITS}g}")

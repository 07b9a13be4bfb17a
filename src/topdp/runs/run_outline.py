"""What a configuration means before records are counted: method, graph, noise and rules. No data, no torch.

`RunOutline.of` is the one place that turns the names of a configuration into these objects; `resolve.py` adds
what depends on the number of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Self

import numpy as np

from topdp import topology
from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.plan import Optimiser, Robust
from topdp.plan.batches import Batches, Cycle, Full, Poisson
from topdp.privacy.answers import ON_REQUEST
from topdp.privacy.published.claims import Analysis
from topdp.runs.config import ConfigError, CycleBatch, PoissonBatch, RunConfig
from topdp.runs.methods import METHODS, Method
from topdp.topology import Topology


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOutline:
    """The parts of a run that need no records. Wrong or contradicting settings raise ConfigError here.

    >>> outline = RunOutline.of(RunConfig())
    >>> outline.method.name, outline.noise_kind, outline.graph.agents, outline.guarantee
    ('top-dp', 'steps', 30, 'adaptive')
    """

    config: RunConfig
    method: Method
    noise_kind: str
    """The kind of noise schedule."""
    graph: Topology
    sigma: Floats | None
    """[agents] full-scale σ where the configuration gives it; None: to be calibrated."""
    epsilon: Floats | None
    """[agents] budgets to which the noise is calibrated; None where it is given."""
    guarantee: str | None
    """The answer that meets the budget; None where the noise is given."""
    answers: frozenset[str]
    """The answers to compute beside the claim and the worst case."""
    optimiser: Optimiser
    robust: Robust | None
    """The rule by which received rows enter a mix; None: by their weights."""
    rounded: str | None
    """The number format to which rows are rounded; None: they are not."""

    @classmethod
    def of(cls, config: RunConfig, graph: Topology | None = None) -> Self:
        """`graph`: in place of the one that the configuration names."""
        method = method_of(config)
        if graph is None:
            graph = topology.single() if method.pools else named_links(config)
        sigma, optimiser = _sigma(config, method, graph.agents), optimiser_of(config)
        return cls(
            config=config,
            method=method,
            noise_kind=noise_kind(config, method),
            graph=graph,
            sigma=sigma,
            epsilon=None if sigma is not None else budgets(config, graph.agents),
            guarantee=guarantee_of(config),
            answers=frozenset({*config.privacy.answers, config.privacy.guarantee} & set(ON_REQUEST)),
            optimiser=optimiser,
            robust=_robust(config, method),
            rounded=_rounded(config, optimiser),
        )


def method_of(config: RunConfig) -> Method:
    """The method that a configuration names, with a calibration that it allows."""
    method = METHODS[config.method.name]
    if method.calibration and config.method.calibration not in (None, method.calibration):
        raise ConfigError(
            f"Expected method {method.name!r} with its own calibration {method.calibration!r}, got "
            f"{config.method.calibration!r}: use method 'plain' to combine freely."
        )
    return method


def named_links(config: RunConfig) -> Topology:
    """The graph that the configuration names; options of other kinds of graphs are ignored."""
    family = topology.FAMILIES[config.topology.kind]
    options = {**dict(config.topology), "seed": config.seed}
    return family(**{name: options[name] for name in signature(family).parameters if name in options})


def noise_kind(config: RunConfig, method: Method) -> str:
    """The kind of noise schedule: as configured, else the method's own."""
    chosen = config.method
    if chosen.noise_schedule.kind is not None:
        return chosen.noise_schedule.kind
    # The other kinds are for noise on gradients.
    on_gradient = chosen.noise_on == "gradient" or method.noise_kind == "steps"
    return method.noise_kind if on_gradient else "constant"


def guarantee_of(config: RunConfig) -> str | None:
    """The answer that meets the budget; None where the noise is given."""
    given = config.privacy.sigma is not None or not METHODS[config.method.name].noisy
    return None if given else config.privacy.guarantee


def budgets(config: RunConfig, agents: int) -> Floats:
    """[agents] ε of each agent."""
    return per_agent("privacy.epsilon", config.privacy.epsilon, agents)


def per_agent(key: str, value: float | list[float], agents: int) -> Floats:
    """[agents], from one number for all agents or one for each."""
    values = np.atleast_1d(np.asarray(value, float))
    if len(values) not in (1, agents):
        raise ConfigError(f"{key}: expected one number or {agents}, one per agent, got {len(values)}.")
    return np.broadcast_to(values, agents).copy()


def batches_of(config: RunConfig, counts: Sequence[int]) -> tuple[Batches, ...]:
    """Return which of its counts[i] records agent i averages in a release."""
    batch = config.data.batch
    if not isinstance(batch, CycleBatch | PoissonBatch):
        return tuple(Full(count) for count in counts)
    size = batch.cycle if isinstance(batch, CycleBatch) else batch.poisson
    if size > (smallest := min(counts)):
        raise InputError(
            f"Expected batches of at most {smallest} records, all that agent {counts.index(smallest)} holds, "
            f"got {size}. Use smaller batches, fewer agents or a more even partition."
        )
    kind = Cycle if isinstance(batch, CycleBatch) else Poisson
    return tuple(kind(count, size) for count in counts)


def analysis_of(config: RunConfig, counts: Sequence[int]) -> Analysis:
    """Return how the records of each agent enter its releases, and the published analysis of its noise."""
    batches = batches_of(config, counts)
    return Analysis(calibration_of(config), batches, config.privacy.clip, config.privacy.adjacency)


def calibration_of(config: RunConfig) -> str:
    """The published calibration by which the noise of a method is claimed."""
    return METHODS[config.method.name].calibration or config.method.calibration or "tight"


def optimiser_of(config: RunConfig) -> Optimiser:
    """The rule that turns released rows into the next estimates."""
    train = config.train
    optimiser = Optimiser(
        train.optimiser,
        momentum=train.momentum,
        second_moment=train.second_moment,
        floor=train.floor,
        weight_decay=train.weight_decay,
        average=train.average,
    )
    if optimiser.adaptive and config.method.noise_on == "estimate":
        raise ConfigError(
            f'train.optimiser: "{train.optimiser}" needs method.noise_on = "gradient", whose scale it undoes.'
        )
    return optimiser


def why_plans_are_equal(configs: Sequence[RunConfig]) -> str:
    """Return why methods with these settings have one plan, and which setting makes them differ."""
    outlines = [RunOutline.of(config) for config in configs]
    if len({calibration_of(config) for config in configs}) > 1:
        return (
            "They differ in the noise that each claims to need; --set privacy.guarantee=claimed gives it to "
            "them."
        )
    kinds = {outline.noise_kind for outline in outlines}
    for outline in outlines:
        period, rounds = outline.config.method.noise_schedule.period, outline.config.rounds
        if len(kinds) > 1 and outline.noise_kind == "steps" and period >= rounds:
            return (
                f"The noise of {outline.method.name} falls every {period} rounds, and these are {rounds}: a "
                "smaller --set method.noise_schedule.period shows it."
            )
    return "With these settings they do not differ."


def _sigma(config: RunConfig, method: Method, agents: int) -> Floats | None:
    if not method.noisy:
        return np.zeros(agents)
    if config.privacy.sigma is None:
        return None
    return per_agent("privacy.sigma", config.privacy.sigma, agents)


def _robust(config: RunConfig, method: Method) -> Robust | None:
    robust = config.robust
    if robust.rule == "mean":
        return None
    if method.pools:
        raise ConfigError(f"robust.rule: {method.name} mixes no rows of others, got {robust.rule!r}.")
    return Robust(robust.rule, robust.hostile, None if robust.radius == "auto" else robust.radius)


def _rounded(config: RunConfig, optimiser: Optimiser) -> str | None:
    train = config.train
    if train.rows == "model":
        return None
    for key, used, why in (
        ("robust.rule", config.robust.rule != "mean", "robust rules mix rows as they are"),
        ("attack.name", config.attack.name != "none", "attacks change rows as they are"),
        ("train.optimiser", optimiser.adaptive, "its averages change by less than it holds"),
        ("train.average", train.average > 0, "averages of estimates change by less than it holds"),
    ):
        if used:
            raise ConfigError(
                f'train.rows: "{train.rows}" does not go with {key}: {why}. Use train.rows = "model".'
            )
    return train.rows

"""The parts of a run that need no record counts: method, graph, noise and rules. No data, no torch.

Only `RunOutline.of` turns the names in a configuration into these objects. `resolve.py` adds the parts that
depend on the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Self

import numpy as np

from topdp import topology
from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.plan import Capability, Optimiser, Robust, needs_of
from topdp.plan.adaptive_steps import ADAPTIVE_OPTIMISERS
from topdp.plan.batches import Batches, Cycle, Full, Poisson
from topdp.privacy.answers import ON_REQUEST
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.joint_loss import share_of_budget
from topdp.privacy.published.claims import Analysis
from topdp.runs.config import AUTO, ConfigError, CycleBatch, PoissonBatch, RunConfig
from topdp.runs.job_method import with_job_method
from topdp.runs.methods import ALONE, METHODS, Method
from topdp.topology import Topology


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOutline:
    """The parts of a run that need no records. `of` raises ConfigError for wrong or contradictory settings.

    >>> outline = RunOutline.of(RunConfig())
    >>> outline.method.name, outline.noise_kind, outline.graph.agents, outline.guarantee
    ('top-dp', 'steps', 30, 'adaptive')
    """

    config: RunConfig
    method: Method
    # The kind of noise schedule.
    noise_kind: str
    graph: Topology
    # The full-scale σ of each agent [agents], as configured; None: the noise is calibrated.
    sigma: Floats | None
    # The budget of each agent [agents], to which the noise is calibrated; None: σ is configured. If a person
    # may be at several agents, each agent has a part of the budget.
    epsilon: Floats | None
    # The δ of each agent [agents], at which its budget and its ε hold.
    delta: Floats
    # The answer that must stay within the budget; None: σ is configured.
    guarantee: str | None
    # The answers to compute besides the claim and the worst case.
    answers: frozenset[str]
    optimiser: Optimiser
    # The robust rule that mixes received rows; None: rows are mixed by their weights.
    robust: Robust | None
    # The number format to which rows are rounded; None: rows are not rounded.
    rounded: str | None

    @classmethod
    def of(cls, config: RunConfig, graph: Topology | None = None) -> Self:
        """Return the outline of a configuration. `graph`: replaces the graph that `config` names."""
        if config.method.name == AUTO:
            graph = named_graph(config) if graph is None else graph
            config = with_job_method(config, graph.agents)
        method = method_of(config)
        _expect_unit_and_persons(config)
        if graph is None:
            graph = topology.single() if method.pools else named_graph(config)
        sigma, optimiser = _sigma(config, method, graph.agents), optimiser_of(config)
        return cls(
            config=config,
            method=method,
            noise_kind=noise_kind(config),
            graph=graph,
            sigma=sigma,
            epsilon=None if sigma is not None else _shares_of_budgets(config, graph.agents),
            delta=deltas(config, graph.agents),
            guarantee=guarantee_of(config),
            answers=frozenset({*config.privacy.answers, config.privacy.guarantee} & set(ON_REQUEST)),
            optimiser=optimiser,
            robust=_robust(config, method),
            rounded=_rounded(config, optimiser),
        )

    @property
    def needs(self) -> dict[Capability, str]:
        """The capabilities that its plans need because of the optimiser, the robust rule and rounding."""
        return needs_of(ADAPTIVE_OPTIMISERS.get(self.optimiser.kind), self.robust, self.rounded)

    @property
    def unpooled(self) -> Self:
        """The outline in which each agent has its own records, also if the method pools them."""
        if not self.method.pools:
            return self
        return replace(self, method=replace(self.method, pools=False), graph=named_graph(self.config))


def method_of(config: RunConfig) -> Method:
    """Return the method of a configuration. Raise ConfigError if the method has another calibration."""
    method = METHODS[config.method.name]
    if method.calibration and config.method.calibration not in (None, method.calibration):
        raise ConfigError(
            f"Expected method {method.name!r} with its own calibration {method.calibration!r}, got "
            f"{config.method.calibration!r}. Use method 'plain', which accepts every calibration."
        )
    return method


def named_graph(config: RunConfig) -> Topology:
    """Return the graph that the configuration names. Options of other kinds of graphs are ignored."""
    family = topology.FAMILIES[config.topology.kind]
    options = {**dict(config.topology), "seed": config.seed}
    return family(**{name: options[name] for name in signature(family).parameters if name in options})


def noise_kind(config: RunConfig) -> str:
    """Return the kind of noise schedule: the configured kind, or else the method's own."""
    settings, method = config.method, method_of(config)
    if settings.noise_schedule.kind is not None:
        return settings.noise_schedule.kind
    # All kinds except "steps" and "constant" need noise on gradients.
    on_gradient = settings.noise_on == "gradient" or method.noise_kind == "steps"
    return method.noise_kind if on_gradient else "constant"


def guarantee_of(config: RunConfig) -> str | None:
    """Return the answer that must stay within the budget; None if σ is configured or there is no noise."""
    uncalibrated = config.privacy.sigma is not None or not method_of(config).noisy
    return None if uncalibrated else config.privacy.guarantee


def budgets(config: RunConfig, agents: int) -> Floats:
    """Return the budget ε of each agent [agents]."""
    return per_agent("privacy.epsilon", config.privacy.epsilon, agents)


def deltas(config: RunConfig, agents: int) -> Floats:
    """Return the δ of each agent [agents]."""
    return per_agent("privacy.delta", config.privacy.delta, agents)


def strictest_budget(config: RunConfig) -> tuple[float, float]:
    """Return the (ε, δ) of an agent whose budget allows the least μ."""
    epsilon, delta = np.broadcast_arrays(config.privacy.epsilon, config.privacy.delta)
    pairs = zip(epsilon.ravel().tolist(), delta.ravel().tolist(), strict=True)
    return min(pairs, key=lambda pair: mu_of(*pair))


def per_agent(key: str, value: float | list[float], agents: int) -> Floats:
    """Return one number per agent [agents]. `value`: one number for all agents, or a list for each of them.

    Raise ConfigError that names `key` if the list has another length.
    """
    values = np.atleast_1d(np.asarray(value, float))
    if len(values) not in (1, agents):
        raise ConfigError(
            f"{key}: expected one number, or a list of {agents} numbers, one per agent, got a list of "
            f"{len(values)}."
        )
    return np.broadcast_to(values, agents).copy()


def weights_of(config: RunConfig, agents: int) -> Floats:
    """Return the weight of each agent's gradient [agents]; 1 for weights that are still "auto", and if agents
    mix nothing.
    """
    weights = config.privacy.weights
    if isinstance(weights, str) or not method_of(config).mixes:
        return np.ones(agents)
    return per_agent("privacy.weights", weights, agents)


def batches_of(config: RunConfig, counts: Sequence[int]) -> tuple[Batches, ...]:
    """Return, for each agent i, how it selects the records of a release from its counts[i] records.

    An agent that trains alone uses the mean gradient of its own records, and all of them if it has fewer than
    a batch. Raise InputError if batches would be larger than the mean shard, or than a shard if every agent
    has the same weight.
    """
    method, batch = method_of(config), config.data.batch
    by_records = config.train.weighting == "records" and (method.mixes or method.pools)
    mean = sum(counts) / len(counts) if by_records else None
    shares = list(zip(counts, weights_of(config, len(counts)).tolist(), strict=True))
    if not isinstance(batch, CycleBatch | PoissonBatch):
        return tuple(Full(count, mean_records=mean, weight=weight) for count, weight in shares)
    size = batch.cycle if isinstance(batch, CycleBatch) else batch.poisson
    kind = Cycle if isinstance(batch, CycleBatch) else Poisson
    if method is ALONE:
        return tuple(kind(count, min(size, count)) for count in counts)
    if mean is None and size > (smallest := min(counts)):
        raise InputError(
            f"Expected batches of at most {smallest} records, because agent {counts.index(smallest)} has no "
            f'more, got {size}. Use smaller batches, train.weighting = "records", or a more even partition.'
        )
    if mean is not None and size > mean:
        raise InputError(
            f"Expected batches of at most {math.floor(mean)} records, because agents have {mean:g} on "
            f"average, got {size}. Use smaller batches or fewer agents."
        )
    return tuple(kind(count, size, mean_records=mean, weight=weight) for count, weight in shares)


def analysis_of(config: RunConfig, counts: Sequence[int]) -> Analysis:
    """Return the analysis of a run in which agent i has counts[i] records: how the records enter releases,
    and the published calibration of the noise.
    """
    calibration = method_of(config).calibration or config.method.calibration or "tight"
    return Analysis(
        calibration,
        batches_of(config, counts),
        config.privacy.clip,
        config.privacy.adjacency,
        noise_on_estimate=config.method.noise_on == "estimate",
        unit=config.privacy.unit,
        sites=min(config.privacy.sites_per_person, len(counts)),
    )


def optimiser_of(config: RunConfig) -> Optimiser:
    """Return the rule that turns released rows into the next estimates. Raise ConfigError if it needs noise
    on gradients and the configuration has noise on estimates.
    """
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
            f'train.optimiser: expected method.noise_on = "gradient" for "{train.optimiser}", which undoes '
            'the scale of gradients, got "estimate". Change one of the two.'
        )
    return optimiser


def _shares_of_budgets(config: RunConfig, agents: int) -> Floats:
    """Return the ε [agents] to which the noise is calibrated. Raise ConfigError if there is no such ε."""
    epsilon, delta = budgets(config, agents), deltas(config, agents)
    sites = min(config.privacy.sites_per_person, agents)
    if sites > 1 and (np.ptp(epsilon) > 0 or np.ptp(delta) > 0):
        raise ConfigError(
            f"privacy.sites_per_person: expected 1 if agents have different budgets, got {sites}: what a "
            "person loses at several agents has no single budget. Use one epsilon and delta for all agents, "
            "or privacy.sigma."
        )
    return share_of_budget(epsilon, delta, sites)


def _expect_unit_and_persons(config: RunConfig) -> None:
    if config.data.person is not None and config.privacy.unit != "person":
        raise ConfigError(
            f'data.person: expected privacy.unit = "person" with a column of persons, got '
            f'{config.data.person!r} and unit = "record", under which a person with several records is '
            "protected less. Set the unit, or remove data.person and list the column under ignore in "
            "data.schema."
        )
    if config.privacy.sites_per_person == 1:
        return
    reason = None
    if isinstance(config.data.batch, PoissonBatch):
        reason = "data.batch = poisson: no account of several agents covers Poisson samples"
    elif config.privacy.guarantee == "claimed":
        reason = 'privacy.guarantee = "claimed": no published analysis covers a person at several agents'
    if reason is not None:
        raise ConfigError(
            f"privacy.sites_per_person: expected 1, got {config.privacy.sites_per_person} with {reason}. "
            "Change one of the two."
        )


def why_plans_are_equal(outlines: Sequence[RunOutline]) -> str:
    """Return text that explains why these runs have the same plan, and how to make them differ."""
    published = {run.method.calibration or run.config.method.calibration or "tight" for run in outlines}
    if len(published) > 1:
        return (
            "They differ only in the noise that each method claims to need. With --set "
            "privacy.guarantee=claimed, each method gets that noise."
        )
    kinds = {outline.noise_kind for outline in outlines}
    for outline in outlines:
        period, rounds = outline.config.method.noise_schedule.period, outline.config.rounds
        if len(kinds) > 1 and outline.noise_kind == "steps" and period >= rounds:
            return (
                f"The noise of {outline.method.name} decreases every {period} rounds, and the run has "
                f"{rounds}. They differ with a smaller --set method.noise_schedule.period."
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
    if not method.mixes:
        raise ConfigError(
            f"robust.rule: expected mean with method {method.name}, which mixes no rows of others, got "
            f"{robust.rule!r}. Remove the rule."
        )
    return Robust(robust.rule, robust.hostile, None if robust.radius == "auto" else robust.radius)


def _rounded(config: RunConfig, optimiser: Optimiser) -> str | None:
    train = config.train
    if train.rows == "model":
        return None
    for key, used, reason in (
        ("robust.rule", config.robust.rule != "mean", "robust rules mix rows that are not rounded"),
        ("attack.name", config.attack.name != "none", "attacks change rows that are not rounded"),
        ("train.optimiser", optimiser.adaptive, "rounding loses small changes of its averages"),
        ("train.average", train.average > 0, "rounding loses small changes of averages of estimates"),
    ):
        if used:
            raise ConfigError(
                f'train.rows: expected "model" with this {key}, got "{train.rows}": {reason}. Use '
                'train.rows = "model".'
            )
    return train.rows

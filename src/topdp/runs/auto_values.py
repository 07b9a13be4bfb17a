"""Choice of a number for every `auto`: partners, pair noise and averaging steps, before a run begins.

The choice depends on the graph, the number of colluders and the noise that agents need, never on data. The
configuration in the run folder has the numbers, so that the run can be repeated and resumed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from topdp.base.array_types import Floats, Ints
from topdp.errors import InputError
from topdp.plan import Plan
from topdp.plan.schedules import Schedule
from topdp.privacy.answers import ADAPTIVE, guarantee_kind
from topdp.privacy.noise_allocation import Allocation, allocate
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.adaptive import expect_colluders
from topdp.privacy.observers.shared_noise import enumerable
from topdp.privacy.published.claims import Analysis
from topdp.protocols import Correlated, Dsgd
from topdp.protocols.averaging import expect_gossip, metropolis, mixing_roots
from topdp.protocols.pair_secrets import expect_uncut, secret_pairs
from topdp.runs.config import ConfigError, CycleBatch, RunConfig, dotted, is_auto
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline, method_of
from topdp.topology import Topology

# If there are too many coalitions to enumerate, all agents of a graph up to this size share secrets.
MAX_COMPLETE_SECRETS_AGENTS = 64
LARGE_GRAPH_PARTNERS = (16, 24, 32, 48)  # numbers of partners with which a bound exists on larger graphs

PAIR_NOISE_STRENGTHS = (3.0, 10.0, 30.0)  # pair noise over the noise that an agent needs without pair noise
GOSSIP_STEPS = (1, 2, 3, 4, 6, 8, 12)  # numbers of averaging steps between gradients
PARTNER_COUNTS = (4, 6, 8, 12, 16)  # tried besides the smallest counts that exceed the number of colluders

# The price of noise between agents, relative to noise in their average, after `TRIAL_ROUNDS` rounds.
DISAGREEMENT_PRICE = 0.05

# The price of sending one estimate to all neighbours, relative to the noise with pooled records.
MESSAGE_PRICE = 0.005

TRIAL_ROUNDS = 40  # rounds after which noise is compared

MAX_SECANT_STEPS = 8  # of the search for the allocation that has the configured pair noise
LOG_RATIO_TOLERANCE = 1e-3  # of the logarithm of the pair noise in that search
STRENGTH_RANGE = (1e-3, 1e6)  # below it, own noise does not change; above it, own noise is negligible


def with_auto_values(outline: RunOutline, analysis: Analysis, schedule: Schedule) -> RunConfig:
    """Return the configuration with a number for each `auto` that the method uses.

    Raise InputError for settings that cannot be run.
    """
    config, graph = outline.config, outline.graph
    if outline.method.pools:  # a single agent has nobody to collude with
        return with_keys(config, privacy={"colluders": 0})
    expect_colluders(config.privacy.colluders, graph.agents)
    config = _not_accelerated(config)
    if outline.method.shares_noise:
        config = _correlated(replace(outline, config=config), analysis, schedule)
    elif outline.method.gossips and config.method.gossip == "auto":
        averaging, ones, chebyshev = _Averaging(graph), np.ones(graph.agents), config.method.chebyshev
        steps = _gossip_candidates(outline, analysis)
        best = min(steps, key=lambda gossip: averaging.price(ones, ones, 0.0, gossip, chebyshev))
        config = with_keys(config, method={"gossip": best})
    _expect_all_batches(outline, config, analysis)
    return config


def _not_accelerated(config: RunConfig) -> RunConfig:
    """Return the configuration without Chebyshev acceleration if it has a robust rule, because acceleration
    extrapolates beyond the rows that the rule accepts.
    """
    return config if config.robust.rule == "mean" else with_keys(config, method={"chebyshev": False})


def noise_shares(run: ResolvedRun) -> Floats | None:
    """Return the own noise of each agent [agents], up to a common factor; None if all agents need the same or
    the method has no pair noise.
    """
    protocol = run.protocol
    if not isinstance(protocol, Correlated):
        return None
    config, alone = run.config, noise_alone(run, run.analysis, run.schedule)
    if np.ptp(alone) <= 1e-12 * alone.max():
        return None
    pairs = secret_pairs(protocol.secrets, run.graph, protocol.degree, config.seed)
    if not guarantee_kind(config.privacy.guarantee).relies_on_others:
        return alone  # all other agents together know the pair noise
    return _at_ratio(pairs, alone, config.privacy.colluders, protocol.pair_noise)


def _at_ratio(pairs: Ints, alone: Floats, colluders: int, ratio: float) -> Floats:
    """Return own noise [agents] for which pair noise divided by own noise is about `ratio`.

    A secant search on logarithms, which begins with the strengths that `auto` tries. If `auto` chose `ratio`,
    it belongs to one of them. Calibration corrects the remaining difference. `alone` [agents]: the noise that
    each agent needs without pair noise.
    """
    if ratio == 0:
        return alone
    tried = {strength: allocated(pairs, alone, colluders, strength) for strength in PAIR_NOISE_STRENGTHS}
    for _ in range(MAX_SECANT_STEPS):
        error = {strength: math.log(allocation.pair_noise / ratio) for strength, allocation in tried.items()}
        first, second = sorted(error, key=lambda strength: abs(error[strength]))[:2]
        if abs(error[first]) < LOG_RATIO_TOLERANCE:
            break
        slope = (error[second] - error[first]) / math.log(second / first)
        step = -error[first] / max(slope, 0.5)  # own noise decreases as pair noise increases
        strength = float(np.clip(first * math.exp(np.clip(step, -3.0, 3.0)), *STRENGTH_RANGE))
        if strength in tried:
            break
        tried[strength] = allocated(pairs, alone, colluders, strength)
    return min(tried.values(), key=lambda allocation: abs(math.log(allocation.pair_noise / ratio))).own


def allocated(pairs: Ints, alone: Floats, colluders: int, strength: float) -> Allocation:
    """Return the result of `allocate`, cached, because `auto` and the plan need the same allocation."""
    return _allocated(pairs.astype(np.int64).tobytes(), alone.tobytes(), colluders, strength)


@lru_cache(maxsize=64)
def _allocated(pairs: bytes, alone: bytes, colluders: int, strength: float) -> Allocation:
    shaped = np.frombuffer(pairs, np.int64).reshape(-1, 2)
    return allocate(shaped, np.frombuffer(alone), colluders, strength)


def _correlated(outline: RunOutline, analysis: Analysis, schedule: Schedule) -> RunConfig:
    config, graph = outline.config, outline.graph
    c, colluders = config.method, config.privacy.colluders
    degrees = _degrees(config, graph)
    if "auto" not in (c.secrets_degree, c.pair_noise, c.gossip):
        _expect_uncut(config, graph, degrees[0])
        return config
    alone = noise_alone(outline, analysis, schedule)
    steps = _gossip_candidates(outline, analysis) if c.gossip == "auto" else (expect_gossip(c.gossip),)
    averaging, choices = _Averaging(graph), list[tuple[float, dict[str, float]]]()
    for degree in degrees:
        try:
            _expect_uncut(config, graph, degree)
        except InputError:
            if choices or degree != degrees[-1]:
                continue  # colluders may be unable to cut a graph with another number of partners
            raise
        pairs = secret_pairs(c.secrets, graph, degree, config.seed)
        if c.pair_noise == "auto":
            tried = [allocated(pairs, alone, colluders, strength) for strength in PAIR_NOISE_STRENGTHS]
            ratios_and_noise = [(allocation.pair_noise, allocation.own) for allocation in tried]
        else:
            ratios_and_noise = [(c.pair_noise, _at_ratio(pairs, alone, colluders, c.pair_noise))]
        for ratio, own in ratios_and_noise:
            shared = averaging.shared(pairs, ratio * math.sqrt(float(np.square(own).mean())))
            for gossip in steps:
                price = averaging.price(own, alone, shared, gossip, c.chebyshev)
                chosen = {"secrets_degree": degree, "pair_noise": ratio, "gossip": gossip}
                choices.append((price, chosen))
    _, best = min(choices, key=lambda choice: choice[0])
    return with_keys(config, method=best)


def _gossip_candidates(outline: RunOutline, analysis: Analysis) -> tuple[int, ...]:
    """Return the numbers of averaging steps to try: those with which a cycle uses all its batches.

    If there is no such number, return all numbers.
    """
    periods = {batches.period for batches in analysis.batches}
    adaptive = outline.optimiser.adaptive
    fits = tuple(
        steps
        for steps in GOSSIP_STEPS
        if all(math.gcd(period, 1 + steps + adaptive) == 1 for period in periods)
    )
    return fits or GOSSIP_STEPS


def _degrees(config: RunConfig, graph: Topology) -> list[int]:
    """Return the numbers of partners to try: more than the colluders, and such that an account exists."""
    c, n, colluders = config.method, graph.agents, config.privacy.colluders
    if c.secrets_degree != "auto":
        return [c.secrets_degree]
    if c.secrets != "regular":
        return [n - 1]
    if enumerable(n, colluders):
        wanted: tuple[int, ...] = (colluders + 1, colluders + 2, *PARTNER_COUNTS)
    else:
        wanted = (n - 1,) if n <= MAX_COMPLETE_SECRETS_AGENTS else LARGE_GRAPH_PARTNERS
    fits = sorted({k for k in wanted if colluders < k < n and (k * n % 2 == 0 or k == n - 1) and k > 1})
    return fits or [n - 1]


def _expect_uncut(config: RunConfig, graph: Topology, degree: int) -> None:
    pairs = secret_pairs(config.method.secrets, graph, degree, config.seed)
    expect_uncut(pairs, graph.agents, config.privacy.colluders, config.method.secrets, config.seed)


def noise_alone(outline: RunOutline, analysis: Analysis, schedule: Schedule) -> Floats:
    """Return the noise [agents] that each agent needs without the noise of others, up to a common factor."""
    agents, epsilon, delta = outline.graph.agents, outline.epsilon, outline.delta
    exposure = analysis.exposure()
    alike = exposure.same_participation and np.ptp(exposure.sensitivity) == 0
    if epsilon is None or (np.ptp(epsilon) == np.ptp(delta) == 0 and alike):
        return np.ones(agents)  # the noise is configured, or all agents need the same

    def write(deviation: Floats) -> Plan:
        return Dsgd().plan(outline.graph, schedule, deviation, outline.config.seed)

    return calibrate(write, analysis, ADAPTIVE.name, epsilon, delta).deviation


class _Averaging:
    """The residual noise after some rounds on a graph, from the eigenvalues of its Metropolis weights.

    It is equal to `residual_noise` of the plans, but needs no plan, because mixing scales each eigenvector.
    """

    def __init__(self, graph: Topology) -> None:
        self.agents = graph.agents
        self.values, self.vectors = np.linalg.eigh(metropolis(graph))

    def price(
        self, own: Floats, alone: Floats, shared: Floats | float, gossip: int, chebyshev: bool
    ) -> float:
        """Return the noise in the average and between agents, relative to pooled records, plus the price of
        messages.

        `own`, `alone` [agents]: each agent's own noise, and the noise that it needs without pair noise.
        `shared` [agents]: the variance of pair noise along each eigenvector.
        """
        n, rest = self.agents, slice(None, -1)  # all eigenvectors except the last, that of the average
        variance = np.square(own) @ np.square(self.vectors) + shared
        roots = mixing_roots(self.values, gossip, chebyshev) if gossip else [0.0]
        retained = np.prod([np.square((self.values - root) / (1 - root)) for root in roots], axis=0)[rest]
        # Σ_t p^2t over the rounds; without averaging steps, the noise of the last round is not mixed.
        rounds = np.arange(TRIAL_ROUNDS) + (1 if gossip else 0)
        between = float(variance[rest] @ np.power(retained[:, None], rounds).sum(axis=1)) / n
        average = TRIAL_ROUNDS * float(np.square(own).sum()) / n**2
        pooled = TRIAL_ROUNDS * float(np.square(alone).mean()) / n**2
        return (average + DISAGREEMENT_PRICE * between) / pooled + MESSAGE_PRICE * max(1, gossip)

    def shared(self, pairs: Ints, pair: float) -> Floats:
        """Return the variance of pair noise along each eigenvector u [agents]: uᵀ(s²L)u, where s = `pair` and
        L is the Laplacian of the graph of `pairs`.
        """
        difference = self.vectors[pairs[:, 0]] - self.vectors[pairs[:, 1]]
        return np.asarray(pair**2 * np.square(difference).sum(axis=0))


def _expect_all_batches(outline: RunOutline, config: RunConfig, analysis: Analysis) -> None:
    """Raise ConfigError if some batches of a cycle would never be used, because their turn always comes in an
    averaging or adaptive step.
    """
    if not isinstance(config.data.batch, CycleBatch):
        return
    gossip, optimiser = outline.method.gossip_steps(config.method), outline.optimiser
    releases = 1 + gossip + optimiser.adaptive
    settings = f"gossip = {gossip}" + (f" and {optimiser.kind}" if optimiser.adaptive else "")
    for batches in analysis.batches:
        if (common := math.gcd(batches.period, releases)) > 1:
            raise ConfigError(
                "data.batch: expected a cycle of which all batches are used, got only "
                f"{batches.period // common} of {batches.period} batches with {settings}, because "
                f"{batches.period} and the {releases} releases of a round have a common factor. Use another "
                "gossip, another batch size, or full batches."
            )


def differing_keys(stated: RunConfig, begun: RunConfig) -> list[str]:
    """Return the keys in which `stated` differs from `begun`, the configuration of a run. An `auto` in
    `stated` never differs.
    """
    chosen = {
        key: getattr(begun.method, key)
        for key in ("secrets_degree", "pair_noise", "gossip")
        if getattr(stated.method, key) == "auto"
    }
    stated = _not_accelerated(with_keys(stated, method=chosen))
    stated = _with_begun_settings(stated, begun)
    if stated.privacy.weights == "auto":
        stated = with_keys(stated, privacy={"weights": begun.privacy.weights})
    if method_of(stated).pools:
        stated = with_keys(stated, privacy={"colluders": 0})
    # Sinks do not change the results of a run.
    new, old = (dotted(config.model_dump(exclude={"report"})) for config in (stated, begun))
    return sorted(key for key in new.keys() | old.keys() if new.get(key) != old.get(key))


def _with_begun_settings(config: RunConfig, begun: RunConfig) -> RunConfig:
    """Return `config` with the values of `begun` for settings that follow the job and are "auto"."""
    if is_auto(config.rounds):
        config = config.model_copy(update={"rounds": begun.rounds})
    for section, key in (("method", "name"), ("privacy", "clip"), ("train", "learning_rate")):
        if is_auto(getattr(getattr(config, section), key)):
            config = with_keys(config, **{section: {key: getattr(getattr(begun, section), key)}})
    return config


def with_keys(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    """Return the configuration with other values of some keys, by section."""
    changed = {name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()}
    return config.model_copy(update=changed)

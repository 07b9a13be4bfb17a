"""What a configuration leaves open is chosen before a run begins: partners, pair noise, steps of averaging.

From the graph, the number of colluders and what agents need; never from data. The run's own configuration
then holds the numbers, so that it can be repeated and resumed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from topdp.errors import InputError
from topdp.plan import Plan
from topdp.plan.arrays import Floats, Ints
from topdp.plan.schedules import Schedule
from topdp.privacy.allocation import Allocation, allocate
from topdp.privacy.calibrate import calibrate
from topdp.privacy.leftover import leftover
from topdp.privacy.observers.adaptive import expect_colluders
from topdp.privacy.observers.shared_noise import enumerable
from topdp.protocols import Correlated, Dsgd, Muffliato, Protocol
from topdp.protocols.secrets import expect_uncut, secret_pairs
from topdp.settings import build
from topdp.settings.config import ConfigError, CycleBatch, RunConfig
from topdp.topology import Topology

ENUMERABLE = 64  # agents among whom secrets are shared by all, where coalitions are too many to look at
CONNECTED = (16, 24, 32, 48)  # partners with which larger graphs are bounded

STRENGTHS = (3.0, 10.0, 30.0)  # of pair noise, over what an agent needs alone
STEPS = (1, 2, 3, 4, 6, 8, 12)  # of averaging between gradients
PARTNERS = (4, 6, 8, 12, 16)  # of every agent; the least that colluders cannot cut is tried too

DISAGREEMENT = 0.05
"""The price of noise between agents, over that in their average after as many rounds as TRIAL."""

MESSAGE = 0.005
"""The price of sending one estimate to all neighbours, over that of the noise of pooled records."""

TRIAL = 40  # rounds after which noise is looked at

SECANTS = 8  # tries to find the allocation for pair noise that was given
CLOSE = 1e-3  # of the logarithm of that


def settled(config: RunConfig, graph: Topology, counts: tuple[int, ...]) -> RunConfig:
    """The configuration with a number wherever it says `auto`; what cannot be run is refused."""
    if build.method(config).pools:  # nobody else takes part
        return _with(config, privacy={"colluders": 0})
    expect_colluders(config.privacy.colluders, graph.agents)
    if config.method.name == "correlated":
        config = _correlated(config, graph, counts)
    elif config.method.name == "muffliato" and config.method.gossip == "auto":
        best = min(STEPS, key=lambda steps: _price(Muffliato(steps, config.method.chebyshev), graph))
        config = _with(config, method={"gossip": best})
    _expect_all_batches(config, counts)
    return config


def shares(config: RunConfig, graph: Topology, counts: tuple[int, ...]) -> Floats | None:
    """[agents] own noise up to a common factor, where agents with shared noise need different amounts."""
    if config.method.name != "correlated":
        return None
    alone = _alone(config, graph, counts)
    if np.ptp(alone) <= 1e-12 * alone.max():
        return None
    protocol = build.protocol(config)
    assert isinstance(protocol, Correlated)
    pairs = secret_pairs(protocol.secrets, graph, protocol.degree, config.seed)
    if protocol.pair_noise == 0 or config.privacy.guarantee == "worst-case":
        return alone  # to all others together pairs' noise is known
    return _at_ratio(pairs, alone, config.privacy.colluders, protocol.pair_noise).own


def _at_ratio(pairs: Ints, alone: Floats, colluders: int, ratio: float) -> Allocation:
    """The allocation in which pairs have about that noise over agents' own: by secants of the logarithms.

    Among those that were tried for `auto` is the one that was chosen. The account makes good what is off.
    """
    tried = {strength: allocated(pairs, alone, colluders, strength) for strength in STRENGTHS}
    for _ in range(SECANTS):
        off = {strength: math.log(found.pair_noise / ratio) for strength, found in tried.items()}
        first, second = sorted(off, key=lambda strength: abs(off[strength]))[:2]
        if abs(off[first]) < CLOSE:
            break
        slope = (off[second] - off[first]) / math.log(second / first)
        step = -off[first] / max(slope, 0.5)  # own noise falls where pairs' grows
        strength = float(np.clip(first * math.exp(np.clip(step, -3.0, 3.0)), 1e-3, 1e9))
        if strength in tried:
            break
        tried[strength] = allocated(pairs, alone, colluders, strength)
    return min(tried.values(), key=lambda found: abs(math.log(found.pair_noise / ratio)))


def allocated(pairs: Ints, alone: Floats, colluders: int, strength: float) -> Allocation:
    """As `allocate`, once for the same question: noise is settled first, and divided up later."""
    return _allocated(pairs.tobytes(), alone.tobytes(), colluders, strength)


@lru_cache(maxsize=64)
def _allocated(pairs: bytes, alone: bytes, colluders: int, strength: float) -> Allocation:
    shaped = np.frombuffer(pairs, np.int64).reshape(-1, 2)
    return allocate(shaped, np.frombuffer(alone), colluders, strength)


class Choice(NamedTuple):
    """One way to share noise, and what it leaves."""

    price: float
    degree: int
    gossip: int
    allocation: Allocation


def _correlated(config: RunConfig, graph: Topology, counts: tuple[int, ...]) -> RunConfig:
    c, colluders = config.method, config.privacy.colluders
    open_questions = [c.secrets_degree, c.pair_noise, c.gossip].count("auto")
    degrees = _degrees(config, graph)
    if open_questions == 0:
        _expect_uncut(config, graph, degrees[0])
        return config
    alone = _alone(config, graph, counts)
    steps = STEPS if c.gossip == "auto" else (c.gossip,)
    choices: list[Choice] = []
    for degree in degrees:
        try:
            _expect_uncut(config, graph, degree)
        except InputError:
            if choices or degree != degrees[-1]:
                continue  # of several, those that hold are compared
            raise
        pairs = secret_pairs(c.secrets, graph, degree, config.seed)
        for strength in STRENGTHS:
            found = allocated(pairs, alone, colluders, strength)
            ratio = found.pair_noise if c.pair_noise == "auto" else c.pair_noise
            for gossip in steps:
                protocol = Correlated(c.secrets, degree, ratio, gossip, c.chebyshev)
                choices.append(Choice(_price(protocol, graph, found.own, alone), degree, gossip, found))
    best = min(choices, key=lambda choice: choice.price)
    ratio = best.allocation.pair_noise if c.pair_noise == "auto" else c.pair_noise
    return _with(config, method={"secrets_degree": best.degree, "pair_noise": ratio, "gossip": best.gossip})


def _degrees(config: RunConfig, graph: Topology) -> list[int]:
    """Numbers of partners worth a try: enough for the colluders, and such that an account can be given."""
    c, n, colluders = config.method, graph.agents, config.privacy.colluders
    if c.secrets_degree != "auto":
        return [c.secrets_degree]
    if c.secrets != "regular":
        return [n - 1]
    if enumerable(n, colluders):
        wanted: tuple[int, ...] = (colluders + 1, colluders + 2, *PARTNERS)
    else:
        wanted = (n - 1,) if n <= ENUMERABLE else CONNECTED
    fits = sorted({k for k in wanted if colluders < k < n and (k * n % 2 == 0 or k == n - 1) and k > 1})
    return fits or [n - 1]


def _expect_uncut(config: RunConfig, graph: Topology, degree: int) -> None:
    pairs = secret_pairs(config.method.secrets, graph, degree, config.seed)
    expect_uncut(pairs, graph.agents, config.privacy.colluders, config.method.secrets, config.seed)


def _alone(config: RunConfig, graph: Topology, counts: tuple[int, ...]) -> Floats:
    """[agents] the noise that each would need if nobody else's hid it; up to a common factor."""
    sigma = build.sigma(config, graph.agents)
    if sigma is not None:
        return np.ones(graph.agents)  # it was given: nothing to divide up
    epsilon = build.per_agent("privacy.epsilon", config.privacy.epsilon, graph.agents)
    analysis = build.analysis(config, counts)
    if np.ptp(epsilon) == 0 and len(set(analysis.batches)) == 1:
        return np.ones(graph.agents)
    schedule = build.schedule(config, min(counts))

    def write(deviation: Floats) -> Plan:
        return Dsgd().plan(graph, schedule, deviation, config.seed)

    return calibrate(write, analysis, "adaptive", epsilon, config.privacy.delta).deviation


def _price(
    protocol: Protocol, graph: Topology, own: Floats | None = None, alone: Floats | None = None
) -> float:
    """What noise is left after some rounds, over that of pooled records, and what it takes to send."""
    n = graph.agents
    own, alone = (np.ones(n) if one is None else one for one in (own, alone))
    steps = Schedule(rate=np.ones(TRIAL), noise=np.ones(TRIAL))
    plan = protocol.plan(graph, steps, own, seed=0)
    left, each = leftover(plan), plan.releases // TRIAL
    pooled = TRIAL * float(np.square(alone).mean()) / n**2
    noise = float(left.average[-1]) + DISAGREEMENT * float(left.between[-1])
    return noise / pooled + MESSAGE * max(1, each - 1)


def _expect_all_batches(config: RunConfig, counts: tuple[int, ...]) -> None:
    """Batches come in turn, release by release: those of releases that only mix would never be used."""
    if not isinstance(config.data.batch, CycleBatch):
        return
    gossip = config.method.gossip if config.method.name in ("correlated", "muffliato") else 0
    for batches in build.batches(config, counts):
        if (common := math.gcd(batches.period, 1 + int(gossip))) > 1:
            raise ConfigError(
                f"data.batch: with gossip = {gossip} only each {common}th of {batches.period} batches would "
                "be used. Take another gossip, another size of batches, or full ones."
            )


def agrees(given: RunConfig, begun: RunConfig) -> bool:
    """Whether a run was begun with these settings; what they leave open was chosen then."""
    chosen = {
        key: getattr(begun.method, key)
        for key in ("secrets_degree", "pair_noise", "gossip")
        if getattr(given.method, key) == "auto"
    }
    given = _with(given, method=chosen)
    if build.method(given).pools:
        given = _with(given, privacy={"colluders": 0})
    return given == begun


def _with(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    changed = {name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()}
    return config.model_copy(update=changed)

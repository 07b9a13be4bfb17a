"""Protocols whose rows all neighbours read: `dsgd`, `muffliato`, `correlated`; and the baselines `alone` and
`central`.

In the first three, every agent broadcasts one row to all neighbours in each release. A round has K + 1
releases: one noised step, in which every row carries its owner's gradient with noise, and K averaging steps,
which only mix rows. The rows of the last averaging step are not sent, because each agent begins its next step
with its own row. With K = 0, the noised step itself mixes. Agents mix the rows that they broadcast, never a
copy of their own row without its noise. So all estimates are functions of broadcast rows, and an observer of
every edge sees every row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from topdp.base.array_types import Floats, Indices, Ints
from topdp.errors import InputError
from topdp.plan import NOBODY, PerRound, Plan
from topdp.plan.schedules import Schedule
from topdp.protocols.averaging import expect_gossip, mixing_sources, own_sources
from topdp.protocols.pair_secrets import SECRETS, secret_pairs
from topdp.protocols.protocol import Protocol, check_deviation
from topdp.topology import Topology


def broadcast_plan(
    protocol: str,
    topology: Topology,
    schedule: Schedule,
    *,
    noise: tuple[Indices, Floats, Indices],
    gossip: int = 0,
    chebyshev: bool = False,
) -> Plan:
    """Return the plan of a protocol in which every agent broadcasts one row in each release.

    `noise`: the draws and the standard deviations of each row in a noised step, each [n, v], and `known_by`
    [draws, u]. `gossip`: the number of averaging steps. `chebyshev`: whether these are accelerated.
    """
    draw, std, known_by = noise
    n, per_round = topology.agents, 1 + expect_gossip(gossip)
    own = np.arange(n)
    first = own_sources(topology) if gossip else mixing_sources(topology, 1)[0]
    mixes = mixing_sources(topology, gossip, chebyshev)
    source, weight = (np.stack(parts) for parts in zip(first, *mixes, strict=True))
    sent, unsent = np.array(topology.neighbours), np.full_like(topology.neighbours, NOBODY)

    def each_release(kinds: np.ndarray) -> PerRound:
        return PerRound(kinds, np.tile(np.arange(per_round, dtype=np.int32), schedule.releases))

    def step_then_averaging(of_step: np.ndarray, of_averaging: np.ndarray) -> PerRound:
        kinds = np.stack([of_step, of_averaging]) if gossip else of_step[None]
        which = np.tile(np.minimum(np.arange(per_round), 1).astype(np.int32), schedule.releases)
        return PerRound(kinds, which)

    def in_steps(values: Floats) -> Floats:
        by_release = np.zeros((schedule.releases, per_round))
        by_release[:, 0] = values
        return by_release.reshape(-1)

    return Plan(
        agents=n,
        owner=own,
        source=each_release(source),
        weight=each_release(weight),
        carries=step_then_averaging(np.ones(n, bool), np.zeros(n, bool)),
        rate=in_steps(schedule.rate),
        draw=step_then_averaging(draw, np.full_like(draw, NOBODY)),
        std=step_then_averaging(std, np.zeros_like(std)),
        scale=in_steps(schedule.noise),
        known_by=known_by,
        readers=each_release(np.stack([sent] * max(per_round - 1, 1) + [unsent] * min(gossip, 1))),
        protocol=protocol,
    )


def own_noise(deviation: Floats) -> tuple[Indices, Floats, Indices]:
    """Return the `noise` of `broadcast_plan` if each agent has one draw, which no other agent knows."""
    own = np.arange(len(deviation))[:, None]
    return own, deviation[:, None], own


@dataclass(frozen=True)
class Dsgd(Protocol):
    """The usual baseline: one noised broadcast per round, mixed by Metropolis weights.

    An agent averages its own last broadcast and those of its neighbours, takes a gradient step, adds
    full-scale noise and broadcasts the result (Lian et al. 2017, with the noise of the Gaussian mechanism).

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = Dsgd().plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> plan.protocol, plan.rows, plan.releases, plan[1].weight[0].round(2).tolist()
    ('dsgd', 5, 21, [0.33, 0.33, 0.33])
    """

    name: ClassVar[str] = "dsgd"
    claimed: ClassVar[bool] = True

    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        noise = own_noise(check_deviation(deviation, topology.agents))
        return broadcast_plan(self.name, topology, schedule, noise=noise)


@dataclass(frozen=True)
class Muffliato(Protocol):
    """The protocol with a noised step, then `gossip` averaging steps (Cyffers et al. 2022).

    If `chebyshev`, the averaging steps are accelerated. The authors account for pairs of agents, because
    averaging hides rows from most agents. Here every broadcast counts as seen, so averaging improves accuracy
    at no privacy cost.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = Muffliato(gossip=3).plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> plan.protocol, plan.rows, plan.releases
    ('muffliato', 5, 84)
    """

    name: ClassVar[str] = "muffliato"

    gossip: int = 4
    chebyshev: bool = True

    def __post_init__(self) -> None:
        expect_gossip(self.gossip)

    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        noise = own_noise(check_deviation(deviation, topology.agents))
        return broadcast_plan(
            self.name, topology, schedule, noise=noise, gossip=self.gossip, chebyshev=self.chebyshev
        )


@dataclass(frozen=True, kw_only=True)
class Correlated(Protocol):
    """The protocol with a step with pair noise and a little own noise, then `gossip` averaging steps.

    Two agents with a pair secret make the same draw and add it with opposite signs. Pair noise therefore
    cancels in the sum over all agents, which contains only the small own noise of each agent. A single row is
    protected by its own noise and its pair noise. Averaging steps remove the pair noise that remains in the
    estimates.

    **Guarantees.** None by itself: accounts read the plan. An observer without the secret of two agents does
    not know their shared draw; each of the two agents knows it. So pair noise hides a row from every
    observer, unless a coalition of agents that share secrets with the row's owner separates the owner from
    all other agents in the graph of secrets (`pair_secrets`).

    `pair_noise`: the standard deviation of a shared draw, divided by the root mean square of the agents' own
    noise. `secrets`, `degree`: which agents share secrets (`secret_pairs`).

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> protocol = Correlated(secrets="all", pair_noise=3.0, gossip=2)
    >>> plan = protocol.plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> plan.protocol, plan.rows, plan.draws, plan.releases
    ('correlated', 4, 10, 63)
    >>> plan[0].draw[1].tolist(), (plan[0].std[1] / 0.5).tolist()  # own, and with agents 0, 2 and 3
    ([1, 4, 7, 8], [1.0, -3.0, 3.0, 3.0])
    """

    name: ClassVar[str] = "correlated"

    secrets: str = "regular"
    degree: int = 8
    pair_noise: float = 5.0
    gossip: int = 4
    chebyshev: bool = True

    def __post_init__(self) -> None:
        expect_gossip(self.gossip)
        if self.secrets not in SECRETS:
            raise InputError(f"Expected secrets to be one of {', '.join(SECRETS)}, got {self.secrets!r}.")
        if not 0 <= self.pair_noise < math.inf:
            raise InputError(f"Expected a finite pair_noise >= 0, got {self.pair_noise}.")

    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        own = check_deviation(deviation, topology.agents)
        noise = self._noise(own, secret_pairs(self.secrets, topology, self.degree, seed))
        return broadcast_plan(
            self.name, topology, schedule, noise=noise, gossip=self.gossip, chebyshev=self.chebyshev
        )

    def _noise(self, own: Floats, pairs: Ints) -> tuple[Indices, Floats, Indices]:
        """Return the `noise` of `broadcast_plan`; draws 0 .. n-1 are own noise, the others shared draws."""
        n = len(own)
        pair = self.pair_noise * math.sqrt(math.fsum(own * own) / n)
        partners = np.bincount(pairs.reshape(-1), minlength=n)
        draw = np.full((n, 1 + partners.max(initial=0)), NOBODY)
        std = np.zeros(draw.shape)
        draw[:, 0], std[:, 0] = np.arange(n), own
        slot = np.ones(n, np.int64)
        for number, ends in enumerate(pairs.tolist()):
            for agent, sign in zip(ends, (1.0, -1.0), strict=True):  # the lower number has the plus sign
                draw[agent, slot[agent]], std[agent, slot[agent]] = n + number, sign * pair
                slot[agent] += 1
        known_by = np.full((n + len(pairs), 2), NOBODY)
        known_by[:n, 0] = np.arange(n)
        known_by[n:] = pairs
        return draw, std, known_by


@dataclass(frozen=True)
class Alone(Protocol):
    """Gradient descent with Gaussian noise by each agent on its own records: what it can do without others.

    Agents mix nothing. Each agent's neighbours read its estimate after every step, so every answer covers the
    models that it publishes. With the same budget, its noise is that of `Central` on its records.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = Alone().plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> plan.protocol, plan.rows, plan[1].source.tolist()
    ('alone', 5, [[0], [1], [2], [3], [4]])
    """

    name: ClassVar[str] = "alone"
    claimed: ClassVar[bool] = True

    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        n = topology.agents
        return _unmixed_plan(self, schedule, check_deviation(deviation, n), np.array(topology.neighbours))


@dataclass(frozen=True)
class Central(Protocol):
    """Gradient descent with Gaussian noise on the records of all agents (Abadi et al. 2016).

    Its accuracy is a bound for comparisons. **It needs a trusted party** that holds the records of all
    agents, adds the noise and publishes the models. Everyone else sees each model.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> plan = Central().plan(topdp.topology.single(), schedule, np.ones(1), seed=0)
    >>> plan.protocol, plan.rows, plan.releases
    ('central', 1, 21)
    """

    name: ClassVar[str] = "central"
    claimed: ClassVar[bool] = True

    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        if topology.agents != 1:
            raise InputError(
                f"Expected one party that holds all records, got a graph of {topology.agents} agents. Use "
                "topdp.topology.single()."
            )
        return _unmixed_plan(self, schedule, check_deviation(deviation, 1), np.full((1, 1), NOBODY))


def _unmixed_plan(protocol: Protocol, schedule: Schedule, deviation: Floats, readers: Ints) -> Plan:
    """Return the plan in which each agent only takes its own noised steps. `readers` [n, q]: of each row."""
    n, releases = len(deviation), schedule.releases
    return protocol._with_own_draws(
        schedule,
        np.arange(n),
        source=PerRound.same(np.arange(n)[:, None], releases),
        weight=PerRound.same(np.ones((n, 1)), releases),
        carries=PerRound.same(np.ones(n, bool), releases),
        std=PerRound.same(deviation[:, None], releases),
        readers=PerRound.same(readers, releases),
    )

"""Protocols whose rows all others read: `dsgd`, `muffliato`, `correlated`, and `central` with a server.

In the first three every agent broadcasts one row to all neighbours: a noised step, then averaging steps. A
round has K + 1 releases: one in which every row carries its owner's gradient with noise, and K that only mix.
The rows of the last one are not sent, because the next step begins with them. With K = 0 the noised step
itself mixes. Agents mix the rows that they broadcast, never a copy of their own row without its noise. So all
estimates are functions of broadcast rows, and an observer of every link sees every row.
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
    """Return the plan. `noise`: draws and deviations of each row [n, v] in a noised step; `known_by` [draws,
    u].
    """
    draw, std, known_by = noise
    n, each = topology.agents, 1 + expect_gossip(gossip)
    own = np.arange(n)
    first = own_sources(topology) if gossip else mixing_sources(topology, 1)[0]
    mixes = mixing_sources(topology, gossip, chebyshev)
    source, weight = (np.stack(parts) for parts in zip(first, *mixes, strict=True))
    sent, unsent = np.array(topology.neighbours), np.full_like(topology.neighbours, NOBODY)

    def each_step(kinds: np.ndarray) -> PerRound:
        return PerRound(kinds, np.tile(np.arange(each, dtype=np.int32), schedule.releases))

    def step_then(of_step: np.ndarray, between: np.ndarray) -> PerRound:
        kinds = np.stack([of_step, between]) if gossip else of_step[None]
        which = np.tile(np.minimum(np.arange(each), 1).astype(np.int32), schedule.releases)
        return PerRound(kinds, which)

    def on_steps(values: Floats) -> Floats:
        spread = np.zeros((schedule.releases, each))
        spread[:, 0] = values
        return spread.reshape(-1)

    return Plan(
        agents=n,
        owner=own,
        source=each_step(source),
        weight=each_step(weight),
        carries=step_then(np.ones(n, bool), np.zeros(n, bool)),
        rate=on_steps(schedule.rate),
        draw=step_then(draw, np.full_like(draw, NOBODY)),
        std=step_then(std, np.zeros_like(std)),
        scale=on_steps(schedule.noise),
        known_by=known_by,
        readers=each_step(np.stack([sent] * max(each - 1, 1) + [unsent] * min(gossip, 1))),
        protocol=protocol,
    )


def own_noise(deviation: Floats) -> tuple[Indices, Floats, Indices]:
    """Return the noise of `broadcast_plan` with one draw for every agent, which no other agent knows."""
    own = np.arange(len(deviation))[:, None]
    return own, deviation[:, None], own


@dataclass(frozen=True)
class Dsgd(Protocol):
    """One noised broadcast per round, mixed by Metropolis weights: the common comparison.

    An agent averages the last broadcasts of its neighbours, steps, adds full noise and broadcasts (Lian et
    al. 2017, with the noise of the Gaussian mechanism).

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
    """A noised step, then `gossip` averaging steps, accelerated if `chebyshev` (Cyffers et al. 2022).

    The authors account for pairs of agents, from which averaging hides rows. Here all broadcasts count as
    seen, so averaging improves accuracy at no privacy cost.

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
    """A step with pair noise and a little own noise, then `gossip` averaging steps.

    Pairs of agents draw the same noise and add it with opposite signs. It cancels in the sum over all
    agents, which contains only the small own noise of each agent. A single row is protected by its own noise
    and its pair noise. Averaging steps remove the pair noise that remains.

    **Guarantees.** None by itself: accounts read the plan. An observer without the secret of two partners
    does not know their common draw; each of the partners does. So the draw hides a row from every observer,
    unless a coalition of partners separates its owner from all other agents in the graph of secrets
    (`pair_secrets`).

    `pair_noise`: the standard deviation of a pair's draw, over the root mean square of agents' own noise.
    `secrets`, `degree`: which agents share secrets (`secret_pairs`).

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
        """Return the noise of `broadcast_plan`; draws 0 .. n-1 are own noise, the others
        belong to the pairs.
        """
        n = len(own)
        pair = self.pair_noise * math.sqrt(math.fsum(own * own) / n)
        partners = np.bincount(pairs.reshape(-1), minlength=n)
        draw = np.full((n, 1 + partners.max(initial=0)), NOBODY)
        std = np.zeros(draw.shape)
        draw[:, 0], std[:, 0] = np.arange(n), own
        slot = np.ones(n, np.int64)
        for number, ends in enumerate(pairs.tolist()):
            for agent, sign in zip(ends, (1.0, -1.0), strict=True):  # the agent with the lower number adds it
                draw[agent, slot[agent]], std[agent, slot[agent]] = n + number, sign * pair
                slot[agent] += 1
        known_by = np.full((n + len(pairs), 2), NOBODY)
        known_by[:n, 0] = np.arange(n)
        known_by[n:] = pairs
        return draw, std, known_by


@dataclass(frozen=True)
class Central(Protocol):
    """Gradient descent under Gaussian noise on pooled records (Abadi et al. 2016): a bound on accuracy.

    **Needs a trusted party** that holds the records of all agents, adds the noise and publishes the models.
    All others see each model.

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
                "topology.single()."
            )
        releases = schedule.releases
        draw, std, known_by = own_noise(check_deviation(deviation, 1))
        return Plan(
            agents=1,
            owner=np.arange(1),
            source=PerRound.same(np.zeros((1, 1), np.int64), releases),
            weight=PerRound.same(np.ones((1, 1)), releases),
            carries=PerRound.same(np.ones(1, bool), releases),
            rate=schedule.rate,
            draw=PerRound.same(draw, releases),
            std=PerRound.same(std, releases),
            scale=schedule.noise,
            known_by=known_by,
            readers=PerRound.same(np.full((1, 1), NOBODY), releases),
            protocol=self.name,
        )

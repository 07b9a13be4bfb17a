"""`correlated`: pairs of agents draw the same noise and add it with opposite signs.

Pair noise cancels in the sum over all agents, which contains only the small own noise of each agent. A single
row is protected by its own noise and its pair noise. Averaging steps between the gradients remove the pair
noise that remains.

**Guarantees.** None by itself: accounts read the plan. An observer without the secret of two partners does
not know their common draw; each of the partners does. So the draw hides a row from every observer, unless a
coalition of partners separates its owner from all other agents in the graph of secrets (`pair_secrets`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from topdp.base.array_types import Floats, Indices, Ints
from topdp.errors import InputError
from topdp.plan import NOBODY, Plan
from topdp.plan.schedules import Schedule
from topdp.protocols._broadcast import broadcast_plan
from topdp.protocols.averaging import expect_gossip
from topdp.protocols.pair_secrets import SECRETS, secret_pairs
from topdp.protocols.protocol import Protocol, check_deviation
from topdp.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Correlated(Protocol):
    """A step with pair noise and a little own noise, then `gossip` averaging steps.

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

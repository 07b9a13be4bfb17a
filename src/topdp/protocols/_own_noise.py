"""`dsgd` and `muffliato`: every agent broadcasts its estimate with its own noise, and mixes what it reads.

`dsgd` is the common comparison: an agent averages the last broadcasts of its neighbours by Metropolis
weights, steps, adds full noise and broadcasts (Lian et al. 2017, with the noise of the Gaussian mechanism).

In `muffliato` several steps of averaging follow the noise, before the next gradient (Cyffers et al. 2022).
The authors account for pairs of agents, from which averaging hides rows. Here all broadcasts count as seen,
so averaging improves accuracy at no privacy cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.plan.schedules import Schedule
from topdp.protocols._broadcast import broadcast_plan, own_noise
from topdp.protocols.averaging import expect_gossip
from topdp.protocols.protocol import Protocol, check_deviation
from topdp.topology import Topology


@dataclass(frozen=True)
class Dsgd(Protocol):
    """One noised broadcast per round, mixed by Metropolis weights.

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
    """A noised step, then `gossip` averaging steps, accelerated if `chebyshev`.

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

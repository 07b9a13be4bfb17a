"""`central`: all records in one place, and one noised step per round. An upper bound on accuracy, with a
server.

**Needs a trusted party** that holds the records of all agents, adds the noise and publishes the models. All
others see each model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.plan import NOBODY, PerRound, Plan
from topdp.plan.schedules import Schedule
from topdp.protocols._broadcast import own_noise
from topdp.protocols.protocol import Protocol, check_deviation
from topdp.topology import Topology


@dataclass(frozen=True)
class Central(Protocol):
    """Gradient descent under Gaussian noise on pooled records (Abadi et al. 2016).

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

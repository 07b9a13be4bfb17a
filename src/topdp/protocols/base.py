"""What every protocol is: settings in, plan out. No data, no noise payload, no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from topdp.errors import InputError
from topdp.plan import Plan
from topdp.plan.arrays import Floats
from topdp.plan.schedules import Schedule
from topdp.topology import Topology


@dataclass(frozen=True)
class Protocol(ABC):
    """A rule by which agents mix, perturb and send their estimates.

    `alpha` is the weight of an agent's own estimate (Eq. 3). Two protocols given the same seed make the same
    random choices wherever both make them, so that methods are compared on equal partners.

    A protocol of one's own writes a plan from a graph and a schedule:

    >>> import numpy as np
    >>> import topdp
    >>> class Silent(topdp.protocols.Protocol):
    ...     def plan(self, topology, schedule, deviation, seed):
    ...         plain = topdp.protocols.PlainSynchronous(self.alpha)
    ...         return plain.plan(topology, schedule, 0 * deviation, seed)
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> float(Silent(0.5).plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0).std.values.max())
    0.0
    """

    alpha: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise InputError(f"Expected 0 <= alpha <= 1, got {self.alpha}.")

    @abstractmethod
    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        """The plan of all rounds of `schedule`.

        `deviation` [agents]: each agent's full-scale standard deviation (the paper's σ_i·C) per unit of
        `schedule.noise`.
        """

    def mixing(self) -> Floats:
        """[own estimate, received row]: the weights of the update rule."""
        return np.array([self.alpha, 1.0 - self.alpha])


def reduced(own: Floats, received: Floats, alpha: float) -> Floats:
    """The noise still to be added when (1-α) of a received row's noise already counts.

    With unequal budgets the difference can be negative; nothing is added then, and the accountant, which
    reads the plan, sees what that means.
    """
    # Eq. (5b): σ_i^j = √(σ_i² - (1-α)² σ_k²)
    variance: Floats = own**2 - (1.0 - alpha) ** 2 * received**2
    return np.sqrt(np.maximum(variance, 0.0))


def check_deviation(deviation: Floats, agents: int) -> Floats:
    deviation = np.asarray(deviation, float)
    if deviation.shape != (agents,):
        raise InputError(f"Expected one noise deviation per agent ({agents}), got shape {deviation.shape}.")
    if not np.isfinite(deviation).all() or (deviation < 0).any():
        raise InputError("Expected every noise deviation to be finite and >= 0.")
    return deviation

"""The interface of protocols, and the noise reduction that the paper's protocols share. No data, no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from topdp.base.array_types import Floats, Ints
from topdp.errors import InputError
from topdp.plan import PerRound, Plan
from topdp.plan.schedules import Schedule
from topdp.topology import Topology

Rematch = Literal["after-new-row", "next-round"]
"""When two agents may be partners again.

`after-new-row`: after both have made a row without the other. An agent that sits out keeps its estimate, and
with it its last partner. `next-round`: after one round, the reading of Algorithm 2 that counts iterations. An
agent that sat out for this round then shows its partner the very noise that it received from this partner.
"""


@dataclass(frozen=True)
class Protocol(ABC):
    """A rule by which agents mix, perturb and send their estimates.

    With the same seed, all protocols make the same random choices (such as the neighbours that agents mix
    with), so that methods are compared under equal conditions.

    A user's own protocol writes a plan from a graph and a schedule:

    >>> import numpy as np
    >>> import topdp
    >>> class Silent(topdp.protocols.Protocol):
    ...     def plan(self, topology, schedule, deviation, seed):
    ...         plain = topdp.protocols.PlainSynchronous(0.5)
    ...         return plain.plan(topology, schedule, 0 * deviation, seed)
    >>> schedule = topdp.plan.Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5))
    >>> float(Silent().plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0).std.values.max())
    0.0
    """

    # The name of the protocol in plans (`Plan.protocol`).
    name: ClassVar[str] = "custom"
    # Whether published analyses cover the protocol. Then every estimate of release 0 must carry its owner's
    # full-scale noise.
    claimed: ClassVar[bool] = False
    # Whether agents exchange estimates with one partner at a time. They can then also find partners during a
    # run.
    pairwise: ClassVar[bool] = False

    @abstractmethod
    def plan(self, topology: Topology, schedule: Schedule, deviation: Floats, seed: int) -> Plan:
        """Return the plan of all rounds of `schedule`.

        `deviation` [agents]: each agent's full-scale standard deviation (the paper's σ_i·C) per unit of
        `schedule.noise`.
        """

    def _with_own_draws(self, schedule: Schedule, owner: Ints, **parts: Any) -> Plan:
        """Return the plan of rows of `owner` [m] in which each row has one draw, known by its owner alone.

        `parts`: the other fields of the plan.
        """
        return Plan(
            agents=int(owner.max()) + 1,
            owner=owner,
            rate=schedule.rate,
            draw=PerRound.same(np.arange(len(owner))[:, None], schedule.releases),
            scale=schedule.noise,
            known_by=owner[:, None],
            protocol=self.name,
            **parts,
        )


def protocol_of(plan: Plan) -> type[Protocol]:
    """Return the class of the protocol in this package that wrote `plan`.

    Return `Protocol` if no protocol of this package did, or if the rows of an optimiser were added later.

    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(2, 0.1), noise=np.full(2, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> protocol_of(plan).__name__
    'TopSynchronous'
    """
    from topdp import protocols

    kinds = (getattr(protocols, name) for name in protocols.__all__)
    return next((kind for kind in kinds if getattr(kind, "name", None) == plan.protocol), Protocol)


@dataclass(frozen=True)
class UpdateRule(Protocol):
    """The paper's rule: an agent mixes its own estimate, with weight `alpha`, and one received row (Eq. 3).

    >>> from topdp.protocols import PlainSynchronous
    >>> PlainSynchronous(0.25).mixing().tolist()
    [0.25, 0.75]
    """

    alpha: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise InputError(f"Expected 0 <= alpha <= 1, got {self.alpha}.")

    def mixing(self) -> Floats:
        """Return the weights of the update rule: of the agent's own estimate, then of the received row."""
        return np.array([self.alpha, 1.0 - self.alpha])


DEFAULT_OWN_SHARE = 1.0
# By default, received noise counts at most as much as the agent's own noise. With smaller shares, the average
# of the estimates had more noise at equal ε, and never clearly less (`view`, `adaptive` and `worst-case`
# answers; Dirichlet shards; different budgets).


def reduced(own: Floats, received: Floats, alpha: float, own_share: float = DEFAULT_OWN_SHARE) -> Floats:
    """Return the standard deviation of the noise to add if a received row, mixed with weight 1-α, contains
    noise.

    `own`: the standard deviation σ_i of the agent's full-scale noise; `received`: the standard deviation of
    the noise in the received row. The paper states the formula for one common σ. If agents have different σ,
    the received row may be so noisy that the formula gives 0. An observer that knows the received noise could
    then read the gradient. So the result is at least `own_share` times √(1 - (1-α)²)·σ_i, which is the result
    for equal noise. If all agents have equal noise, this lower limit changes nothing.

    **Guarantees.** The result is above 0 if `own`, `alpha` and `own_share` are above 0, so no row is sent
    without fresh noise.

    >>> import numpy as np
    >>> own, received = np.ones(3), np.array([0.5, 1.0, 2.0])
    >>> reduced(own, received, alpha=0.5).round(3).tolist()
    [0.968, 0.866, 0.866]
    >>> reduced(own, received, alpha=0.5, own_share=0.5).round(3).tolist()
    [0.968, 0.866, 0.433]
    """
    # Eq. (5b): σ_i^j = √(σ_i² - (1-α)² σ_k²)
    variance = own**2 - (1.0 - alpha) ** 2 * received**2
    least = own_share**2 * (own**2 - (1.0 - alpha) ** 2 * own**2)
    return np.asarray(np.sqrt(np.maximum(variance, least)))


def check_own_share(own_share: float) -> None:
    """Raise InputError unless `own_share` is from 0 to 1."""
    if not 0 <= own_share <= 1:
        raise InputError(f"Expected 0 <= own_share <= 1, got {own_share}.")


def check_deviation(deviation: Floats, agents: int) -> Floats:
    """Return `deviation` as an array [agents]; raise InputError unless all numbers are finite and >= 0."""
    deviation = np.asarray(deviation, float)
    if deviation.shape != (agents,):
        raise InputError(f"Expected one noise deviation per agent ({agents}), got shape {deviation.shape}.")
    if not (valid := np.isfinite(deviation) & (deviation >= 0)).all():
        raise InputError(f"Expected finite noise deviations >= 0, got {deviation[~valid][0]:g}.")
    return deviation

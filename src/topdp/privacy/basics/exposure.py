"""How one record takes part: how much it can change, and in which rounds. Shared by all accountants.

An `Exposure` says, for every agent, the largest change that one of its records makes to the agent's *mean
gradient* and the rounds in which the record is used. Not for batches themselves: those are drawn elsewhere
and must keep what is promised here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from topdp.plan import Plan
from topdp.plan.arrays import Floats, Ints
from topdp.privacy.basics.errors import PrivacyError, Refused, expect_count

ADJACENCIES = ("add-remove", "replace-one")


@dataclass(frozen=True)
class EveryRound:
    """Full batches: every record is used in every round."""

    def __str__(self) -> str:
        return "in every round"


@dataclass(frozen=True)
class Cyclic:
    """Fixed batches in a cycle: a record is used in rounds s, s+p, s+2p, ... for one s, and p = `period`.

    The position in the cycle is the number of the round modulo p, also for an agent that sits rounds out.
    Which s a record has is not secret: the accountants take the worst.
    """

    period: int

    def __post_init__(self) -> None:
        expect_count("period", self.period)

    def __str__(self) -> str:
        return f"once in {self.period} rounds"


@dataclass(frozen=True)
class PoissonSampling:
    """Every round uses every record with probability `rate`, independently, and keeps secret which."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise PrivacyError(f"Expected 0 < sampling rate={self.rate} <= 1.")

    def __str__(self) -> str:
        return f"in each round with probability {self.rate:.4g}"


Participation: TypeAlias = EveryRound | Cyclic | PoissonSampling


@dataclass(frozen=True, eq=False)
class Exposure:
    """What one record of each agent can change, and when.

    `sensitivity` [agents]: the largest change in norm of the agent's mean gradient: clip/b under add-remove,
    2·clip/b under replace-one, b the records averaged over. `participation`: one for each agent.

    **Guarantees.** The accountants answer for two data sets that differ in one record of one agent, under
    `adjacency`; a row made with step λ changes by at most λ·sensitivity in every round that uses the record.
    That gradients are clipped to this sensitivity is the caller's promise.
    """

    sensitivity: Floats
    participation: tuple[Participation, ...]
    adjacency: str = "add-remove"

    def __post_init__(self) -> None:
        if self.sensitivity.ndim != 1 or len(self.sensitivity) != len(self.participation):
            raise PrivacyError(
                f"Expected one sensitivity and one participation per agent, got sensitivity of shape "
                f"{self.sensitivity.shape} and {len(self.participation)} participations."
            )
        for value in self.sensitivity:
            if not (math.isfinite(value) and value > 0):
                raise PrivacyError(f"Expected sensitivity={value} to be finite and > 0.")
        if self.adjacency not in ADJACENCIES:
            raise PrivacyError(f"Expected adjacency to be one of {ADJACENCIES}, got {self.adjacency!r}.")

    @property
    def agents(self) -> int:
        return len(self.sensitivity)

    @property
    def sampled(self) -> bool:
        """Whether some agent draws Poisson batches."""
        return any(isinstance(how, PoissonSampling) for how in self.participation)

    def periods(self) -> Ints:
        """[agents]: a record that is used in round r is used in r + period; 1 for every round."""
        return np.array([how.period if isinstance(how, Cyclic) else 1 for how in self.participation])


def exposure(
    agents: int,
    sensitivity: ArrayLike,
    participation: Participation | Sequence[Participation] | None = None,
    adjacency: str = "add-remove",
) -> Exposure:
    """An `Exposure` from numbers that are common to all agents or given one by one; default `EveryRound()`.

    >>> exposure(3, 0.5, Cyclic(20)).periods().tolist()
    [20, 20, 20]
    """
    try:
        values = np.asarray(sensitivity, dtype=np.float64)
    except (TypeError, ValueError):
        raise PrivacyError(f"Expected sensitivity={sensitivity!r} to be numbers.") from None
    values = np.full(agents, values) if values.ndim == 0 else values.copy()
    if len(values) != agents:
        raise PrivacyError(f"Expected one sensitivity or one for each of {agents} agents, got {len(values)}.")
    values.setflags(write=False)
    how = EveryRound() if participation is None else participation
    each = tuple(how) if isinstance(how, Sequence) else (how,) * agents
    return Exposure(values, each, adjacency)


def check(plan: Plan, exposure: Exposure) -> None:
    """Refuses what no accountant can answer for: pruned plans, and plans of other agents."""
    if plan.pruned:
        raise Refused("A pruned plan lacks rows that are sent; account the plan it was pruned from.")
    if plan.agents != exposure.agents:
        raise PrivacyError(
            f"Expected an exposure for the plan's {plan.agents} agents, got one for {exposure.agents}."
        )

"""The influence of one record on a plan: how much it changes, and in which rounds. All accountants use it.

An `Exposure` states for every agent the largest change that one record can make to the agent's *mean
gradient*, and the batches that use the record. The code that chooses batches must not exceed either.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from topdp.base.array_types import Floats, Ints
from topdp.plan import Capability, Plan, unsupported
from topdp.plan.batches import Adjacency, Batches, Full, expect_adjacency
from topdp.privacy.basics.refusals import PrivacyError, expect_supported

# The capabilities that an accountant supports if it counts every row as seen. In such an account, fresh noise
# hides the gradient in a row, whatever function of earlier rows both are added to.
COVERED_NEEDS = frozenset(
    {Capability.ADAPTIVE_STEPS, Capability.ROBUST_MIXING, Capability.ROUNDED_ROWS, Capability.SHARED_DRAWS}
)


@dataclass(frozen=True, eq=False)
class Exposure:
    """How much one record of each agent can change the agent's mean gradient, and in which rounds.

    `sensitivity` [agents]: the largest norm of this change. It is clip/b under add-remove and 2·clip/b under
    replace-one, where b is the number by which the agent divides a sum of gradients. `batches`: the batches
    of each agent, which state in which rounds a record is used.

    **Guarantees.** The accounts hold for two data sets that differ in one record of one agent, under
    `adjacency`. A row made with step λ then changes by at most λ·sensitivity in every round that uses the
    record. The caller promises that gradients are clipped to this sensitivity.

    >>> import numpy as np
    >>> from topdp.plan import Full
    >>> Exposure(np.array([0.5]), (Full(2000),)).sampled
    False
    """

    sensitivity: Floats
    batches: tuple[Batches, ...]
    adjacency: Adjacency = "add-remove"

    def __post_init__(self) -> None:
        if self.sensitivity.ndim != 1 or len(self.sensitivity) != len(self.batches):
            raise PrivacyError(
                f"Expected one sensitivity and one element of batches per agent, got sensitivity of shape "
                f"{self.sensitivity.shape} and {len(self.batches)} batches."
            )
        for value in self.sensitivity:
            if not (math.isfinite(value) and value > 0):
                raise PrivacyError(f"Expected a finite sensitivity > 0, got {value}.")
        expect_adjacency(self.adjacency)

    @property
    def agents(self) -> int:
        return len(self.sensitivity)

    @property
    def sampled(self) -> bool:
        """Whether the batches of some agent are drawn at random."""
        return any(batches.sampled for batches in self.batches)

    @property
    def same_participation(self) -> bool:
        """Whether all agents use a record equally often, so that they differ in sensitivity only."""
        return len({batches.participation for batches in self.batches}) == 1

    def periods(self) -> Ints:
        """Return for each agent the number of rounds from one use of a record to its next use [agents]."""
        return np.array([batches.period for batches in self.batches])


def exposure(
    agents: int,
    sensitivity: ArrayLike,
    batches: Batches | Sequence[Batches] | None = None,
    adjacency: Adjacency = "add-remove",
) -> Exposure:
    """Return the `Exposure` of `agents` agents.

    `sensitivity` and `batches` are one value for all agents, or one value for each agent. The default is full
    batches.

    >>> from topdp.plan import Cycle
    >>> exposure(3, 0.5, Cycle(records=2000, size=100)).periods().tolist()
    [20, 20, 20]
    """
    try:
        values = np.asarray(sensitivity, dtype=np.float64)
    except (TypeError, ValueError):
        raise PrivacyError(f"Expected sensitivity as numbers, got {sensitivity!r}.") from None
    values = np.full(agents, values) if values.ndim == 0 else values.copy()
    if len(values) != agents:
        raise PrivacyError(f"Expected one sensitivity or one for each of {agents} agents, got {len(values)}.")
    values.setflags(write=False)
    default = Full(1) if batches is None else batches
    each = tuple(default) if isinstance(default, Sequence) else (default,) * agents
    return Exposure(values, each, adjacency)


def uncovered_reason(plan: Plan, covered: Collection[Capability]) -> str | None:
    """Return None, or the reason why an accountant that supports only `covered` refuses `plan`."""
    if Capability.PRUNED_ROWS in plan.needs:
        return "A pruned plan lacks rows that are sent. Use the plan from which it was pruned."
    need = unsupported(plan, covered)
    return need and f"Not covered: {need}. No analysis is known; use another guarantee or method."


def check(plan: Plan, exposure: Exposure) -> None:
    """Raise PrivacyError if no accountant supports `plan`, or `exposure` is for another number of agents."""
    expect_supported(uncovered_reason(plan, COVERED_NEEDS))
    if plan.agents != exposure.agents:
        raise PrivacyError(
            f"Expected an exposure for the plan's {plan.agents} agents, got one for {exposure.agents}."
        )

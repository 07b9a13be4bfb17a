"""Whether steps survive where rows are kept in fewer digits: said before a run, since nothing fails when not.

Noise rounds numbers up and down by chance, and so keeps small steps on average. Where it is smaller than half
the distance of neighbouring numbers, a step below that is lost in every round. Nothing here touches a run.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from torch import Tensor

from topdp.plan import Plan

SIGNIFICANT_BITS = {"bfloat16": 8}
MAX_SAMPLED_RELEASES = 100  # releases


def distance(value: float, rounded: str) -> float:
    """Return the distance between `value` and the next number of the type.

    >>> distance(1000.0, "bfloat16")
    4.0
    """
    return float(2.0 ** (math.floor(math.log2(value)) - SIGNIFICANT_BITS[rounded] + 1)) if value else 0.0


def usual_noise(plan: Plan) -> float:
    """The deviation of the least noised row that carries a gradient, in the middle of some releases."""
    deviations = []
    kinds = np.asarray(plan.carries.values.any(axis=1))
    steps = np.flatnonzero(kinds[plan.carries.which])
    for r in steps[:: max(1, len(steps) // MAX_SAMPLED_RELEASES)].tolist():
        this = plan[r]
        carries = this.exists & (this.step != 0)
        if carries.any():
            entering = np.where(this.draw >= 0, this.std, 0.0)[carries]
            deviations.append(float(np.sqrt((entering**2).sum(axis=1)).min()))
    return float(np.median(deviations)) if deviations else 0.0


def warn_of_lost_steps(plan: Plan, start: Tensor) -> None:
    """Warn if rounding would lose small steps of parameters of the size of the public start."""
    if plan.rounded is None:
        return
    size = float(start.double().square().mean().sqrt())
    half, noise = distance(size, plan.rounded) / 2, usual_noise(plan)
    if noise < half:
        warnings.warn(
            f"Rows are kept in {plan.rounded}, in which parameters of the usual size, {size:.2g}, are "
            f"{2 * half:.2g} apart, and noise has a deviation of {noise:.2g}: steps below {half:.2g} are "
            "lost. Use train.rows = model, or larger steps.",
            stacklevel=2,
        )

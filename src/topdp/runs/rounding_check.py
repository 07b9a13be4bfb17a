"""Warn before a run if rounding rows to fewer digits would lose the optimiser's small steps.

Noise makes numbers round up or down at random, so that small steps survive on average. If the noise is
smaller than half the distance between neighbouring numbers, a step below half that distance is lost in every
round, and nothing fails. This module only warns; it does not change the run.
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
    """Return the distance between `value` and the next number of the type `rounded`.

    >>> distance(1000.0, "bfloat16")
    4.0
    """
    return float(2.0 ** (math.floor(math.log2(value)) - SIGNIFICANT_BITS[rounded] + 1)) if value else 0.0


def usual_noise(plan: Plan) -> float:
    """Return the usual standard deviation of the noise in a row that carries a gradient, or 0 without one.

    That is the smallest deviation of such rows in a release, and the median of that over some releases.
    """
    deviations = []
    kinds = np.asarray(plan.carries.values.any(axis=1))
    steps = np.flatnonzero(kinds[plan.carries.which])
    for r in steps[:: max(1, len(steps) // MAX_SAMPLED_RELEASES)].tolist():
        release = plan[r]
        carries = release.exists & (release.step != 0)
        if carries.any():
            entering = np.where(release.draw >= 0, release.std, 0.0)[carries]
            deviations.append(float(np.sqrt((entering**2).sum(axis=1)).min()))
    return float(np.median(deviations)) if deviations else 0.0


def warn_of_lost_steps(plan: Plan, start: Tensor) -> None:
    """Warn if rounding would lose small steps of parameters that are as large as those of `start`."""
    if plan.rounded is None:
        return
    size = float(start.double().square().mean().sqrt())
    smallest_step, noise = distance(size, plan.rounded) / 2, usual_noise(plan)
    if noise < smallest_step:
        warnings.warn(
            f"Rounding loses steps below {smallest_step:.2g}: rows are stored in {plan.rounded}, in which "
            f"neighbouring numbers near the usual size of a parameter, {size:.2g}, are "
            f"{2 * smallest_step:.2g} apart, and the noise has a deviation of only {noise:.2g}. Use "
            "train.rows = model, or larger steps.",
            stacklevel=2,
        )

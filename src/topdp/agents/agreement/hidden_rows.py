"""Whether a guarantee relies on hidden rows, and up to which norm such rows are exact in float64.

The guarantee, the plan, the size of the coalition and the rules on silent neighbours determine whether it
does, and no record does. It is therefore checked when a manifest is made. `runtime/row_guards` contains the
checks and limits of agents for such rows.

**Guarantees.** Numbers up to `max_exact_norm` that are multiples of the grid step of their row are exact in
float64: sending such a row does not round it.
"""

from __future__ import annotations

import math

import numpy as np

from topdp.errors import InputError
from topdp.plan import Plan
from topdp.privacy.answers import guarantee_kind

GRID_STEP_PER_STD = 2.0**-20  # the largest grid step; all numbers of a row are multiples of its step
EXACT_FLOAT64_INTEGERS = 2.0**53  # integers below it are exact in float64
MIN_STEPS_PER_STD = 8.0  # grid steps per standard deviation: sums over grid points then equal integrals


def relies_on_hidden_rows(guarantee: str, plan: Plan, coalition: int, follows_plan: bool) -> bool:
    """Return whether charges rely on rows that some agent does not see.

    `coalition`: number of agents that charges count as colluders. `follows_plan`: whether agents wait for
    silent neighbours; if not, charges do not rely on hidden rows.
    """
    return follows_plan and guarantee_kind(guarantee).hides_rows(plan, coalition)


def grid_step(std: float) -> float:
    """Return the largest power of two <= `GRID_STEP_PER_STD` · `std`. Dividing by it is exact.

    >>> grid_step(1.0) == 2.0**-20 == grid_step(1.9)
    True
    """
    return 2.0 ** math.floor(math.log2(GRID_STEP_PER_STD * std))


def smallest_noise_std(plan: Plan) -> float:
    """Return the smallest standard deviation of a draw in a row; infinite if there is no noise."""
    stds = (np.abs(plan[r].std[plan.exists[r]]) for r in range(plan.releases))
    return min((float(std[std > 0].min()) for std in stds if (std > 0).any()), default=math.inf)


def max_exact_norm(plan: Plan) -> float:
    """Return the largest norm up to which float64 represents rows as multiples of their grid steps."""
    smallest = smallest_noise_std(plan)
    return EXACT_FLOAT64_INTEGERS * grid_step(smallest) if math.isfinite(smallest) else math.inf


def _coarsest_step(plan: Plan) -> float:
    """Return the coarsest grid step of all rows, multiplied by the largest weight if that exceeds 1."""
    largest = 0.0
    for r in range(plan.releases):
        std = np.abs(plan[r].std[plan.exists[r]])
        smallest = np.where(std > 0, std, np.inf).min(axis=1, initial=np.inf)
        largest = max(largest, float(smallest[np.isfinite(smallest)].max(initial=0.0)))
    weight = max(1.0, float(np.abs(plan.weight.values).max(initial=0.0)))
    return grid_step(largest) * weight if largest else 0.0


def expect_steps_below_noise(plan: Plan) -> None:
    """Raise InputError if noise is not much larger than the grid steps of other rows.

    With such small noise, the rounding of those rows could reveal what the noise hides.
    """
    smallest, needed = smallest_noise_std(plan), MIN_STEPS_PER_STD * _coarsest_step(plan)
    if not needed <= smallest:
        raise InputError(
            f"Expected noise of at least {needed:.3g} in every row, {MIN_STEPS_PER_STD:g} grid steps of the "
            f"noisiest row, got {smallest:.3g}: privacy.guarantee relies on rows that some agents do not "
            "see, and so little noise would not hide their grid steps. Choose budgets, and a decay of the "
            'noise, that differ by less than a factor of 100,000, or privacy.guarantee="worst-case".'
        )

"""Whether a guarantee counts on rows that some agents do not see, and how long those may be to be exact.

Follows from the plan alone, so a manifest can be made for it. What agents do about such rows is in
`life.hidden`.

**Guarantees.** Numbers up to `largest_exact` that are multiples of the step of their row are numbers of
float64: such a row is not rounded on its way.
"""

from __future__ import annotations

import math

import numpy as np

from topdp.errors import InputError
from topdp.plan import Plan
from topdp.privacy.answers import guarantee_kind

GRID_STEP_PER_STD = (
    2.0**-20
)  # of the deviation of a row's noise, at most: all its numbers are multiples of it
EXACT_FLOAT64_INTEGERS = 2.0**53  # numbers of float64 below it are exact
MIN_STEPS_PER_STD = 8.0  # steps of every row in every deviation: sums over all steps are integrals then


def relies_on_hidden_rows(guarantee: str, plan: Plan, coalition: int, follows_plan: bool) -> bool:
    """Whether what is charged counts on rows that somebody does not see."""
    return follows_plan and guarantee_kind(guarantee).hides_rows(plan, coalition)


def grid_step(deviation: float) -> float:
    """The power of two at or below `GRID` · `deviation`: dividing by it is exact.

    >>> step_of(1.0) == 2.0**-20 == step_of(1.9)
    True
    """
    return 2.0 ** math.floor(math.log2(GRID_STEP_PER_STD * deviation))


def smallest_noise_std(plan: Plan) -> float:
    """Of all draws of all rows; infinite where there are none."""
    found = (np.abs(plan[r].std[plan.exists[r]]) for r in range(plan.releases))
    return min((float(std[std > 0].min()) for std in found if (std > 0).any()), default=math.inf)


def max_exact_norm(plan: Plan) -> float:
    """The longest rows that float64 holds as multiples of their steps."""
    least = smallest_noise_std(plan)
    return EXACT_FLOAT64_INTEGERS * grid_step(least) if math.isfinite(least) else math.inf


def _coarsest_step(plan: Plan) -> float:
    """The longest step of a row, as others get it: times the largest weight where that is above 1."""
    longest = 0.0
    for r in range(plan.releases):
        std = np.abs(plan[r].std[plan.exists[r]])
        least = np.where(std > 0, std, np.inf).min(axis=1, initial=np.inf)
        longest = max(longest, float(least[np.isfinite(least)].max(initial=0.0)))
    weight = max(1.0, float(np.abs(plan.weight.values).max(initial=0.0)))
    return grid_step(longest) * weight if longest else 0.0


def expect_steps_below_noise(plan: Plan) -> None:
    """Refuses noise as small as the steps of other rows: what hides behind such a row shows between them."""
    least, longest = smallest_noise_std(plan), _coarsest_step(plan)
    if not MIN_STEPS_PER_STD * longest <= least:
        raise InputError(
            f"Expected noise of at least {MIN_STEPS_PER_STD * longest:.3g} in every row, "
            f"{MIN_STEPS_PER_STD:g} steps of the row with "
            f"most, got {least:.3g}: privacy.guarantee counts on rows that some do not see, and next to so "
            "little noise their steps would show. Take budgets, and steps of noise along the rounds, that "
            'differ by less than a factor of 100,000, or "worst-case".'
        )

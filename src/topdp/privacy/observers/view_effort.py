"""How much work a view is, before it is begun: a long plan is refused by name instead of never answered."""

from __future__ import annotations

import math

from topdp.plan import Plan
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import LONG_PLAN_RELEASES

OPERATIONS_PER_MINUTE = 7.5e11
"""Multiplications and additions on one core, more or less."""

MAX_UNASKED_WORK = 2 * OPERATIONS_PER_MINUTE
"""What is done unasked: about 1,800 releases among 30 agents."""

OPERATIONS_PER_ROUND = 5e6
"""What a round of one observer takes however small it is, in the same unit."""

USUAL_FOLLOWED_ROUNDS, MAX_FOLLOWED_ROUNDS = 256, 2048
"""Rounds for which a change has to be followed in a long plan: on the paper's graphs, and at most unasked."""

VIEWS_PER_CURVE = 4.0
"""The work of a spending curve, which has about 48 places, over that of one view of the same plan."""

READER_FOLLOWED_ROUNDS = 14
"""Rounds for which `closely` follows a change, more or less."""


def view_work(
    plan: Plan, observers: int | None = None, public: Public = Public.NOTHING, owners: int | None = None
) -> float:
    """Roughly, the operations of `view`; default every agent alone about all others."""
    n, R = plan.agents, plan.releases
    last = plan.readers[R // 2]
    seen = max(1.0, float((last >= 0).sum()) / n)  # rows an observer reads in a round
    if public is not Public.NOTHING:
        seen += n
    followed = R if R <= LONG_PLAN_RELEASES else min(R, USUAL_FOLLOWED_ROUNDS)
    shifts = plan.rows * (2 + seen) * R * followed
    each = (n - 1 if owners is None else owners) * (
        shifts + 2 / 3 * seen * R * followed**2
    ) + R * OPERATIONS_PER_ROUND
    return (n if observers is None else observers) * each


def reader_work(plan: Plan, observers: int | None = None) -> float:
    """Roughly, the operations of `closely`, in the same unit; default every agent alone."""
    n = plan.agents
    hidden = 0.4 * (plan.rows - n)  # of which something is made later
    seen = n + 1 + (plan.rows - n) / n
    each = 2 * hidden * seen * (hidden + READER_FOLLOWED_ROUNDS * (n - 1)) + OPERATIONS_PER_ROUND / 25
    return 2.5 * each * plan.releases * (n if observers is None else observers)


def expect_affordable(
    plan: Plan,
    allow_slow: bool,
    observers: int | None = None,
    public: Public = Public.NOTHING,
    owners: int | None = None,
) -> None:
    """Refuses views that would take far too long, unless slow answers are allowed."""
    work = view_work(plan, observers, public, owners)
    if work > MAX_UNASKED_WORK and not allow_slow:
        growth = 1 if plan.releases > LONG_PLAN_RELEASES else 3
        fits = math.floor(plan.releases * (MAX_UNASKED_WORK / work) ** (1 / growth))
        what = "view" if public is Public.NOTHING else "adaptive answer"
        raise NotCovered(
            f"The {what} of {plan.releases} releases among {plan.agents} agents takes about "
            f"{work / OPERATIONS_PER_MINUTE:.0f} minutes on one core. Set privacy.allow_slow=true to "
            f"have it anyway, take at most about {fits - 1} rounds, or choose guarantee='worst-case'."
        )


def curve_seconds(plan: Plan, observers: int, public: Public) -> float:
    """Roughly, the seconds that a spending curve by views takes on one core."""
    work = view_work(plan, observers, public, owners=1)
    return 60 * VIEWS_PER_CURVE * work / OPERATIONS_PER_MINUTE

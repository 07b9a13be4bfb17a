"""How much work a view is, before it is begun: a long plan is refused by name instead of never answered."""

from __future__ import annotations

import math

from topdp.plan import Plan
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import LONG

A_MINUTE = 7.5e11
"""Multiplications and additions on one core, more or less."""

LIMIT = 2 * A_MINUTE
"""What is done unasked: about 1,800 releases among 30 agents."""

A_ROUND = 5e6
"""What a round of one observer takes however small it is, in the same unit."""

USUAL, WIDEST = 256, 2048
"""Rounds for which a change has to be followed in a long plan: on the paper's graphs, and at most unasked."""


FOLLOWED = 14
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
    followed = R if R <= LONG else min(R, USUAL)
    shifts = plan.rows * (2 + seen) * R * followed
    each = (n - 1 if owners is None else owners) * (shifts + 2 / 3 * seen * R * followed**2) + R * A_ROUND
    return (n if observers is None else observers) * each


def look_work(plan: Plan, observers: int | None = None) -> float:
    """Roughly, the operations of `closely`, in the same unit; default every agent alone."""
    n = plan.agents
    hidden = 0.4 * (plan.rows - n)  # of which something is made later
    seen = n + 1 + (plan.rows - n) / n
    each = 2 * hidden * seen * (hidden + FOLLOWED * (n - 1)) + A_ROUND / 25
    return 2.5 * each * plan.releases * (n if observers is None else observers)


def expect_bearable(
    plan: Plan,
    patient: bool,
    observers: int | None = None,
    public: Public = Public.NOTHING,
    owners: int | None = None,
) -> None:
    """Refuses views that would take far too long, unless their user is patient."""
    work = view_work(plan, observers, public, owners)
    if work > LIMIT and not patient:
        growth = 1 if plan.releases > LONG else 3
        fits = math.floor(plan.releases * (LIMIT / work) ** (1 / growth))
        what = "view" if public is Public.NOTHING else "adaptive answer"
        raise NotCovered(
            f"The {what} of {plan.releases} releases among {plan.agents} agents takes about "
            f"{work / A_MINUTE:.0f} minutes on one core. Set privacy.allow_slow=true to have it anyway, take "
            f"at most about {fits - 1} rounds, or choose guarantee='worst-case'."
        )

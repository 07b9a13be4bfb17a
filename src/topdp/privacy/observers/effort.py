"""How much work a view is, before it is begun: a long plan is refused by name instead of never answered."""

from __future__ import annotations

import math

from topdp.plan import Plan
from topdp.privacy.basics.checks import NotCovered
from topdp.privacy.observers.view import LONG

A_MINUTE = 7.5e11
"""Multiplications and additions on one core, more or less."""

LIMIT = 2 * A_MINUTE
"""What is done unasked: about 1,800 releases among 30 agents."""

A_ROUND = 5e6
"""What a round of one observer takes however small it is, in the same unit."""

USUAL, WIDEST = 256, 2048
"""Rounds for which a change has to be followed in a long plan: on the paper's graphs, and at most unasked."""


def view_work(plan: Plan) -> float:
    """Roughly, the operations of the view of every agent alone on every other (`view`, `gram`)."""
    n, R = plan.agents, plan.releases
    last = plan.readers[R // 2]
    seen = max(1.0, float((last >= 0).sum()) / n)  # rows an observer reads in a round
    followed = R if R <= LONG else min(R, USUAL)
    shifts = plan.rows * (2 + seen) * R * followed
    return n * (n - 1) * (shifts + 2 / 3 * seen * R * followed**2) + n * R * A_ROUND


def expect_bearable(plan: Plan, patient: bool) -> None:
    """Refuses a view that would take far too long, unless its user is patient."""
    work = view_work(plan)
    if work > LIMIT and not patient:
        growth = 1 if plan.releases > LONG else 3
        fits = math.floor(plan.releases * (LIMIT / work) ** (1 / growth))
        raise NotCovered(
            f"The view of {plan.releases} releases among {plan.agents} agents takes about "
            f"{work / A_MINUTE:.0f} minutes on one core. Set privacy.patient=true to have it anyway, take at "
            f"most about {fits - 1} rounds, or choose guarantee='worst-case'."
        )

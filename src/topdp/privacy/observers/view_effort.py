"""Estimates of the work of a view, by which views that take too long are refused before they begin."""

from __future__ import annotations

import math

from topdp.plan import Plan
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.gram_matrix import LONG_PLAN_RELEASES
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.query import Query

# Estimated multiplications and additions per minute on one core.
OPERATIONS_PER_MINUTE = 7.5e11

# The most operations of an answer unless slow answers are allowed: about 1,800 releases among 30 agents.
MAX_UNASKED_WORK = 2 * OPERATIONS_PER_MINUTE

# The least number of operations for one observer in one round.
OPERATIONS_PER_ROUND = 5e6

# The number of rounds for which a change is followed in a long plan: usually, on the paper's graphs; and at
# most, unless slow answers are allowed.
USUAL_FOLLOWED_ROUNDS, MAX_FOLLOWED_ROUNDS = 256, 2048

# The work of a spending curve, which has about 48 checkpoints, divided by the work of one view of the plan.
VIEWS_PER_CURVE = 4.0

# The estimated number of rounds for which `_estimate_readers` follows a change.
READER_FOLLOWED_ROUNDS = 14


def view_work(
    plan: Plan, observers: int | None = None, public: Public = Public.NOTHING, owners: int | None = None
) -> float:
    """Return the estimated number of operations that `view` needs.

    `observers`, `owners`: how many there are of each; by default every agent is an observer of all others.
    """
    n, R = plan.agents, plan.releases
    last = plan.readers[R // 2]
    seen = max(1.0, float((last >= 0).sum()) / n)  # the number of rows that an observer reads in a round
    if public is not Public.NOTHING:
        seen += n
    followed = R if R <= LONG_PLAN_RELEASES else min(R, USUAL_FOLLOWED_ROUNDS)
    shifts = plan.rows * (2 + seen) * R * followed
    each = (n - 1 if owners is None else owners) * (
        shifts + 2 / 3 * seen * R * followed**2
    ) + R * OPERATIONS_PER_ROUND
    return (n if observers is None else observers) * each


def reader_work(plan: Plan, observers: int | None = None) -> float:
    """Return the estimated number of operations of `_estimate_readers`.

    `observers`: how many there are; by default every agent is one.
    """
    n = plan.agents
    hidden = 0.4 * (plan.rows - n)  # the number of hidden rows that enter later rows
    seen = n + 1 + (plan.rows - n) / n
    each = 2 * hidden * seen * (hidden + READER_FOLLOWED_ROUNDS * (n - 1)) + OPERATIONS_PER_ROUND / 25
    return 2.5 * each * plan.releases * (n if observers is None else observers)


def expect_affordable(
    plan: Plan,
    query: Query,
    observers: int | None = None,
    public: Public = Public.NOTHING,
    owners: int | None = None,
) -> None:
    """Raise NotCovered if the view would take too long, unless `query` allows slow answers.

    `observers`, `owners`: how many there are of each, as in `view_work`.
    """
    work = view_work(plan, observers, public, owners)
    if work > MAX_UNASKED_WORK and not query.allow_slow:
        growth = 1 if plan.releases > LONG_PLAN_RELEASES else 3
        fits = math.floor(plan.releases * (MAX_UNASKED_WORK / work) ** (1 / growth))
        what = "view" if public is Public.NOTHING else "adaptive answer"
        raise NotCovered(
            f"The {what} of {plan.releases} releases among {plan.agents} agents takes about "
            f"{work / OPERATIONS_PER_MINUTE:.0f} minutes on one core. Set privacy.allow_slow=true to "
            f"compute it anyway, use at most about {fits - 1} rounds, or guarantee='worst-case'."
        )


def curve_seconds(plan: Plan, observers: int, public: Public) -> float:
    """Return the estimated seconds that a spending curve takes on one core, if it is computed by views."""
    work = view_work(plan, observers, public, owners=1)
    return 60 * VIEWS_PER_CURVE * work / OPERATIONS_PER_MINUTE

"""How long an answer takes, before it is begun: what comes at once is told apart from what takes a while."""

from __future__ import annotations

import math

from topdp.plan import Plan
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.adaptive import has_short_form
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import expect_viewable
from topdp.privacy.observers.view_effort import OPERATIONS_PER_MINUTE, MAX_UNASKED_WORK, reader_work, view_work

SOON = 1.0
"""Seconds that an answer may take to be given at once."""

BEARABLE = 6.0
"""Seconds of an answer of which there is a quick bound first, in half of them or less."""

ALWAYS = ("claimed", "worst_case")


def seconds(answer: str, plan: Plan, colluders: int, patient: bool) -> float:
    """Roughly, on one core; 0 where there is a short form, or a refusal.

    >>> import numpy as np
    >>> from topdp import protocols, topology
    >>> from topdp.plan import Schedule
    >>> steps = Schedule(rate=np.ones(150), noise=np.ones(150))
    >>> plan = protocols.TopSynchronous(0.5).plan(topology.ring(30), steps, np.ones(30), seed=0)
    >>> seconds("adaptive", plan, 1, False) > SOON, seconds("outsider", plan, 1, False) > SOON
    (True, False)
    """
    if answer in ALWAYS or plan.agents == 1:
        return 0.0
    if answer == "view":
        if not _viewable(plan):
            return 0.0  # refused
        work = view_work(plan)
    elif has_short_form(answer, plan, colluders) or plan.rounded is not None:
        return 0.0  # at once, or refused
    else:
        work = view_work(plan, 1, Public.LINKS) if answer == "outsider" else _adaptive(plan, colluders)
    return 0.0 if work > MAX_UNASKED_WORK and not patient else 60 * work / OPERATIONS_PER_MINUTE


def _adaptive(plan: Plan, colluders: int) -> float:
    """Where to look at everybody takes too long there is a bound by neighbourhoods, which takes a while."""
    return min(reader_work(plan, math.comb(plan.agents, colluders)), MAX_UNASKED_WORK)


def _viewable(plan: Plan) -> bool:
    try:
        expect_viewable(plan)
    except NotCovered:
        return False
    return True

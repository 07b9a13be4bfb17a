"""How long an answer takes, before it is begun: quick answers are told apart from slow ones."""

from __future__ import annotations

from topdp.plan import Plan
from topdp.privacy.answers import AnswerKind
from topdp.privacy.observers.view_effort import OPERATIONS_PER_MINUTE
from topdp.privacy.query import Query

INSTANT_SECONDS = 1.0
"""Seconds that an answer may take to be given at once."""

QUICK_BOUND_SECONDS = 6.0
"""Seconds of an answer for which there is a quick bound first, in half of them or less."""


def seconds(kind: AnswerKind, plan: Plan, query: Query) -> float:
    """Roughly, on one core; 0 where there is a short form, or a refusal.

    >>> import numpy as np
    >>> from topdp import protocols, topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy.answers import ADAPTIVE, OUTSIDER
    >>> steps = Schedule(rate=np.ones(150), noise=np.ones(150))
    >>> plan = protocols.TopSynchronous(0.5).plan(topology.ring(30), steps, np.ones(30), seed=0)
    >>> seconds(ADAPTIVE, plan, Query()) > INSTANT_SECONDS, seconds(OUTSIDER, plan, Query()) > INSTANT_SECONDS
    (True, False)
    """
    return 60 * kind.work(plan, query) / OPERATIONS_PER_MINUTE

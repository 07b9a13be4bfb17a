"""What observers see, remembered: a question that differs in ε, δ, clip or records alone is not asked twice.
What we would recommend is remembered, too.

Scaling all noise of a plan by s divides every μ by s, and μ is in proportion to the sensitivity of its owner.
So one look at unit noise and unit sensitivity answers for all budgets of one plan.

**Guarantees.** The key is the whole question: the digest of the plan at unit noise, when records are used,
how many collude, how patiently and how tightly was asked. Whatever is not such a multiple of a plan at unit
noise (agents with noise of their own, samples by chance) is looked at afresh. A remembered answer differs
from a fresh one by rounding, and by how closely its bound was found (a billionth).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from topdp.plan import Plan
from topdp.privacy.answers import AnswerKind
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.budget_excess import Writer
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.query import Observe, Query

Found = TypeVar("Found")

MAX_REMEMBERED_ANSWERS = 256
SCALING_TOLERANCE = 1e-12  # by which noise that was scaled may differ, for rounding


class ObserverCache:
    """The newest `MAX_REMEMBERED_ANSWERS` of what was found; several threads may ask."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Any] = OrderedDict()
        self._lock = Lock()
        self.found = 0  # questions that were answered from here

    def observe(self, write: Writer) -> Observe:
        """As `query.observe`, for plans of one writer."""

        def observed(
            kind: AnswerKind, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper"
        ) -> View:
            unit = _unit(write, plan) if kind.on_request and not exposure.sampled else None
            if unit is None:
                return kind.observe(plan, exposure, query, bound)
            plain = replace(exposure, sensitivity=np.ones(plan.agents))
            periods = tuple(exposure.periods().tolist())
            key = (kind.name, unit.digest(), periods, query.colluders, query.allow_slow, bound)
            seen = self.recalled(key, lambda: kind.observe(unit, plain, query, bound))
            factor = (exposure.sensitivity / float(plan.full_scale[0]))[:, None]
            upper = None if seen.upper is None else seen.upper * factor
            return replace(seen, lower=seen.lower * factor, upper=upper)

        return observed

    def recalled(self, key: tuple[object, ...], find: Callable[[], Found]) -> Found:
        """What was found for this key; `find` is asked where nothing is known."""
        with self._lock:
            if key in self._kept:
                self.found += 1
                self._kept.move_to_end(key)
                known: Found = self._kept[key]
                return known
        answer = find()  # not under the lock: it may take long
        with self._lock:
            self._kept[key] = answer
            while len(self._kept) > MAX_REMEMBERED_ANSWERS:
                self._kept.popitem(last=False)
        return answer


def _unit(write: Writer, plan: Plan) -> Plan | None:
    """The writer's plan at unit noise, where `plan` is a multiple of that; else None."""
    noise = plan.full_scale
    if not (noise[0] > 0 and np.ptp(noise) == 0):
        return None
    unit = write(np.ones(plan.agents))
    if unit.releases != plan.releases or unit.std.values.shape != plan.std.values.shape:
        return None
    scaled = replace(unit, std=plan.std)
    near = np.allclose(unit.std.values * noise[0], plan.std.values, rtol=SCALING_TOLERANCE, atol=0.0)
    return unit if near and scaled.digest() == plan.digest() else None

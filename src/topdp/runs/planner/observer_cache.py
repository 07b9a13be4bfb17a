"""A cache of the views of observers, for questions that differ only in ε, δ, clip or records, and of advice.

Scaling all noise of a plan by s divides every μ by s, and μ is proportional to the sensitivity of its owner.
So the views at unit noise and unit sensitivity can be used for all budgets of one plan.

**Guarantees.** The key of the cache contains everything on which a view depends: the digest of the plan at
unit noise, the periods with which records are used, the number of colluders, `allow_slow`, and which bound is
computed. Some plans are not a multiple of a plan at unit noise, because agents have different noise or
batches are sampled. Their views are always computed again. A cached view differs from a new one by rounding,
and by the tolerance of its bound (a billionth).
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

Value = TypeVar("Value")

MAX_REMEMBERED_ANSWERS = 256
SCALING_TOLERANCE = 1e-12  # relative, for the rounding of scaled noise


class ObserverCache:
    """A cache of the `MAX_REMEMBERED_ANSWERS` values that were used last. Several threads may use it."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[object, ...], Any] = OrderedDict()
        self._lock = Lock()

    def observe(self, write: Writer) -> Observe:
        """Return a cached version of `query.observe`, for plans that `write` makes."""

        def observed(
            kind: AnswerKind, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper"
        ) -> View:
            unit = _unit(write, plan) if kind.on_request and not exposure.sampled else None
            if unit is None:
                return kind.observe(plan, exposure, query, bound)
            plain = replace(exposure, sensitivity=np.ones(plan.agents))
            periods = tuple(exposure.periods().tolist())
            key = (kind.name, unit.digest(), periods, query.colluders, query.allow_slow, bound)
            view = self.cached(key, lambda: kind.observe(unit, plain, query, bound))
            factor = (exposure.sensitivity / float(plan.full_scale[0]))[:, None]
            upper = None if view.upper is None else view.upper * factor
            return replace(view, lower=view.lower * factor, upper=upper)

        return observed

    def cached(self, key: tuple[object, ...], compute: Callable[[], Value]) -> Value:
        """Return the value of `key`. If the cache does not have it, compute and store it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                value: Value = self._values[key]
                return value
        value = compute()  # without the lock, because it may take long
        with self._lock:
            self._values[key] = value
            while len(self._values) > MAX_REMEMBERED_ANSWERS:
                self._values.popitem(last=False)
        return value


def _unit(write: Writer, plan: Plan) -> Plan | None:
    """Return the plan that `write` makes at unit noise if `plan` is a multiple of it, and otherwise None."""
    noise = plan.full_scale
    if not (noise[0] > 0 and np.ptp(noise) == 0):
        return None
    unit = write(np.ones(plan.agents))
    if unit.releases != plan.releases or unit.std.values.shape != plan.std.values.shape:
        return None
    scaled = replace(unit, std=plan.std)
    near = np.allclose(unit.std.values * noise[0], plan.std.values, rtol=SCALING_TOLERANCE, atol=0.0)
    return unit if near and scaled.digest() == plan.digest() else None

"""The factor by which each agent's loss exceeds its budget, exactly or by quicker approximations.

`balance` and `calibrate` use this factor, the *excess*, to choose the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from topdp.base.array_types import Floats
from topdp.base.progress import silent
from topdp.plan import PerRound, Plan
from topdp.privacy._noise_search import Excess
from topdp.privacy.answers import AnswerKind
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.privacy_loss import Loss, SampledLoss, SmallestLoss
from topdp.privacy.basics.refusals import NotCovered, expect_deltas
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.published.calibration import least_noise
from topdp.privacy.query import DEFAULT_QUERY, Query

# A function that returns the plan for full-scale standard deviations [agents], always with the same random
# choices.
Writer = Callable[[Floats], Plan]

FIRST_RELEASES = 32  # the number of releases by which the quick model shows how agents depend on each other
# The least noise of an agent with Poisson samples, relative to the noise that one release would need if its
# sample were public.
LEAST_SAMPLED_NOISE = 1e-3


class BudgetExcess:
    """The excess of each agent [agents]: its loss divided by its budget, at several precisions and costs.

    The excess is the factor by which all noise of the plan would have to grow for the agent to meet its
    budget. If all noise is multiplied by s, the excess is divided by s.
    """

    def __init__(
        self,
        write: Writer,
        exposure: Exposure,
        kind: AnswerKind,
        *,
        epsilon: Floats,
        delta: ArrayLike,
        query: Query = DEFAULT_QUERY,
    ) -> None:
        self.write, self.exposure, self.kind, self.query = write, exposure, kind, query
        self.epsilon, self.deltas = epsilon, expect_deltas(delta, exposure.agents)
        self.target = np.asarray(mu_of(epsilon, self.deltas))
        self._note, self._steps = "", 0
        self._views: dict[bytes, View] = {}

    def least(self) -> Floats:
        """Return the full-scale noise [agents] with which a single release meets the budget of its agent.

        The search gives no agent less noise, even if the noise of other agents would hide it.
        """
        plan = self.write(self.exposure.sensitivity)
        noisy = (plan.rate > 0) & (plan.scale > 0)
        steps = plan.rate[noisy] / plan.scale[noisy]
        amplified = np.array(
            [LEAST_SAMPLED_NOISE if batches.sampled else 1.0 for batches in self.exposure.batches]
        )
        return np.asarray(amplified * self.exposure.sensitivity / self.target * min(steps, default=1.0))

    def ever_better(self, least: Floats) -> list[Excess]:
        """Return functions that compute the excess for noise of at least `least`, in order of precision.

        The first function is quick.
        """
        self._note = "balancing noise, step 1"
        if not self.kind.on_request:
            return [self.quick, self.whole]
        releases, first = self.write(least).releases, FIRST_RELEASES
        while 2 * first < releases and (self.quick(least, first) == 0).any():
            first *= 2  # in fewer releases, there is an agent whose rows no other agent reads
        if 2 * first >= releases:
            return [self.quick, self.whole]
        return [partial(self.quick, releases=first), partial(self.quick, report=True), self.whole]

    def quick(self, deviation: Floats, releases: int | None = None, report: bool = False) -> Floats:
        """Return the excess [agents] for aligned records, without amplification by sampling.

        `deviation`: the full-scale noise [agents]. `releases`: the number of first releases that count; None:
        all. `report`: whether progress is reported.
        """
        plan = self.write(deviation)
        if releases is not None:
            plan = _beginning(plan, releases)
        view = self._observe(plan, "aligned", report)
        return np.asarray(np.where(view.asked, view.lower, 0.0).max(axis=1) / self.target)

    def whole(self, deviation: Floats) -> Floats:
        """Return the excess [agents] according to the account, at full-scale noise `deviation` [agents]."""
        view = self._observe(self.write(deviation))
        self._views[deviation.tobytes()] = view
        excess = view.worst() / self.target
        for agent, loss in view.samples.items():
            scale = _least_scale(loss, float(self.epsilon[agent]), float(self.deltas[agent]))
            excess[agent] = min(excess[agent], scale)
        return excess

    def certified(self, deviation: Floats, factor: float) -> tuple[Floats, View | None]:
        """Return full-scale noise [agents] with which the account meets every budget, and its plan's view.

        The noise is `deviation` times `factor`, slightly enlarged if necessary. The view is None if no
        account at `deviation` was computed before.
        """
        view = self._views.get(deviation.tobytes())
        if not self.exposure.sampled:
            if view is not None and view.upper is not None:
                # Scaling all noise by s scales every μ by 1/s: the view need not be computed again.
                view = replace(view, lower=view.lower / factor, upper=view.upper / factor)
            return deviation * factor, view
        step = 1e-9
        while True:  # loss distributions lie on a grid, and do not scale exactly with the noise
            view = self._observe(self.write(deviation * factor))
            if (view.worst_epsilon(self.deltas) <= self.epsilon).all():
                return deviation * factor, view
            factor, step = factor * (1 + step), 2 * step

    def note(self, excess: Floats) -> None:
        """Record the state of the search, which progress reports then show. `excess`: of the last account."""
        self._steps += 1
        agent = int(excess.argmax())
        self._note = (
            f"balancing noise, step {self._steps + 1}: agent {agent} at {excess[agent]:.2f} of its budget"
        )

    def _observe(self, plan: Plan, bound: Bound = "upper", report: bool = True) -> View:
        """Return the loss of every owner to every observer of the answer; `report`: also report progress."""
        query = replace(self.query, progress=self._report if report else silent)
        return query.observe(self.kind, plan, self.exposure, query, bound)

    def _report(self, stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        """Report progress with the state of the search (`note`)."""
        self.query.progress(f"{stage}: {self._note}" if self._note else stage, done, total, **details)


def _beginning(plan: Plan, releases: int) -> Plan:
    """Return the plan that consists of the first `releases` releases of `plan`."""
    changed: dict[str, Any] = {
        field.name: PerRound(value.values, value.which[:releases])
        for field in fields(plan)
        if isinstance(value := getattr(plan, field.name), PerRound)
    }
    return replace(plan, rate=plan.rate[:releases], scale=plan.scale[:releases], **changed)


def _least_scale(loss: Loss, epsilon: float, delta: float) -> float:
    """Return the factor by which all noise would have to grow for `loss` to meet (ε, δ)."""
    if isinstance(loss, SmallestLoss):
        return min(_least_scale(part, epsilon, delta) for part in loss.losses)
    if isinstance(loss, SampledLoss):
        if not loss.releases or loss.releases[0][0] == 0:
            return np.inf if loss.releases else 0.0
        least = loss.releases[0][0]
        # Under the plain rule the shape does not depend on the noise, so the search runs only once.
        shape = tuple((round(z / least, 12), count) for z, count in loss.releases)
        return _least_multiplier(loss.rate, shape, epsilon, delta) / least
    return loss.mu / float(mu_of(epsilon, delta))


@lru_cache(maxsize=1024)
def _least_multiplier(
    rate: float, shape: tuple[tuple[float, int], ...], epsilon: float, delta: float
) -> float:
    """Return the least z at which sampled releases with noise multipliers z·shape meet (ε, δ).

    `shape`: pairs of a relative noise multiplier and the number of releases that have it.
    """

    def claim(z: float) -> float:
        try:
            return SampledLoss(rate, tuple((z * relative, count) for relative, count in shape)).epsilon(delta)
        except NotCovered:
            if z >= 1:
                raise
            return np.inf  # too little noise for loss distributions

    return least_noise(claim, epsilon, "Poisson samples")

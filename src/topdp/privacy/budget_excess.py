"""The factor by which each agent's loss exceeds its budget, exactly or by quicker approximations.

`balance` and `calibrate` choose the noise by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.base.progress import silent
from topdp.plan import PerRound, Plan
from topdp.privacy._noise_search import Excess
from topdp.privacy.answers import AnswerKind
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.privacy_loss import Loss, SampledLoss, SmallestLoss
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.published.calibration import least_noise
from topdp.privacy.query import DEFAULT_QUERY, Query

# Writes the plan for full-scale standard deviations [agents], always with the same random choices.
Writer = Callable[[Floats], Plan]

FIRST_RELEASES = 32  # releases that show how agents depend on each other
LEAST_SAMPLED_NOISE = 1e-3  # over the noise that one release would need if its sample were public


class BudgetExcess:
    """The loss of each agent over its budget [agents], by accounts of increasing precision and cost.

    This is the factor by which all noise of the plan would have to grow for the agent to meet its budget.
    Noise times s divides it by s.
    """

    def __init__(
        self,
        write: Writer,
        exposure: Exposure,
        kind: AnswerKind,
        *,
        epsilon: Floats,
        delta: float,
        query: Query = DEFAULT_QUERY,
    ) -> None:
        self.write, self.exposure, self.kind, self.query = write, exposure, kind, query
        self.epsilon, self.delta = epsilon, delta
        self.target = np.asarray(mu_of(epsilon, delta))
        self._note, self._steps = "", 0
        self._views: dict[bytes, View] = {}

    def least(self) -> Floats:
        """Return the full-scale noise [agents] with which a single release meets the budget.

        No agent gets less, even where noise of others would hide it.
        """
        plan = self.write(self.exposure.sensitivity)
        noisy = (plan.rate > 0) & (plan.scale > 0)
        steps = plan.rate[noisy] / plan.scale[noisy]
        amplified = np.array(
            [LEAST_SAMPLED_NOISE if batches.sampled else 1.0 for batches in self.exposure.batches]
        )
        return np.asarray(amplified * self.exposure.sensitivity / self.target * min(steps, default=1.0))

    def ever_better(self, least: Floats) -> list[Excess]:
        """Return functions that compute the excess, in order of precision, for noise of at least `least`.

        The first function is cheap.
        """
        self._note = "balancing noise, step 1"
        if not self.kind.on_request:
            return [self.quick, self.whole]
        releases, first = self.write(least).releases, FIRST_RELEASES
        while 2 * first < releases and (self.quick(least, first) == 0).any():
            first *= 2  # in fewer releases no other agent reads some agent's rows
        if 2 * first >= releases:
            return [self.quick, self.whole]
        return [partial(self.quick, releases=first), partial(self.quick, report=True), self.whole]

    def quick(self, deviation: Floats, releases: int | None = None, report: bool = False) -> Floats:
        """Return the excess [agents] for aligned records, without amplification.

        `deviation`: full-scale noise [agents]. `releases`: count only the first ones; default all.
        """
        plan = self.write(deviation)
        if releases is not None:
            plan = _beginning(plan, releases)
        view = self._observe(plan, "aligned", report)
        return np.asarray(np.where(view.asked, view.lower, 0.0).max(axis=1) / self.target)

    def whole(self, deviation: Floats) -> Floats:
        """Return the excess [agents] by the account itself, at full-scale noise `deviation` [agents]."""
        view = self._observe(self.write(deviation))
        self._views[deviation.tobytes()] = view
        excess = view.worst() / self.target
        for agent, loss in view.samples.items():
            excess[agent] = min(excess[agent], _least_scale(loss, float(self.epsilon[agent]), self.delta))
        return excess

    def certified(self, deviation: Floats, factor: float) -> tuple[Floats, View | None]:
        """Return full-scale noise [agents] at which the account meets every budget, and the view of its plan.

        The result is `deviation` times `factor`, slightly enlarged where necessary.
        """
        view = self._views.get(deviation.tobytes())
        if not self.exposure.sampled:
            if view is not None and view.upper is not None:
                # Scaling all noise by s scales every μ by 1/s: the view need not be computed again.
                view = replace(view, lower=view.lower / factor, upper=view.upper / factor)
            return deviation * factor, view
        step = 1e-9
        while True:  # loss distributions lie on a grid, and do not scale to the last digit
            view = self._observe(self.write(deviation * factor))
            if (view.worst_epsilon(self.delta) <= self.epsilon).all():
                return deviation * factor, view
            factor, step = factor * (1 + step), 2 * step

    def note(self, excess: Floats) -> None:
        """Record the state of the search for progress reports."""
        self._steps += 1
        agent = int(excess.argmax())
        self._note = (
            f"balancing noise, step {self._steps + 1}: agent {agent} at {excess[agent]:.2f} of its budget"
        )

    def _observe(self, plan: Plan, bound: Bound = "upper", report: bool = True) -> View:
        query = replace(self.query, progress=self._report if report else silent)
        return query.observe(self.kind, plan, self.exposure, query, bound)

    def _report(self, stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        self.query.progress(f"{stage}: {self._note}" if self._note else stage, done, total, **details)


def _beginning(plan: Plan, releases: int) -> Plan:
    """Return the plan that consists of the first `releases` releases."""

    def first(of: PerRound) -> PerRound:
        return PerRound(of.values, of.which[:releases])

    changed: dict[str, Any] = {
        part.name: first(getattr(plan, part.name))
        for part in fields(plan)
        if isinstance(getattr(plan, part.name), PerRound)
    }
    return replace(plan, rate=plan.rate[:releases], scale=plan.scale[:releases], **changed)


def _least_scale(loss: Loss, epsilon: float, delta: float) -> float:
    """Return the factor by which all noise has to grow for a loss to meet (ε, δ)."""
    if isinstance(loss, SmallestLoss):
        return min(_least_scale(part, epsilon, delta) for part in loss.losses)
    if isinstance(loss, SampledLoss):
        if not loss.releases or loss.releases[0][0] == 0:
            return np.inf if loss.releases else 0.0
        least = loss.releases[0][0]
        # Under the plain rule the shape is the same for all noise, and the search runs once.
        shape = tuple((round(z / least, 12), count) for z, count in loss.releases)
        return _least_multiplier(loss.rate, shape, epsilon, delta) / least
    return loss.mu / float(mu_of(epsilon, delta))


@lru_cache(maxsize=1024)
def _least_multiplier(
    rate: float, shape: tuple[tuple[float, int], ...], epsilon: float, delta: float
) -> float:
    """Return the least z at which sampled releases with noise multipliers z·shape meet (ε, δ)."""

    def claim(z: float) -> float:
        try:
            return SampledLoss(rate, tuple((z * relative, count) for relative, count in shape)).epsilon(delta)
        except NotCovered:
            if z >= 1:
                raise
            return np.inf  # loss distributions cannot represent so little noise

    return least_noise(claim, epsilon, "Poisson samples")

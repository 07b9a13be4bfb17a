"""By how much each agent's loss exceeds its budget: the account itself, and quick looks that come near to it.

Not for choosing noise (`balance` and `calibrate`), nor for what accounts guarantee: each says so itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.base.progress import Progress
from topdp.plan import PerRound, Plan
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.privacy_loss import Loss, SampledLoss, Smaller
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.noise_search import Excess
from topdp.privacy.observers.observer_answers import Look, observed
from topdp.privacy.observers.view import View
from topdp.privacy.observers.worst_case import worst_case
from topdp.privacy.published.calibration import least_noise

Writer = Callable[[Floats], Plan]
"""The plan of a protocol for full-scale standard deviations [agents]; the same random choices every time."""

BEGINNING = 32  # releases that stand for all where it is asked how agents depend on each other
TINY = 1e-3  # of the noise that one release needs by itself, if its sample were no secret


class Accounts:
    """By how much each agent's loss exceeds its budget [agents], by accounts that are ever better and slower.

    That is the factor by which all noise of the plan would have to grow for the agent's sake; noise times s
    divides it by s.
    """

    def __init__(
        self,
        write: Writer,
        exposure: Exposure,
        guarantee: str,
        epsilon: Floats,
        delta: float,
        patient: bool = False,
        colluders: int = 1,
        progress: Progress | None = None,
        look: Look = observed,
    ) -> None:
        self.write, self.exposure, self.guarantee = write, exposure, guarantee
        self.epsilon, self.delta = epsilon, delta
        self.target = np.asarray(mu_of(epsilon, delta))
        self._look = partial(look, guarantee, exposure=exposure, colluders=colluders, patient=patient)
        self._progress, self._note, self._told = progress, "", 0
        self._views: dict[bytes, View] = {}

    def least(self) -> Floats:
        """Full-scale noise [agents] under which one release alone keeps the budget.

        Nobody gets less, even where others' noise would hide it.
        """
        plan = self.write(self.exposure.sensitivity)
        noisy = (plan.rate > 0) & (plan.scale > 0)
        steps = plan.rate[noisy] / plan.scale[noisy]
        amplified = np.array([TINY if one.sampled else 1.0 for one in self.exposure.batches])
        return np.asarray(amplified * self.exposure.sensitivity / self.target * min(steps, default=1.0))

    def ever_better(self, least: Floats) -> list[Excess]:
        """The first is a model, asked often: of the first releases, and of records that all point one way."""
        self._note = "balancing noise, step 1"
        if self.guarantee == "worst-case":
            return [self.quick, self.whole]
        releases, first = self.write(least).releases, BEGINNING
        while 2 * first < releases and (self.quick(least, first) == 0).any():
            first *= 2  # somebody is not read yet
        if 2 * first >= releases:
            return [self.quick, self.whole]
        return [partial(self.quick, releases=first), partial(self.quick, told=True), self.whole]

    def quick(self, deviation: Floats, releases: int | None = None, told: bool = False) -> Floats:
        """By aligned records, all of which are in every round of their batches; of the first releases."""
        plan = self.write(deviation)
        if releases is not None:
            plan = _beginning(plan, releases)
        if self.guarantee == "worst-case":
            return self._unamplified(worst_case(plan, self.exposure).losses)
        seen = self._look(plan=plan, bound="aligned", progress=self._noted() if told else None)
        return np.asarray(np.where(seen.asked, seen.lower, 0.0).max(axis=1) / self.target)

    def whole(self, deviation: Floats) -> Floats:
        """The account itself."""
        plan = self.write(deviation)
        if self.guarantee == "worst-case":
            losses = worst_case(plan, self.exposure).losses
            excess = self._unamplified(losses)
            amplified = {i: losses[i] for i, one in enumerate(self.exposure.batches) if one.sampled}
        else:
            seen = self._look(plan=plan, progress=self._noted())
            self._views[deviation.tobytes()] = seen
            excess, amplified = seen.worst() / self.target, seen.samples
        for agent, loss in amplified.items():
            excess[agent] = min(excess[agent], _least_scale(loss, float(self.epsilon[agent]), self.delta))
        return excess

    def certified(self, deviation: Floats, factor: float) -> tuple[Floats, View | None]:
        """The noise times `factor`, at which the account keeps every budget, and what observers see then."""
        kept = self._views.get(deviation.tobytes())
        if not self.exposure.sampled:
            if kept is not None and kept.upper is not None:
                # Scaling all noise by s scales every μ by 1/s: no need to look again.
                kept = replace(kept, lower=kept.lower / factor, upper=kept.upper / factor)
            return deviation * factor, kept
        step = 1e-9
        while True:  # loss distributions lie on a grid, and do not scale to the last digit
            plan, seen = self.write(deviation * factor), None
            if self.guarantee == "worst-case":
                epsilon = worst_case(plan, self.exposure).epsilon(self.delta)
            else:
                seen = self._look(plan=plan, progress=self._noted())
                epsilon = seen.worst_epsilon(self.delta)
            if (epsilon <= self.epsilon).all():
                return deviation * factor, seen
            factor, step = factor * (1 + step), 2 * step

    def tell(self, excess: Floats) -> None:
        self._told += 1
        agent = int(excess.argmax())
        self._note = (
            f"balancing noise, step {self._told + 1}: agent {agent} at {excess[agent]:.2f} of its budget"
        )

    def _unamplified(self, losses: Sequence[Loss]) -> Floats:
        return np.array([loss.mu for loss in losses]) / self.target

    def _noted(self) -> Progress | None:
        progress, note = self._progress, self._note
        if progress is None or not note:
            return progress

        def report(stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
            progress(f"{stage}: {note}", done, total, **details)

        return report


def _beginning(plan: Plan, releases: int) -> Plan:
    """The first releases of a plan, as if it ended there."""

    def first(of: PerRound) -> PerRound:
        return PerRound(of.values, of.which[:releases])

    changed: dict[str, Any] = {
        part.name: first(getattr(plan, part.name))
        for part in fields(plan)
        if isinstance(getattr(plan, part.name), PerRound)
    }
    return replace(plan, rate=plan.rate[:releases], scale=plan.scale[:releases], **changed)


def _least_scale(loss: Loss, epsilon: float, delta: float) -> float:
    """By how much all noise has to grow for a loss to keep (ε, δ)."""
    if isinstance(loss, Smaller):
        return min(_least_scale(one, epsilon, delta) for one in loss.losses)
    if isinstance(loss, SampledLoss):
        if not loss.releases or loss.releases[0][0] == 0:
            return np.inf if loss.releases else 0.0
        least = loss.releases[0][0]
        # Under the plain rule this is the same for all noise: it is sought once.
        shape = tuple((round(z / least, 12), count) for z, count in loss.releases)
        return _least_multiplier(loss.rate, shape, epsilon, delta) / least
    return loss.mu / float(mu_of(epsilon, delta))


@lru_cache(maxsize=1024)
def _least_multiplier(
    rate: float, shape: tuple[tuple[float, int], ...], epsilon: float, delta: float
) -> float:
    """The least z at which sampled releases with noise multipliers z·shape keep (ε, δ)."""

    def claim(z: float) -> float:
        try:
            return SampledLoss(rate, tuple((z * one, count) for one, count in shape)).epsilon(delta)
        except NotCovered:
            if z >= 1:
                raise
            return np.inf  # loss distributions cannot hold so little noise

    return least_noise(claim, epsilon, "Poisson samples")

"""The claimed answer: the ε that the method's own published analysis states for its full-scale noise."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.privacy.answers.answer_kind import Answer, AnswerKind
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.privacy_loss import GaussianLoss
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, PrivacyWarning
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import View
from topdp.privacy.published.claims import Analysis, claim_reason
from topdp.privacy.query import Query

if TYPE_CHECKING:
    from topdp.privacy.budget_excess import Writer
    from topdp.privacy.spending_curve import Spending


@final
@dataclass(frozen=True, eq=False)
class ClaimedAnswer(AnswerKind):
    """The answer that the method's own published analysis states; it may be wrong."""

    name = "claimed"
    rank = 4
    assumptions = "The method's own analysis of its full-scale noise; noise that it saves counts as free."
    scope = "against nobody in particular: the method's own published analysis says so"
    public = Public.NOTHING
    proved = False
    has_mu = False

    def against(self, colluders: int) -> str:
        return "nobody in particular: the method's own published analysis says so, and may be wrong"

    def supports(self, plan: Plan, query: Query) -> str | None:
        return claim_reason(plan)

    def covers(self, analysis: Analysis) -> str | None:
        from topdp.privacy.published.calibrations import CALIBRATIONS

        rule = CALIBRATIONS[analysis.calibration]
        reasons = (rule.supports(batches, analysis.adjacency) for batches in dict.fromkeys(analysis.batches))
        return next(filter(None, reasons), None)

    def account(
        self, plan: Plan, analysis: Analysis, deltas: Floats, query: Query, view: View | None = None
    ) -> Answer:
        epsilon, warned = analysis.claim(plan, deltas)
        sampled = analysis.exposure().sampled
        exact = analysis.calibration == "tight" and not sampled and np.isfinite(epsilon).all()
        mu = mu_of(epsilon, deltas) if exact and (epsilon > 0).all() else ()
        losses = tuple(GaussianLoss(float(value)) for value in mu)
        return Answer(epsilon, losses=losses, warnings=tuple(warned))

    def closed_form_noise(self, write: Writer, analysis: Analysis, epsilon: Floats, deltas: Floats) -> Floats:
        """Return the noise [agents] by the method's own analysis, which treats each agent separately."""
        exposure = analysis.exposure()
        shape = analysis.multipliers(write(exposure.sensitivity))  # of each release at unit noise
        scales: dict[tuple[float, float, object, bytes], float] = {}
        deviation = np.empty(exposure.agents)
        for agent, batches in enumerate(analysis.batches):
            z, budget, delta = shape[..., agent], float(epsilon[agent]), float(deltas[agent])
            key = (budget, delta, batches, z.tobytes())
            if key not in scales:
                scales[key] = _least_scale(analysis, agent, z, budget, delta)
            deviation[agent] = exposure.sensitivity[agent] * scales[key]
        return deviation

    def spending_curve(self, spending: Spending, releases: Sequence[int]) -> list[float]:
        analysis, owner = spending.analysis, spending.owner
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # the account gives the warning
            try:
                z = analysis.multipliers(spending.plan)[..., owner]
                return [analysis.claim_of(owner, z[:, : last + 1], spending.delta) for last in releases]
            except PrivacyError as error:
                raise NotCovered(
                    f"The claimed guarantee of {analysis.calibration} has no cost per round: {error}"
                ) from error


def _least_scale(analysis: Analysis, agent: int, multipliers: Floats, epsilon: float, delta: float) -> float:
    """Return the smallest factor on the noise multipliers [2, releases] with which the claim is at most ε."""
    from topdp.privacy.published.calibrations import CALIBRATIONS

    rule, batches, stated = CALIBRATIONS[analysis.calibration], analysis.batches[agent], multipliers[0]
    # The warnings of `calibrate` are about noise on gradients.
    if np.ptp(stated) == 0 and not analysis.leaves_out_step:
        return rule.calibrate(
            epsilon, delta, len(stated), batches, analysis.adjacency
        ).noise_multiplier / float(stated[0])

    def claim(scale: float) -> float:
        return analysis.claim_of(agent, scale * multipliers, delta)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # about noise that the search only tries
        from topdp.privacy.published.calibration import least_noise

        scale = least_noise(claim, epsilon, rule.name)
    claim(scale)  # gives the warning about the noise that is used
    return scale


CLAIMED = ClaimedAnswer()

"""The worst-case answer: the loss to all other agents together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.privacy.answers.answer_kind import Answer, AnswerKind
from topdp.privacy.basics.exposure import COVERED_NEEDS, Exposure, uncovered_reason
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.observers.worst_case import worst_case
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Query

if TYPE_CHECKING:
    from topdp.privacy.spending_curve import Spending


@final
@dataclass(frozen=True, eq=False)
class WorstCaseAnswer(AnswerKind):
    """The answer against all other agents together, who see every row that the agent makes."""

    name = "worst-case"
    rank = 1
    assumptions = (
        "All other agents together, who see every row the agent makes, its own estimate included. "
        "No assumption on gradients."
    )
    scope = "against all other agents together, whatever gradients do"
    public = Public.LINKS
    relies_on_others = False

    def against(self, colluders: int) -> str:
        return "all other agents together"

    def supports(self, plan: Plan, query: Query) -> str | None:
        return uncovered_reason(plan, COVERED_NEEDS)

    def account(
        self, plan: Plan, analysis: Analysis, deltas: Floats, query: Query, view: View | None = None
    ) -> Answer:
        worst = worst_case(plan, analysis.exposure())
        return Answer(worst.epsilon(deltas), losses=worst.losses)

    def observe(self, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper") -> View:
        """Return a view with one observer for every owner: all other agents."""
        losses = worst_case(plan, exposure).losses
        mu = np.array([[loss.mu] for loss in losses])
        samples = {i: losses[i] for i, batches in enumerate(exposure.batches) if batches.sampled}
        return View(observers=((),), lower=mu, upper=mu, asked=np.ones(mu.shape, bool), samples=samples)

    def spending_curve(self, spending: Spending, releases: Sequence[int]) -> list[float]:
        return spending.planned_worst_case(releases)


WORST_CASE = WorstCaseAnswer()

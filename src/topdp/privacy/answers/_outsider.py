"""The outsider answer: the loss to an observer that is no agent and reads every link and every estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from topdp.plan import Capability, Plan
from topdp.privacy.answers.answer_kind import ObservedAnswer
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.observers.adaptive import adaptive_reason, has_short_form, outsider
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.observers.view_effort import MAX_UNASKED_WORK, view_work
from topdp.privacy.query import Query


@final
@dataclass(frozen=True, eq=False)
class OutsiderAnswer(ObservedAnswer):
    """The answer against an outsider that reads every link and every estimate; it cannot be a guarantee."""

    name = "outsider"
    rank = 2
    assumptions = (
        "Somebody who reads every link and every agent's estimate in every round, and knows nobody's draws. "
        "No assumption on gradients."
    )
    scope = "against somebody who reads every link and every estimate, whatever gradients do"
    public = Public.LINKS
    takes_budget = False

    def against(self, colluders: int) -> str:
        return "somebody who reads every link and every estimate, and belongs to no agent"

    def supports(self, plan: Plan, query: Query) -> str | None:
        return adaptive_reason(plan, self.public, 0)

    def observe(self, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper") -> View:
        return outsider(plan, exposure, query)

    def work(self, plan: Plan, query: Query) -> float:
        if plan.agents == 1 or Capability.ROUNDED_ROWS in plan.needs or has_short_form(plan, self.public, 0):
            return 0.0
        work = view_work(plan, 1, self.public)
        return work if work <= MAX_UNASKED_WORK or query.allow_slow else 0.0


OUTSIDER = OutsiderAnswer()

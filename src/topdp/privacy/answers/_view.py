"""The view answer: the loss to each other agent alone, if gradients do not react to a changed record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.privacy.answers.answer_kind import ObservedAnswer
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.refusals import expect_supported
from topdp.privacy.observers import view_effort
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import Bound, View, leading_view, view, view_reason
from topdp.privacy.query import Query

if TYPE_CHECKING:
    from topdp.privacy.spending_curve import Spending


@final
@dataclass(frozen=True, eq=False)
class ViewAnswer(ObservedAnswer):
    """The answer against each other agent alone, if gradients do not react; it proves no protection."""

    name = "view"
    rank = 3
    assumptions = (
        "Each other agent alone, honest but curious, with all rows it reads in all rounds, its own draws and "
        "data, and all random choices of the protocol. Assumes that gradients do not react: others' later "
        "gradients may react to a changed record, which this does not cover. Information, no guarantee."
    )
    scope = "against every other agent alone, in training whose gradients do not react"
    public = Public.NOTHING
    proved = False

    def against(self, colluders: int) -> str:
        return "each other agent alone, in training that does not react; this guarantees nothing"

    def supports(self, plan: Plan, query: Query) -> str | None:
        if plan.agents == 1:
            return "One party holds all records: no other agent reads anything. Ask for adaptive."
        return view_reason(plan)

    def observe(self, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper") -> View:
        expect_supported(self.supports(plan, query))
        return view(plan, exposure, owners="all", bound=bound, query=query)

    def spending_curve(self, spending: Spending, releases: Sequence[int]) -> Floats:
        plan = spending.plan
        expect_supported(view_reason(plan))
        mu = leading_view(plan, spending.analysis.exposure(), spending.owner, releases, spending.query)
        return spending.amplified(mu, releases)

    def work(self, plan: Plan, query: Query) -> float:
        if self.supports(plan, query) is not None:
            return 0.0
        work = view_effort.view_work(plan)
        return work if work <= view_effort.MAX_UNASKED_WORK or query.allow_slow else 0.0

    def curve_seconds(self, plan: Plan, query: Query) -> float:
        return view_effort.curve_seconds(plan, plan.agents - 1, self.public)

    def hides_rows(self, plan: Plan, colluders: int) -> bool:
        return True


VIEW = ViewAnswer()

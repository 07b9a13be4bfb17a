"""The adaptive answer: the loss to agents that also read every estimate, without assumptions on gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Capability, Plan
from topdp.privacy.answers.answer_kind import ObservedAnswer
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.observers import adaptive, view_effort
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import Bound, View
from topdp.privacy.query import Query

if TYPE_CHECKING:
    from topdp.privacy.spending_curve import Spending


@final
@dataclass(frozen=True, eq=False)
class AdaptiveAnswer(ObservedAnswer):
    """The answer against agents or coalitions that also read every estimate; the default guarantee."""

    name = "adaptive"
    rank = 0
    assumptions = (
        "Each other agent, or the colluders together, with all that the view gives them and also every "
        "agent's estimate in every round, the last included. No assumption on gradients."
    )
    scope = "against every other agent alone, or as many as are said to collude, whatever gradients do"
    public = Public.ESTIMATES
    counts_colluders = True

    def against(self, colluders: int) -> str:
        estimates = "every agent's estimate in every round"
        if colluders == 0:
            return f"somebody who belongs to no agent and reads {estimates}"
        if colluders == 1:
            return f"any one other agent, which also reads {estimates}"
        return f"any {colluders} other agents that pool what they see, and also read {estimates}"

    def supports(self, plan: Plan, query: Query) -> str | None:
        return adaptive.adaptive_reason(plan, self.public, query.colluders)

    def observe(self, plan: Plan, exposure: Exposure, query: Query, bound: Bound = "upper") -> View:
        return adaptive.adaptive(plan, exposure, query, bound)

    def spending_curve(self, spending: Spending, releases: Sequence[int]) -> Floats:
        exposure, sensitivity = spending.analysis.exposure(), spending.sensitivity
        plan, owner, query = spending.plan, spending.owner, spending.query
        mu, per_release = adaptive.leading_adaptive(plan, exposure, owner, releases, query)
        information = per_release * sensitivity**2
        if not spending.batches.sampled or np.array_equal(information, spending.information):
            return spending.amplified(mu, releases)
        samples = [spending.composed(information[: last + 1]) for last in releases]
        return np.minimum(epsilon_of(mu, spending.delta), samples)

    def work(self, plan: Plan, query: Query) -> float:
        immediate = plan.agents == 1 or Capability.ROUNDED_ROWS in plan.needs
        if immediate or adaptive.has_short_form(plan, self.public, query.colluders):
            return 0.0
        # If computing every coalition takes too long, `adaptive` uses a bound by neighbourhoods.
        work = view_effort.reader_work(plan, math.comb(plan.agents, query.colluders))
        return min(work, view_effort.MAX_UNASKED_WORK)

    def curve_seconds(self, plan: Plan, query: Query) -> float:
        n, colluders = plan.agents, query.colluders
        if plan.rows == n or {Capability.ROBUST_MIXING, Capability.ROUNDED_ROWS} & plan.needs.keys():
            return 0.5 * max(1, math.comb(n, min(colluders, n)) / 1e5)
        return view_effort.curve_seconds(plan, math.comb(n - 1, min(colluders, n - 1)), self.public)

    def hides_rows(self, plan: Plan, colluders: int) -> bool:
        return not adaptive.in_the_open(plan) and not adaptive.has_short_form(plan, self.public, colluders)

    def composes_releases(self, plan: Plan) -> bool:
        return adaptive.in_the_open(plan)


ADAPTIVE = AdaptiveAnswer()

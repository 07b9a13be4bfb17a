"""Whether an agent's budget allows its next release, known before it sends; and what the ledger is charged.

`privacy` computes what a release costs. An agent charges by the guarantee of its manifest. All guarantees but
the worst case hold for the plan as written, so they are charged only where the rule is to wait for
neighbours; and from the first departure from the plan that the agent sees (a neighbour that it quarantines,
or that refuses its rows), it charges by the worst case.

Not so where draws are shared and everybody sees every row (`in_the_open`): there a row that is missing, or is
mixed of others, tells nobody more, so the adaptive answer is charged whichever agents are missing. Agents
that are gone for good count as colluders, from the round that the agent has stated.

**Guarantees.** `ReleaseCost.charge` brings the total to at least the ε that `privacy` gives. Whether data
enter a round follows from budget, plan and departures alone, never from the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, final

import numpy as np

from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.ledger.ledger_entries import ReleaseCost, finite_or_none
from topdp.base.array_types import Floats
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.basics.privacy_loss import GaussianLoss
from topdp.privacy.observers.survivors import RESERVED_RELEASES, most_learned_since, recalls_draws
from topdp.privacy.query import Query
from topdp.privacy.spending_curve import ReleaseHistory, Spending, spending

BUDGET_MARGIN = 1e-9  # relative: a calibrated plan meets its budget up to rounding
TALLY_MARGIN = 1 + 1e-14  # on the root


@dataclass(frozen=True, kw_only=True)
class BudgetMeter:
    """What the releases of one agent are charged."""

    spending: Spending
    by_plan: Floats | None  # [releases] ε under the guarantee of the plan; None: charges by worst case
    # [releases] where rows are in the open: 1/z² to the coalition that learns most
    most: Floats | None = None
    reserved: int = 0  # releases that are charged beside, each the most telling that was made
    _known: dict[int, float] = field(default_factory=dict, repr=False)
    _added: dict[str, tuple[ReleaseHistory, ReleaseTally]] = field(default_factory=dict, repr=False)

    @property
    def planned(self) -> Floats:
        """[releases] 1/z² of the agent's releases in the plan, at its sensitivity."""
        return self.spending.information

    @property
    def in_the_open(self) -> bool:
        """Whether what is charged holds whichever agents are missing."""
        return self.most is not None

    def worst_case(self, history: ReleaseHistory) -> float:
        """ε of the releases (round, 1/z²) if all others collude."""
        if self.spending.batches.sampled:
            return self.spending.worst_case(history[-1:])
        return self._epsilon(self._tally("worst", history).mu())

    def cost(
        self, round: int, history: ReleaseHistory, total: float, information: float, planned: bool
    ) -> ReleaseCost:
        """Return the cost of the release of `round` for an agent that has spent `total`.

        `history`: its releases so far. `planned` False: something has departed from the plan.
        """
        sampled = self.spending.batches.sampled
        worst = (
            self.spending.worst_case([(round, information)])
            if sampled
            else self._epsilon(self._tally("worst", history).mu((round, information)))
        )
        if self.most is not None:
            after = self._learned(history, round)
        else:
            after = worst if self.by_plan is None or not planned else float(self.by_plan[round])
        return ReleaseCost(_charge(total, after), finite_or_none(worst), finite_or_none(information))

    def owed(self, history: ReleaseHistory, total: float, planned: bool) -> ReleaseCost:
        """Return the cost of a round that the agent's data do not enter.

        It is nothing, with one exception: once the plan is not followed, earlier releases have cost what the
        worst case says; and where rows are in the open, what they have cost if one more agent counts as a
        colluder.
        """
        worst = self.worst_case(history)
        if self.most is not None:
            charge = _charge(total, self._learned(history))
        else:
            charge = 0.0 if planned else _charge(total, worst)
        return ReleaseCost(charge, finite_or_none(worst), 0.0)

    def without(self, gone: Mapping[int, int]) -> BudgetMeter:
        """The meter if agents count as colluders, each from its round on."""
        assert self.most is not None
        one = self.spending
        most = most_learned_since(one.plan, one.owner, gone, one.query)
        return replace(self, most=most * one.sensitivity**2, _known={}, _added={})

    def _learned(self, history: ReleaseHistory, one_more: int | None = None) -> float:
        """ε of the releases made, and of one more, to the coalition that learns most of each."""
        assert self.most is not None
        if not history and one_more is None:
            return 0.0
        if self.spending.batches.sampled:  # all up to the next checkpoint: composing samples takes time
            last = self.spending.checkpoint(history[-1][0] if one_more is None else one_more)
            if last not in self._known:
                self._known[last] = self.spending.composed(self.most[: last + 1])
            return self._known[last]
        more = None if one_more is None else (one_more, float(self.most[one_more]))
        # A record is in one of `period` classes of rounds: each gets the reserve once.
        return self._epsilon(self._tally("learned", history).mu(more, self.reserved))

    def _tally(self, what: Literal["worst", "learned"], history: ReleaseHistory) -> ReleaseTally:
        """Return the sum of `history`. It only grows, so what was added before is not added again."""
        of, tally = self._added.get(what, (None, None))
        if tally is None or of is not history or tally.count > len(history):
            tally = ReleaseTally(self.spending.batches.period)
            self._added[what] = history, tally
        for made, information in (history[k] for k in range(tally.count, len(history))):
            tally.add(made, information if self.most is None or what == "worst" else float(self.most[made]))
        return tally

    def _epsilon(self, mu: float) -> float:
        return GaussianLoss(mu).epsilon(self.spending.delta)


def allows(epsilon: float, total: float, cost: ReleaseCost) -> bool:
    """Whether an agent that has spent `total` may make the release: not if that would exceed the budget."""
    return bool(total + cost.charge <= epsilon * (1 + BUDGET_MARGIN))


def build_meter(setup: RunSetup, agent: int) -> BudgetMeter:
    """The meter of `agent`. Where agents may go on without a neighbour, it does not charge by the plan."""
    plan, analysis, privacy = setup.plan, setup.run.analysis, setup.manifest.config.privacy
    follows_plan = not setup.manifest.rules.tolerates_silence
    query = Query(colluders=setup.coalition, allow_slow=privacy.allow_slow)
    spent = spending(plan, analysis, agent, privacy.delta, query)
    kind = guarantee_kind(privacy.guarantee)
    if kind.composes_releases(plan):
        reserved = 0 if follows_plan or not recalls_draws(analysis.exposure()) else RESERVED_RELEASES
        return BudgetMeter(
            spending=spent, by_plan=None, most=np.zeros(plan.releases), reserved=reserved
        ).without({})
    by_plan = spent.curve(privacy.guarantee) if follows_plan and kind.relies_on_others else None
    return BudgetMeter(spending=spent, by_plan=by_plan)


def _charge(total: float, after: float) -> float:
    """Return the charge that raises `total` to `after`; 0 if `total` is as large already."""
    charge = max(0.0, after - total)
    while total + charge < after < math.inf:
        charge = math.nextafter(charge, math.inf)
    return charge


@final
class ReleaseTally:
    """What releases add up to, one after the other: the same work for every release, however many were made.

    Releases of one owner, each in one of `period` classes of rounds. Adds exactly, so the sum does not depend
    on order or grouping; rounded once, upwards. Not for Poisson samples, whose composition is no sum.

    **Guarantees.** Never below Σ 1/z² over the releases of the class of rounds that adds up to most: a record
    is in one of `period` such classes.

    >>> tally = ReleaseTally(period=2)
    >>> for r, information in [(0, 0.5), (1, 2.0), (2, 1.75)]:
    ...     tally.add(r, information)
    >>> [round(tally.mu(*how), 9) for how in [(), ((3, 7.0),), ((3, 7.0), 1)]]  # of 2.25, 9 and 16
    [1.5, 3.0, 4.0]
    """

    def __init__(self, period: int = 1) -> None:
        self.count, self._period = 0, period
        self._sums: dict[int, Fraction] = {}
        self._most, self._largest, self._bare = Fraction(0), 0.0, False  # bare: a release had no noise

    def add(self, round: int, information: float) -> None:
        self.count += 1
        if math.isinf(information):
            self._bare = True
            return
        total = self._with(round, information)
        self._sums[round % self._period] = total
        self._most, self._largest = max(self._most, total), max(self._largest, information)

    def mu(self, one_more: tuple[int, float] | None = None, reserved: int = 0) -> float:
        """μ at the sensitivity for which 1/z² is given; with one more release, or so many of the largest."""
        round, information = one_more or (0, 0.0)
        if self._bare or math.isinf(information):
            return math.inf
        most = max(self._most, self._with(round, information))
        # μ² = Σ_r 1/z_r² over the rounds that use the record; arXiv:1905.02383, Corollary 3.3
        return math.sqrt(_up(most + reserved * Fraction(max(self._largest, information)))) * TALLY_MARGIN

    def _with(self, round: int, information: float) -> Fraction:
        return self._sums.get(round % self._period, Fraction(0)) + Fraction(information)


def _up(value: Fraction) -> float:
    """The nearest number that is not below; infinite if there is none."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)

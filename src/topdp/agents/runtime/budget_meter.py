"""The cost of an agent's next release, computed before the release, and whether the budget allows it.

`privacy` computes the cost. An agent charges by the guarantee of its manifest. All guarantees except the
worst case hold only for the plan as written. So they are charged only under the rule to wait for neighbours,
and only until the agent sees the first departure from the plan (a neighbour that it quarantines, or that
refuses its rows). From then on it charges by worst case.

There is one exception: draws are shared and all agents see every row (`in_the_open`). A row that is missing,
or is mixed from other rows, then tells no agent more, so the adaptive answer is charged whichever agents are
missing. Departed agents count as colluders, from the round that the agent has stated.

**Guarantees.** `ReleaseCost.charge` brings the total to at least the ε that `privacy` computes. Whether data
enter a round depends on budget, plan and departures alone, never on the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, final

from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.ledger.ledger_entries import ReleaseCost, finite_or_none
from topdp.base.array_types import Floats
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.basics.privacy_loss import GaussianLoss
from topdp.privacy.observers.survivors import RESERVED_RELEASES, most_learned_since, recalls_draws
from topdp.privacy.query import Query
from topdp.privacy.spending_curve import ReleaseHistory, Spending, spending

BUDGET_MARGIN = 1e-9  # relative: a calibrated plan meets its budget up to rounding
TALLY_MARGIN = 1 + 1e-14  # covers the rounding of the square root


@dataclass(frozen=True, kw_only=True)
class BudgetMeter:
    """What the releases of one agent are charged."""

    spending: Spending
    by_plan: Floats | None  # [releases] ε under the guarantee of the plan; None: charges by worst case
    # [releases] where all agents see all rows: 1/z² to the coalition that learns most; otherwise None
    coalition_information: Floats | None = None
    reserved: int = 0  # further releases that are charged, each like the release with the largest 1/z²
    _composed: dict[int, float] = field(default_factory=dict, repr=False)
    _tallies: dict[str, tuple[ReleaseHistory, ReleaseTally]] = field(default_factory=dict, repr=False)

    @property
    def planned(self) -> Floats:
        """[releases] 1/z² of the agent's releases in the plan, at the agent's sensitivity."""
        return self.spending.information

    @property
    def in_the_open(self) -> bool:
        """Whether charges hold whichever agents are missing."""
        return self.coalition_information is not None

    def worst_case(self, history: ReleaseHistory, one_more: tuple[int, float] | None = None) -> float:
        """Return ε of the releases (round, 1/z²), and of one more, if all other agents collude."""
        if self.spending.batches.sampled:
            return self.spending.worst_case([one_more] if one_more else history[-1:])
        return self._epsilon(self._tally("worst", history).mu(one_more))

    def cost(
        self, round: int, history: ReleaseHistory, total: float, information: float, planned: bool
    ) -> ReleaseCost:
        """Return the cost of the release of `round` for an agent that has spent `total`.

        `history`: its releases so far. `planned`: whether the plan was followed so far.
        """
        worst = self.worst_case(history, (round, information))
        if self.in_the_open:
            after = self._coalition_epsilon(history, round)
        else:
            after = worst if self.by_plan is None or not planned else float(self.by_plan[round])
        return ReleaseCost(_charge(total, after), finite_or_none(worst), finite_or_none(information))

    def cost_without_data(self, history: ReleaseHistory, total: float, planned: bool) -> ReleaseCost:
        """Return the cost of a round that the agent's data do not enter.

        It is zero, with two exceptions. Once the plan is not followed, earlier releases cost as much as the
        worst case states. Where all agents see all rows, earlier releases cost more once one more agent
        counts as a colluder.
        """
        worst = self.worst_case(history)
        if self.in_the_open:
            charge = _charge(total, self._coalition_epsilon(history))
        else:
            charge = 0.0 if planned else _charge(total, worst)
        return ReleaseCost(charge, finite_or_none(worst), 0.0)

    def with_colluders(self, first_rounds: Mapping[int, int]) -> BudgetMeter:
        """Return the meter that counts these agents as colluders, each from its round on."""
        run = self.spending
        learned = most_learned_since(run.plan, run.owner, first_rounds, run.query) * run.sensitivity**2
        return replace(self, coalition_information=learned, _composed={}, _tallies={})

    def _coalition_epsilon(self, history: ReleaseHistory, one_more: int | None = None) -> float:
        """Return ε of the releases made, and of one more, to the coalition that learns most of each."""
        assert self.coalition_information is not None
        if not history and one_more is None:
            return 0.0
        if self.spending.batches.sampled:  # all up to the next checkpoint: composing samples takes time
            last = self.spending.checkpoint(history[-1][0] if one_more is None else one_more)
            if last not in self._composed:
                self._composed[last] = self.spending.composed(self.coalition_information[: last + 1])
            return self._composed[last]
        more = None if one_more is None else (one_more, float(self.coalition_information[one_more]))
        # A record is in one of `period` classes of rounds; each class gets the reserve once.
        return self._epsilon(self._tally("coalition", history).mu(more, self.reserved))

    def _tally(self, what: Literal["worst", "coalition"], history: ReleaseHistory) -> ReleaseTally:
        """Return the sum of `history`. A history only grows, so this adds only its new releases."""
        earlier, tally = self._tallies.get(what, (None, None))
        if tally is None or earlier is not history or tally.count > len(history):
            tally = ReleaseTally(self.spending.batches.period)
            self._tallies[what] = history, tally
        learned = self.coalition_information if what == "coalition" else None
        for round, information in (history[k] for k in range(tally.count, len(history))):
            tally.add(round, information if learned is None else float(learned[round]))
        return tally

    def _epsilon(self, mu: float) -> float:
        return GaussianLoss(mu).epsilon(self.spending.delta)


def allows(epsilon: float, total: float, cost: ReleaseCost) -> bool:
    """Return whether the release keeps an agent that has spent `total` within its budget `epsilon`."""
    return bool(total + cost.charge <= epsilon * (1 + BUDGET_MARGIN))


def build_meter(setup: RunSetup, agent: int) -> BudgetMeter:
    """Return the meter of `agent`. It charges by the plan only under the rule to wait for neighbours."""
    plan, analysis, privacy = setup.plan, setup.run.analysis, setup.manifest.config.privacy
    follows_plan = not setup.manifest.rules.tolerates_silence
    query = Query(colluders=setup.coalition, allow_slow=privacy.allow_slow)
    spent = spending(plan, analysis, agent, setup.delta(agent), query)
    kind = guarantee_kind(privacy.guarantee)
    if kind.composes_releases(plan):
        reserved = 0 if follows_plan or not recalls_draws(analysis.exposure()) else RESERVED_RELEASES
        return BudgetMeter(spending=spent, by_plan=None, reserved=reserved).with_colluders({})
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
    """The sum of 1/z² over releases of one owner. The work per release does not grow with their number.

    Each release is in one of `period` classes of rounds. The sum is exact, so it does not depend on order or
    grouping; it is rounded once, upwards. Poisson samples are not supported: their composition is no sum.

    **Guarantees.** μ² is never below Σ 1/z² over the releases of the class of rounds with the largest sum: a
    record is in one of `period` such classes.

    >>> tally = ReleaseTally(period=2)
    >>> for r, information in [(0, 0.5), (1, 2.0), (2, 1.75)]:
    ...     tally.add(r, information)
    >>> [round(tally.mu(*how), 9) for how in [(), ((3, 7.0),), ((3, 7.0), 1)]]  # of 2.25, 9 and 16
    [1.5, 3.0, 4.0]
    """

    def __init__(self, period: int = 1) -> None:
        self.count, self._period = 0, period
        self._sums: dict[int, Fraction] = {}
        self._largest_sum, self._largest, self._has_bare_release = Fraction(0), 0.0, False

    def add(self, round: int, information: float) -> None:
        self.count += 1
        if math.isinf(information):
            self._has_bare_release = True  # it had no noise
            return
        total = self._sum_with(round, information)
        self._sums[round % self._period] = total
        self._largest_sum, self._largest = max(self._largest_sum, total), max(self._largest, information)

    def mu(self, one_more: tuple[int, float] | None = None, reserved: int = 0) -> float:
        """Return μ at the sensitivity of 1/z², with `one_more` release and `reserved` more of the largest."""
        round, information = one_more or (0, 0.0)
        if self._has_bare_release or math.isinf(information):
            return math.inf
        largest_sum = max(self._largest_sum, self._sum_with(round, information))
        # μ² = Σ_r 1/z_r² over the rounds that use the record; arXiv:1905.02383, Corollary 3.3
        reserve = reserved * Fraction(max(self._largest, information))
        return math.sqrt(_round_up(largest_sum + reserve)) * TALLY_MARGIN

    def _sum_with(self, round: int, information: float) -> Fraction:
        return self._sums.get(round % self._period, Fraction(0)) + Fraction(information)


def _round_up(value: Fraction) -> float:
    """Return the smallest float that is not below `value`; infinity if there is none."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)

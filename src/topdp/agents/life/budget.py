"""Whether an agent's budget allows its next release, known before it sends; and what the ledger is charged.

What a release costs, `privacy.spending` says. An agent charges by the guarantee of its manifest: all but the
worst case hold for the plan as written, so they are charged by only where the rule is to wait for neighbours;
and from the first departure from the plan that the agent sees (a neighbour that it quarantined, or that
refuses its rows), it charges by worst case.

**Guarantees.** `Cost.charge` brings the total to at least the ε that `spending` gives. Whether data enter a
round follows from budget, plan and departures alone, never from the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topdp.agents.books.entries import Cost
from topdp.plan import Plan
from topdp.plan.arrays import Floats
from topdp.privacy.published.claims import Analysis
from topdp.privacy.spending import History, Spending, spending

SLACK = 1e-9  # relative: a calibrated plan meets its budget up to rounding


@dataclass(frozen=True)
class Meter:
    """What the releases of one agent are charged."""

    spending: Spending
    by_plan: Floats | None  # [releases] ε under the guarantee of the plan; None: charges by worst case

    @property
    def planned(self) -> Floats:
        """[releases] 1/z² of the agent's releases in the plan, at its sensitivity."""
        return self.spending.information

    def worst_case(self, history: History) -> float:
        """ε of the releases (round, 1/z²) if all others collude."""
        return self.spending.worst_case(history)

    def cost(self, round: int, history: History, total: float, information: float, planned: bool) -> Cost:
        """What the release of `round` would cost an agent that has spent `total`.

        `history`: its releases so far. `planned` False: something has departed from the plan.
        """
        worst = self.worst_case([*history, (round, information)])
        after = worst if self.by_plan is None or not planned else float(self.by_plan[round])
        return Cost(_charge(total, after), _finite(worst), _finite(information))

    def owed(self, history: History, total: float, planned: bool) -> Cost:
        """What a round costs that the agent's data do not enter: nothing.

        Only once the plan is departed from, what was released before has cost what the worst case says.
        """
        worst = self.worst_case(history)
        return Cost(0.0 if planned else _charge(total, worst), _finite(worst), 0.0)


def allows(epsilon: float, total: float, cost: Cost) -> bool:
    """Whether an agent that has spent `total` may make the release: not when it would pass the budget."""
    return bool(total + cost.charge <= epsilon * (1 + SLACK))


def meter(
    plan: Plan,
    analysis: Analysis,
    agent: int,
    delta: float,
    guarantee: str,
    follows_plan: bool,
    colluders: int = 1,
    patient: bool = False,
) -> Meter:
    """The meter of `agent`; `follows_plan` False where neighbours may be gone on without.

    `colluders`: how many agents pool what they see under `adaptive`. `patient`: also what takes very long.
    """
    spent = spending(plan, analysis, agent, delta, colluders, patient)
    by_plan = spent.curve(guarantee) if follows_plan and guarantee != "worst-case" else None
    return Meter(spent, by_plan)


def _charge(total: float, after: float) -> float:
    """What brings `total` to `after`, or leaves it where it is that much already."""
    charge = max(0.0, after - total)
    while total + charge < after < math.inf:
        charge = math.nextafter(charge, math.inf)
    return charge


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""Calibration: the least noise for which the account meets a budget (ε, δ) under the chosen guarantee.

If all noise of a plan is multiplied by s, every μ is divided by s. So if all agents have the same budget, one
account at unit noise and one multiplication calibrate the noise. Agents with different budgets, records or
batches get different noise (`balance`). That search ends with the same common multiplication, so it errs on
the private side wherever it stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from topdp.base.array_types import Floats
from topdp.privacy._noise_search import Balance, balance
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, expect_deltas, expect_epsilon
from topdp.privacy.budget_excess import BudgetExcess, Writer
from topdp.privacy.observers.view import View
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import DEFAULT_QUERY, Query

# Covers the rounding in the last multiplication, and in bounds that are computed again at other noise.
ROUNDING_MARGIN = 1 + 1e-7


@dataclass(frozen=True, eq=False)
class CalibratedNoise:
    """Full-scale standard deviations [agents], and the view of their plan if one was computed.

    >>> import numpy as np
    >>> CalibratedNoise(np.array([0.1, 0.2])).view is None
    True
    """

    deviation: Floats
    view: View | None = None


def calibrate(
    write: Writer,
    analysis: Analysis,
    guarantee: str,
    epsilon: Floats,
    delta: ArrayLike,
    query: Query = DEFAULT_QUERY,
    shares: Floats | None = None,
) -> CalibratedNoise:
    """Return the least full-scale noise with which the plan that `write` returns meets every agent's ε.

    `write` returns the plan for full-scale standard deviations [agents]. `guarantee`: the name of the answer
    that must meet the budgets. `epsilon` [agents]: the budgets, at the δ `delta`: one number, or one for each
    agent. `shares` [agents]: the noise of each agent up
    to a common factor, if the caller chooses the proportions.

    **Guarantees.** The ε of every agent, by the account of the plan under `guarantee`, is at most the agent's
    budget. For the agent that determines the noise, it is at least (1 - 1e-6) times the budget. If agents
    differ and the search converges (`balance`), each agent whose noise could be lower is within 5e-4 of the μ
    of its budget. NotCovered is raised for a plan that no noise makes private.

    >>> from topdp.privacy import Analysis, account
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> def write(deviation):
    ...     return TopSynchronous(0.5).plan(topology.ring(6), steps, deviation, seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> found = calibrate(write, analysis, "view", epsilon=np.ones(6), delta=1e-5)
    >>> found.deviation.round(2).tolist()
    [13.65, 13.65, 13.65, 13.65, 13.65, 13.65]
    >>> round(account(write(found.deviation), analysis, delta=1e-5, answers=["view"]).view.largest, 4)
    1.0
    """
    epsilon = np.array([expect_epsilon(float(e)) for e in epsilon])
    kind = guarantee_kind(guarantee)
    exposure = analysis.exposure()
    if len(epsilon) != exposure.agents:
        raise PrivacyError(f"Expected one epsilon for each of {exposure.agents} agents, got {len(epsilon)}.")
    deltas = expect_deltas(delta, exposure.agents)
    noise = kind.closed_form_noise(write, analysis, epsilon, deltas)
    if noise is not None:
        return CalibratedNoise(noise)
    budget_excess = BudgetExcess(write, exposure, kind, epsilon=epsilon, delta=deltas, query=query)
    needs = exposure.sensitivity / budget_excess.target
    # If agents differ only in their position in the graph, all get the same noise, as in the paper.
    if shares is not None:
        search = Balance(shares, budget_excess.whole(shares))
    elif np.ptp(needs) <= 1e-12 * needs.max() and exposure.same_participation:
        search = Balance(needs, budget_excess.whole(needs))
    else:
        least = budget_excess.least()
        search = balance(budget_excess.ever_better(least), least, budget_excess.note)
    _expect_finite(search.excess, guarantee)
    factor = float(search.excess.max()) * ROUNDING_MARGIN
    deviation, view = budget_excess.certified(search.noise, factor)
    return CalibratedNoise(deviation, view if kind.on_request else None)


def _expect_finite(excess: Floats, guarantee: str) -> None:
    """Raise NotCovered if an excess is infinite (no amount of noise meets the budgets), or if all are 0
    (every amount does).
    """
    if not np.isfinite(excess).all():
        exposed = ", ".join(map(str, np.flatnonzero(~np.isfinite(excess))[:5]))
        raise NotCovered(
            f"No amount of noise gives a finite {guarantee} epsilon: agents {exposed} send rows without "
            "noise. Use alpha and own_share > 0, or the plain rule."
        )
    if excess.max() == 0:
        raise NotCovered(
            f"No agent reads rows of another agent in this plan, so there is no {guarantee} epsilon."
        )

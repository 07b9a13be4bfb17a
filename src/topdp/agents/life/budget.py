"""What an agent will have spent after its next release, known before it sends; and when it must stop.

ε at the federation's δ, of one agent, under the guarantee it charges by:

- `worst-case`: what all other agents together learn, from the releases this agent has made. Needs nothing of
  others: it holds whoever is late, dead, malicious or gone.
- `view`, `claimed`: from the plan in the manifest, before the first round: what the plan costs in the end if
  this agent's data enter rounds 0 .. r and no later ones. For `view` this counts all that observers read in
  *all* rounds, also after r, when others still pass on what this agent sent. Both hold for the plan as
  written. So they are charged by only where the rule is to wait for neighbours; and from the first departure
  from the plan that the agent sees (a neighbour that stopped or was quarantined), it charges by worst case.

**Guarantees.** `Cost.charge` brings the total to at least the ε so defined; adjacency and sensitivity are the
exposure's. Values between checkpoints are rounded up to the next one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from topdp.agents.books.ledger import Cost
from topdp.plan import Plan
from topdp.plan.arrays import Floats
from topdp.privacy.basics.checks import NotCovered, PrivacyError, PrivacyWarning
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.loss import GaussianLoss, sampled_loss
from topdp.privacy.observers import view
from topdp.privacy.observers.band_bounds import bracket_band
from topdp.privacy.observers.banded import bands
from topdp.privacy.observers.bounds import bracket
from topdp.privacy.observers.gram import grams
from topdp.privacy.observers.worst_case import information
from topdp.privacy.published import CALIBRATIONS
from topdp.privacy.published.claims import Analysis, noise_multipliers

CHECKPOINTS = 48  # rounds at which a curve is computed; between them the next one counts
SLACK = 1e-9  # relative: a calibrated plan meets its budget up to rounding


class BudgetError(ValueError):
    """A plan that this agent cannot take part in under any finite budget."""


@dataclass(frozen=True)
class Meter:
    """What the releases of one agent cost."""

    delta: float
    sensitivity: float
    period: int
    sampling: float | None  # the rate of Poisson batches
    planned: Floats  # [rounds] 1/z² of the agent's releases in the plan, at its sensitivity
    by_plan: Floats | None  # [rounds] ε under the guarantee of the plan; None: charges by worst case
    _known: dict[int, float] = field(default_factory=dict, repr=False)

    def worst_case(self, history: Sequence[tuple[int, float]]) -> float:
        """ε of the releases (round, 1/z²) if all others collude."""
        if not history:
            return 0.0
        if self.sampling is not None:
            places = _checkpoints(len(self.planned))
            return self._sampled(places[int(np.searchsorted(places, history[-1][0]))])
        classes = np.zeros(self.period)
        for round, value in history:
            classes[round % self.period] += value
        # μ² = Σ 1/z² over the rounds that use the record; arXiv:1905.02383, Corollary 3.3
        return GaussianLoss(math.sqrt(float(classes.max())) * (1 + 1e-14)).epsilon(self.delta)

    def _sampled(self, last: int) -> float:
        """ε of all planned releases up to round `last`; they are at least those that were made."""
        if last not in self._known:
            with np.errstate(divide="ignore"):
                z = 1 / np.sqrt(self.planned[: last + 1])
            assert self.sampling is not None
            self._known[last] = float(sampled_loss(z, self.sampling).epsilon(self.delta))
        return self._known[last]

    def cost(
        self,
        round: int,
        history: Sequence[tuple[int, float]],
        total: float,
        information: float,
        planned: bool,
    ) -> Cost:
        """What the release of `round` would cost an agent that has spent `total`.

        `history`: its releases so far. `planned` False: something has departed from the plan.
        """
        worst = self.worst_case([*history, (round, information)])
        after = worst if self.by_plan is None or not planned else float(self.by_plan[round])
        charge = max(0.0, after - total)
        while total + charge < after < math.inf:
            charge = math.nextafter(charge, math.inf)
        return Cost(charge, _finite(worst), _finite(information))


def allows(epsilon: float, total: float, cost: Cost) -> bool:
    """Whether an agent that has spent `total` may make the release: not when it would pass the budget."""
    return bool(total + cost.charge <= epsilon * (1 + SLACK))


def meter(
    plan: Plan, analysis: Analysis, agent: int, delta: float, guarantee: str, follows_plan: bool
) -> Meter:
    """The meter of `agent`; `follows_plan` False where neighbours may be gone on without."""
    exposure = analysis.exposure()
    how = exposure.batches[agent]
    sensitivity = float(exposure.sensitivity[agent])
    per_round = information(plan)[:, agent] * sensitivity**2
    if not np.isfinite(per_round).all():
        raise BudgetError(
            "Expected noise in every row that carries a gradient, got rows without: no finite charge covers "
            "them. Use a method with noise, and a budget or sigma for every agent."
        )
    by_plan = None
    if follows_plan and guarantee != "worst-case" and not how.sampled:
        by_plan = _view(plan, analysis, agent, delta) if guarantee == "view" else None
    if follows_plan and guarantee == "claimed":
        by_plan = _claimed(plan, analysis, agent, delta)
    sampling = how.rate if how.sampled else None
    return Meter(delta, sensitivity, how.period, sampling, per_round, by_plan)


def _view(plan: Plan, analysis: Analysis, agent: int, delta: float) -> Floats:
    """[rounds]: ε to the worst single observer, if the agent's data enter up to each round."""
    exposure = analysis.exposure()
    period = int(exposure.periods()[agent])
    places = _checkpoints(plan.releases)
    mu = np.zeros(len(places))
    for observer in range(plan.agents):
        if observer == agent:
            continue
        coalition = np.arange(plan.agents) == observer
        # u_r = 0 from the first round that the data do not enter: the leading block of M is all that counts.
        if plan.releases <= view.LONG:
            (M,) = grams(plan, coalition, np.array([agent]))
            upper = [bracket(M[: s + 1, : s + 1], period)[1] for s in places]
        else:
            (band,) = bands(plan, coalition, np.array([agent]))
            upper = [bracket_band(band.leading(s + 1), period)[1] for s in places]
        mu = np.maximum(mu, np.sqrt(upper) * exposure.sensitivity[agent])
    return _spread(np.asarray(epsilon_of(mu, delta)), places, plan.releases)


def _claimed(plan: Plan, analysis: Analysis, agent: int, delta: float) -> Floats:
    z = noise_multipliers(plan, analysis.exposure())[:, agent]
    rule, batches = CALIBRATIONS[analysis.calibration], analysis.batches[agent]
    places = _checkpoints(plan.releases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # said by the account at the start
        try:
            found = [rule.claim(z[: s + 1], delta, batches, analysis.adjacency) for s in places]
        except (PrivacyError, NotCovered) as error:
            raise BudgetError(
                f"The claimed guarantee of {analysis.calibration} has no cost by rounds: {error}"
            ) from error
    return _spread(np.array(found), places, plan.releases)


def _checkpoints(rounds: int) -> list[int]:
    """Rounds at which the curve is computed: the last one always."""
    return sorted({int(place) for place in np.linspace(0, rounds - 1, min(rounds, CHECKPOINTS))})


def _spread(values: Floats, places: list[int], rounds: int) -> Floats:
    """[rounds] from the values at `places`: a bound for more rounds also bounds fewer."""
    least = np.minimum.accumulate(values[::-1])[::-1]
    return np.asarray(least[np.searchsorted(places, np.arange(rounds))])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

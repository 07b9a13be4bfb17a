"""The spending curve of one owner: cumulative ε after each release, under each guarantee.

An owner that may stop early, or that chooses its partners during the run, computes its cost here before it
sends. The curves use the functions of the account, so the last value of a curve equals the account. Real
agents enforce the budgets.

- `worst-case`: the cost, against all other agents together, of the releases that the owner has made. It
  assumes nothing about other agents: it also holds if they are late, malicious or departed.
- `adaptive`, `view`, `claimed`: the final cost of the plan if the owner's data enter rounds 0 .. r and no
  later rounds. `adaptive` and `view` count all that observers read in *all* rounds, including rounds after r,
  in which other agents still pass on what the owner sent. They rely on the noise that the owner continues to
  add. All three hold only for the plan as written.

**Guarantees.** Every value is at least the ε so defined. Adjacency and sensitivity are those of the analysis.
The value of a release between two checkpoints is that of the later checkpoint. An infinite ε raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.plan.batches import Batches
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.basics.exposure import check
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, expect_delta
from topdp.privacy.observers.worst_case import composed, information
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import DEFAULT_QUERY, Query

# The number of releases at which a curve is computed (checkpoints). A release between two checkpoints gets
# the value of the later checkpoint.
CURVE_CHECKPOINTS = 48

# The releases that an owner has made, in order, as pairs (round, 1/z²).
ReleaseHistory = Sequence[tuple[int, float]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Spending:
    """The cost of the releases of one owner. `information` [releases]: 1/z² of each release of the plan.

    z is the noise multiplier of the release at the owner's sensitivity.

    >>> from topdp.privacy import Analysis, spending
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> spent = spending(plan, analysis, owner=0, delta=1e-5)
    >>> spent.information.round(2).tolist()
    [0.04, 0.15, 0.15, 0.15, 0.15, 0.15, 0.15, 0.15, 0.15, 0.15]
    >>> round(spent.worst_case([(0, 0.04), (1, 0.15)]), 2)
    1.71
    >>> round(spent.worst_case([(0, 0.04), (1, spent.release(rate=0.1, scale=0.1, std=2.0))]), 2)
    2.17
    """

    plan: Plan
    analysis: Analysis
    owner: int
    delta: float
    sensitivity: float  # of the owner's mean gradient, to one of its records
    information: Floats
    query: Query = DEFAULT_QUERY
    _worst_case_at: dict[int, float] = field(default_factory=dict, repr=False)  # ε by the last release

    @property
    def batches(self) -> Batches:
        return self.analysis.batches[self.owner]

    def curve(self, guarantee: str) -> Floats:
        """Return ε after each release of the plan [releases], if the owner's data enter no later release.

        Raise PrivacyError if an ε is infinite.
        """
        checkpoints = _checkpoints(self.plan.releases)
        values = np.asarray(guarantee_kind(guarantee).spending_curve(self, checkpoints))
        if not np.isfinite(values).all():
            raise PrivacyError(
                f"Expected a finite {guarantee} epsilon of agent {self.owner}, got an infinite one after "
                f"round {checkpoints[int(np.isinf(values).argmax())]}: noise does not hide what it sends."
            )
        # A bound for more releases is also a bound for fewer releases.
        least = np.minimum.accumulate(values[::-1])[::-1]
        return np.asarray(least[np.searchsorted(checkpoints, np.arange(self.plan.releases))])

    def worst_case(self, history: ReleaseHistory) -> float:
        """Return the ε of the releases in `history` if all other agents collude.

        The releases may differ from those of the plan. With Poisson samples, return the ε of the planned
        releases up to the first point of the spending curve (`checkpoint`) at or after the last release of
        `history`. They include the releases in `history`.
        """
        if not history:
            return 0.0
        rounds, values = np.array([round for round, _ in history]), [value for _, value in history]
        if self.batches.sampled:
            return self.planned_worst_case([self.checkpoint(int(rounds[-1]))])[0]
        per_round = np.zeros(int(rounds.max()) + 1)
        np.add.at(per_round, rounds, values)
        return self.composed(per_round)

    def release(self, rate: float, scale: float, std: float) -> float:
        """Return 1/z² of one release outside the plan, with step `rate` and noise of deviation `scale`·`std`.

        The noise must be the owner's own, from a fresh draw. Other noise that the row may carry does not
        count. Raise NotCovered for Poisson samples.
        """
        if self.batches.sampled:
            raise NotCovered(
                "Expected full or cyclic batches for a release outside the plan, got Poisson samples."
            )
        if rate == 0:
            return 0.0
        # 1/z² = (λ·Δ / (scale·std))²
        return (rate * self.sensitivity / (scale * std)) ** 2 if scale * std else float("inf")

    def checkpoint(self, round: int) -> int:
        """Return the first checkpoint at or after `round`."""
        checkpoints = _checkpoints(self.plan.releases)
        return checkpoints[int(np.searchsorted(checkpoints, round))]

    def composed(self, per_round: Floats) -> float:
        """Return the ε of several releases, each with fresh noise.

        `per_round` [releases]: 1/z² of each release, at the owner's sensitivity.
        """
        return composed(per_round, self.batches, self.analysis.adjacency).epsilon(self.delta)

    def planned_worst_case(self, releases: Sequence[int]) -> list[float]:
        """Return for each r in `releases` the ε of the planned releases 0 .. r, if all others collude."""
        for last in releases:
            if last not in self._worst_case_at:
                self._worst_case_at[last] = self.composed(self.information[: last + 1])
        return [self._worst_case_at[last] for last in releases]

    def amplified(self, mu: Floats, releases: Sequence[int]) -> Floats:
        """Return the ε of each value of `mu`; with Poisson samples, at most the worst-case ε of the releases.

        `releases`: the last release that each value of `mu` covers.
        """
        epsilon = epsilon_of(mu, self.delta)
        return np.minimum(epsilon, self.planned_worst_case(releases)) if self.batches.sampled else epsilon


def spending(
    plan: Plan, analysis: Analysis, owner: int, delta: float, query: Query = DEFAULT_QUERY
) -> Spending:
    """Return the cost of the releases of `owner` at δ = `delta`; raise PrivacyError if one has no noise.

    >>> from topdp.privacy import Analysis
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> spent = spending(plan, analysis, owner=0, delta=1e-5)
    >>> for guarantee in ("claimed", "view", "adaptive", "worst-case"):
    ...     print(guarantee, spent.curve(guarantee)[[0, 4, 9]].round(2).tolist())
    claimed [0.73, 1.76, 2.59]
    view [0.73, 2.04, 2.94]
    adaptive [0.73, 2.59, 3.72]
    worst-case [0.73, 3.35, 5.24]
    """
    exposure = analysis.exposure()
    check(plan, exposure)
    if not 0 <= owner < plan.agents:
        raise PrivacyError(f"Expected an owner between 0 and {plan.agents - 1}, got {owner}.")
    sensitivity = float(exposure.sensitivity[owner])
    per_release = information(plan)[:, owner] * sensitivity**2
    if not np.isfinite(per_release).all():
        raise PrivacyError(
            "Expected noise in every row that carries a gradient, got rows without noise, which no finite "
            "charge covers. Use a method with noise, and a budget or sigma for every agent."
        )
    return Spending(
        plan=plan,
        analysis=analysis,
        owner=owner,
        delta=expect_delta(delta),
        sensitivity=sensitivity,
        information=per_release,
        query=query,
    )


def _checkpoints(releases: int) -> list[int]:
    """Return the releases at which a curve is computed; the last release is one of them."""
    return sorted({int(at) for at in np.linspace(0, releases - 1, min(releases, CURVE_CHECKPOINTS))})

"""The view: the loss of each owner to an agent or a coalition, from all rows that the observer reads.

`worst_case` covers all other agents together. If estimates are public, the same numbers need no assumption on
gradients (`adaptive`).

**Guarantees.** Observer: a coalition J of one or more agents, honest but curious, with all rows that it
receives in all rounds, all rows that it makes, all that is `public`, its own draws and all draws that it
shares, its own data and gradients, and all random choices of the protocol. J does not know any other draw.
Assumed, unless estimates are public: gradients are fixed inputs. That is, a changed record changes its
owner's own gradients, and no later gradient of any agent reacts to that (exact for a linear loss). Adjacency
and sensitivity are those of the exposure.

What J sees is then Gaussian, O = A u + B z, and μ² = max uᵀMu with M = Aᵀ(BBᵀ)⁺A over the changes u that one
record can make. `upper` is never below this μ, and never above what all other agents together learn. `lower`
is the value that an aligned record reaches. Both are infinite if A is not in the range of B. Rounding, and
the part of long plans that is left out (less than a millionth of the largest μ of that observer), err on the
side of larger μ. `observer_filter` defines when a row counts as having no noise.

Without public estimates, one more thing is assumed: if all deviations are within a factor of
`MAX_TRUSTED_RANGE`, a row in which float64 finds no noise of its own is an exact function of other rows.

**Poisson samples.** Given the coins of the record, the record changes gradients in some rounds, by no more
than the sensitivity. So the μ of a record that is in every round is a bound for each result of the coins, and
also for their mixture (joint convexity of δ(ε)). This bound has no amplification. What all other agents
together learn, with amplification, is also a bound for every observer. The smaller of the two bounds counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from topdp.base.array_types import Bools, Floats, Ints
from topdp.plan import Plan
from topdp.privacy.basics.exposure import COVERED_NEEDS, Exposure, check, uncovered_reason
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.privacy_loss import GaussianLoss, Loss, SmallestLoss
from topdp.privacy.basics.refusals import PrivacyError, expect_deltas
from topdp.privacy.observers import view_effort
from topdp.privacy.observers._exact_gram import exact_bands
from topdp.privacy.observers._mu_bounds import bracket_band
from topdp.privacy.observers._parallel_map import cores, parallel_map
from topdp.privacy.observers._symmetry import symmetric_coalitions
from topdp.privacy.observers.gram_matrix import LONG_PLAN_RELEASES, Band, aligned, bands
from topdp.privacy.observers.observer_filter import Public, UncertifiedError, nonlinear_reason, seen_rows
from topdp.privacy.observers.worst_case import composed, every_round, every_round_mu, information
from topdp.privacy.query import UNHURRIED_QUERY, Query

Observer = int | Sequence[int]
# Which bound to compute. `aligned`: only the value of the aligned record. `quick`: a looser upper bound in
# about half the time, if there is one.
Bound = Literal["upper", "aligned", "quick"]


# The memory for the matrices M of one observer. Owners that do not fit are computed in several batches.
GRAM_MATRIX_BYTES = 1 << 29

# The memory for the matrices M of all observers that are computed in parallel.
ALL_GRAM_MATRICES_BYTES = 1 << 31

# The largest ratio of two deviations at which `view` trusts that a row without visible noise has none.
MAX_TRUSTED_RANGE = 100.0

# What is added to the length of each change where that is trusted. Rounding is about 1e-16 of the variance
# that was removed, so at most about 1e-16 · MAX_TRUSTED_RANGE² of the variance that is left.
TRUSTED_MARGIN = 1e-10


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """The loss of every owner to every observer, as bounds of μ [agents, observers].

    `upper`: a sound upper bound, or None if it was not requested. `lower`: the value of the aligned record,
    which changes all gradients in the same direction. They may differ if M has negative entries. Both are nan
    for an observer's own data and for owners that were not requested (`asked`). Upper bounds that cannot be
    the largest of an owner are not as tight as possible.

    For owners with Poisson samples, μ is that of a record that is in every round, and `samples` has a loss
    with amplification that bounds every observer. The smaller of the two counts.

    >>> from topdp.privacy import exposure, view
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> seen = view(plan, exposed, owners="all")
    >>> seen.worst().round(2).tolist()
    [0.71, 0.71, 0.71, 0.71, 0.73, 0.73]
    >>> round(seen.loss(owner=0, observer=3).epsilon(1e-5), 2)
    1.42
    """

    observers: tuple[tuple[int, ...], ...]
    lower: Floats  # [agents, observers]
    upper: Floats | None
    asked: Bools  # [agents, observers]
    samples: dict[int, Loss] = field(default_factory=dict)
    note: str = ""  # how the bound was computed, if observers were not computed one by one

    def loss(self, owner: int, observer: int) -> Loss:
        """Return the sound loss of one owner to one observer; `observer` is an index into `observers`."""
        if not self.asked[owner, observer]:
            raise PrivacyError(f"Expected a pair that was computed, got owner {owner}, observer {observer}.")
        gaussian = GaussianLoss(float(self._sound()[owner, observer]))
        return SmallestLoss((gaussian, self.samples[owner])) if owner in self.samples else gaussian

    def largest(self, owner: int) -> Loss:
        """Return the sound loss of one owner to the observer that learns most about it."""
        return self.loss(owner, self.sees_most(owner))

    def sees_most(self, owner: int) -> int:
        """Return the index of the observer that learns most about the owner."""
        return int(np.where(self.asked[owner], self._sound()[owner], -1.0).argmax())

    def epsilon(self, delta: ArrayLike) -> Floats:
        """Return the sound ε [agents, observers] at one δ or each agent's δ; it is nan if μ is nan."""
        deltas = expect_deltas(delta, len(self.asked))
        result = np.full(self.asked.shape, np.nan)
        owners = np.nonzero(self.asked)[0]
        result[self.asked] = epsilon_of(self._sound()[self.asked], deltas[owners])
        for owner, loss in self.samples.items():
            result[owner] = np.minimum(result[owner], loss.epsilon(float(deltas[owner])))
        return result

    def worst_epsilon(self, delta: ArrayLike) -> Floats:
        """Return the largest sound ε over the observers [agents]; this is faster than `epsilon`."""
        deltas = expect_deltas(delta, len(self.asked))
        epsilon = np.asarray(epsilon_of(self.worst(), deltas))
        for owner, loss in self.samples.items():
            epsilon[owner] = min(epsilon[owner], loss.epsilon(float(deltas[owner])))
        return epsilon

    def worst(self) -> Floats:
        """Return the largest sound μ over the observers [agents]; nan for owners that were not requested."""
        return np.where(self.asked.any(axis=1), np.where(self.asked, self._sound(), 0.0).max(axis=1), np.nan)

    def _sound(self) -> Floats:
        """Return `upper`; raise PrivacyError if it was not requested."""
        if self.upper is None:
            raise PrivacyError("Expected a view with upper bounds, got one computed with bound='aligned'.")
        return self.upper


def view(
    plan: Plan,
    exposure: Exposure,
    observers: Sequence[Observer] | None = None,
    owners: Literal["linked", "all"] | Sequence[int] = "linked",
    bound: Bound = "upper",
    query: Query = UNHURRIED_QUERY,
    public: Public = Public.NOTHING,
) -> View:
    """Return the loss of each owner to each observer.

    `observers`: agents, or coalitions as sequences of agents; by default every agent alone. `owners`: agents,
    or `linked`, the agents of which the observer sees some row, or `all`, all agents outside the coalition.
    `bound`: `aligned` computes only the lower value, for all owners at once and many times faster; `quick` is
    the same as `upper` here. `query`: unless it allows slow answers, plans that take very long are refused;
    its number of colluders is not used. `public`: what every observer can read in addition.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> view(plan, exposed, observers=[1, (1, 5)], owners=[0]).epsilon(1e-5)[0].round(2).tolist()
    [2.91, 4.68]
    """
    check(plan, exposure)
    if bound not in get_args(Bound):
        raise PrivacyError(f"Expected bound to be one of {', '.join(get_args(Bound))}, got {bound!r}.")
    bound = "upper" if bound == "quick" else bound
    view_effort.expect_affordable(plan, query, None if observers is None else len(observers), public)
    outsiders = public is not Public.NOTHING
    members = tuple(
        _members(J, plan.agents, outsiders) for J in (range(plan.agents) if observers is None else observers)
    )
    coalitions = [np.isin(np.arange(plan.agents), J) for J in members]
    asked = np.zeros((plan.agents, len(members)), bool)
    for o, coalition in enumerate(coalitions):
        asked[:, o] = _owners(plan, coalition, owners, public)
    upper = np.full(asked.shape, np.nan)
    period, sensitivity = exposure.periods(), exposure.sensitivity
    wanted = [np.flatnonzero(asked[:, o]) for o in range(len(members))]
    reached = np.zeros(asked.shape)  # μ² at unit sensitivity of aligned records
    per_release = information(plan)
    # No observer learns more than all other agents together, who see all rows of an owner.
    ceiling = every_round_mu(per_release, period) * sensitivity
    same = symmetric_coalitions(plan, exposure, members) if isinstance(owners, str) else {}
    first = [o for o in range(len(members)) if o not in same]

    def sums(o: int) -> list[Floats]:
        """Return for each owner the μ² of aligned records to observer o, one for each residue class."""
        return aligned(plan, coalitions[o], wanted[o], period, public)

    def brackets(o: int) -> list[tuple[float, float]]:
        """Return for each owner the bounds (lower, upper) of μ² to observer o."""
        matrices = _matrices(plan, coalitions[o], wanted[o], query, public)
        return [bracket_band(M, int(period[i]), float(largest[i])) for i, M in matrices]

    for done, (o, squares) in enumerate(zip(first, parallel_map(sums, first), strict=True), 1):
        reached[wanted[o], o] = [classes.max() for classes in squares]
        # Upper bounds need a second pass over all observers. Each pass counts for half of them.
        counted = done if bound == "aligned" else done // 2
        query.progress("accounting", counted, len(first), unit="observer")
    _relabelled(same, reached)
    lower = np.where(asked, np.minimum(sensitivity[:, None] * np.sqrt(reached), ceiling[:, None]), np.nan)
    largest = reached.max(axis=1)
    looked = first if bound == "upper" else []
    each = 8 * plan.agents * plan.releases * min(plan.releases, LONG_PLAN_RELEASES // 2)
    workers = min(cores(), max(1, ALL_GRAM_MATRICES_BYTES // min(GRAM_MATRIX_BYTES, each)))
    for done, (o, pairs) in enumerate(zip(looked, parallel_map(brackets, looked, workers), strict=True), 1):
        low, high = sensitivity[wanted[o]] * np.sqrt(np.array(pairs).reshape(-1, 2)).T
        lower[wanted[o], o] = np.minimum(low, ceiling[wanted[o]])
        upper[wanted[o], o] = np.minimum(np.maximum(high, low), ceiling[wanted[o]])
        query.progress("accounting", (len(first) + done) // 2, len(first), unit="observer")
    _relabelled(same, lower, upper)
    return View(
        observers=members,
        lower=lower,
        upper=upper if bound == "upper" else None,
        asked=asked,
        samples=amplified(exposure, per_release),
    )


def _relabelled(same: dict[int, tuple[int, Ints]], *arrays: Floats) -> None:
    """Copy `values` [agents, observers] to observers that see the same up to a relabelling of the agents.

    `same`: the result of `symmetric_coalitions`.
    """
    for at, (first, turn) in same.items():
        for values in arrays:
            values[turn, at] = values[:, first]


def view_reason(plan: Plan) -> str | None:
    """Return None, or the reason why no view covers the plan.

    Pruned plans, plans that are not linear, and plans with negative weights are not covered. With negative
    weights the bounds on rounding grow until the view is infinite, only because of rounding.
    """
    reason = uncovered_reason(plan, COVERED_NEEDS) or nonlinear_reason(plan)
    negative = np.where(plan.weight.values < 0, -plan.weight.values, 0.0).sum(axis=-1)
    if reason is None and (negative > 1e-9).any():
        return (
            "Not covered: negative weights. The view bounds rounding in every mix, and accelerated "
            "averaging and momentum make that bound grow without limit. Use guarantee='adaptive', or "
            "method.chebyshev=false and train.optimiser='sgd'."
        )
    return reason


def amplified(exposure: Exposure, per_release: Floats) -> dict[int, Loss]:
    """Return the loss with amplification of each owner that has Poisson samples, by its number.

    `per_release` [releases, agents]: 1/z² of each release at unit sensitivity, or an upper bound on it.
    """
    return {
        i: composed(per_release[:, i], batches, exposure.adjacency, float(exposure.sensitivity[i]))
        for i, batches in enumerate(exposure.batches)
        if batches.sampled
    }


def leading_view(
    plan: Plan,
    exposure: Exposure,
    owner: int,
    last: Sequence[int],
    query: Query,
    observers: Sequence[Observer] | None = None,
    public: Public = Public.NOTHING,
) -> Floats:
    """Return for each r in `last` a sound μ of `owner` to the worst observer [len(last)].

    It is the μ if the owner's data enter no round after r. The observers (by default every other agent alone)
    read all rounds of the plan nevertheless. Poisson samples count as if the record were in every round.
    """
    check(plan, exposure)
    if observers is None:
        observers = [j for j in range(plan.agents) if j != owner]
    view_effort.expect_affordable(plan, query, len(observers), public, owners=1)
    period = int(exposure.periods()[owner])
    sensitivity = exposure.sensitivity[owner]
    worst = np.zeros(len(last))
    with threadpool_limits(1, "blas"):
        for J in observers:
            members = _members(J, plan.agents, public is not Public.NOTHING)
            coalition = np.isin(np.arange(plan.agents), members)
            for _, M in _matrices(plan, coalition, np.array([owner]), UNHURRIED_QUERY, public):
                # u_r = 0 in all rounds without the data, so only the leading block of M counts.
                upper = [bracket_band(M.leading(r + 1), period)[1] for r in last]
                worst = np.maximum(worst, np.sqrt(upper) * sensitivity)
    per_release = information(plan)[:, owner]
    ceiling = np.array([every_round(per_release[: r + 1], period) for r in last]) * sensitivity
    return np.asarray(np.minimum(worst, ceiling))


def _matrices(
    plan: Plan, coalition: Bools, owners: Ints, query: Query, public: Public
) -> Iterator[tuple[int, Band]]:
    """Yield each owner and the band of its M, which is all of M unless the plan is long.

    Owners are computed in batches that fit into GRAM_MATRIX_BYTES. Where rounding cannot be bounded in
    float64, a small plan is computed in ball arithmetic. If that fails too, nothing is certain but what all
    other agents together learn: the band is then infinite.
    """
    long = plan.releases > LONG_PLAN_RELEASES
    entries = plan.releases * LONG_PLAN_RELEASES // 2 if long else plan.releases**2
    step = max(1, GRAM_MATRIX_BYTES // (8 * entries))
    widest = None if query.allow_slow else view_effort.MAX_FOLLOWED_ROUNDS
    for start in range(0, len(owners), step):
        part = owners[start : start + step]

        def filtered(trust: bool, part: Ints = part) -> list[Band]:
            return list(
                bands(plan, coalition, part, public, widest=widest, whole=not long, trust_null_rows=trust)
            )

        certain: list[Band] | None = None
        try:
            certain = filtered(trust=False)
        except UncertifiedError:
            if public is Public.NOTHING and null_rows_are_exact(plan):
                certain = [_with_margin(band) for band in filtered(trust=True)]
        # An infinite or large bound on rounding is due to the method.
        if certain is None or any(band.costly for band in certain):
            certain = exact_bands(plan, coalition, part, public) or certain
        if certain is None:
            R = plan.releases
            certain = [Band(np.full((R, 1), np.inf), np.zeros(R), np.ones(R, bool)) for _ in part]
        yield from zip(part.tolist(), certain, strict=True)


def _with_margin(band: Band) -> Band:
    """Return the band with a margin for rounding that is not bounded."""
    return replace(band, rest=band.rest + TRUSTED_MARGIN * np.sqrt(np.maximum(band.values[:, 0], 0.0)))


def null_rows_are_exact(plan: Plan) -> bool:
    """Return whether a row without visible noise has no noise at all.

    It is so where deviations differ little, and where no weight is so small that it hides noise in rounding.
    """
    weights = np.abs(plan.weight.values[plan.weight.values != 0])
    if weights.min(initial=np.inf) * MAX_TRUSTED_RANGE < min(1.0, weights.max(initial=0.0)):
        return False
    noise = np.abs(plan.std.values)
    largest = noise.max(axis=(1, 2), initial=0.0)[plan.std.which]
    smallest = np.where(noise > 0, noise, np.inf).min(axis=(1, 2), initial=np.inf)[plan.std.which]
    added = (plan.scale > 0) & (largest > 0)
    if not added.any():
        return True
    scale = plan.scale[added]
    return bool((largest[added] * scale).max() <= MAX_TRUSTED_RANGE * (smallest[added] * scale).min())


def _members(observer: Observer, agents: int, outsider: bool = False) -> tuple[int, ...]:
    """Return the agents of `observer`, sorted. Raise PrivacyError if they are no agents of the plan.

    `outsider`: whether the observer may have no agents.
    """
    try:
        J = tuple(sorted({int(j) for j in (observer if isinstance(observer, Sequence) else [observer])}))
    except (TypeError, ValueError):
        raise PrivacyError(f"Expected one or more agents, got {observer!r}.") from None
    if outsider and not J:
        return J
    if not J or J[0] < 0 or J[-1] >= agents:
        raise PrivacyError(f"Expected observers between 0 and {agents - 1}, got {observer!r}.")
    return J


def _owners(plan: Plan, coalition: Bools, owners: str | Sequence[int], public: Public) -> Bools:
    """Return which agents outside `coalition` are `owners` (as in `view`), as Booleans [agents]."""
    chosen = np.zeros(plan.agents, bool)
    if isinstance(owners, str):
        if owners not in ("linked", "all"):
            raise PrivacyError(f"Expected owners to be 'linked', 'all' or agents, got {owners!r}.")
        if owners == "all":
            chosen[:] = True
        else:
            chosen[plan.owner[seen_rows(plan, coalition, public).any(axis=0)]] = True
    elif len(owners):
        chosen[list(_members(owners, plan.agents))] = True
    return chosen & ~coalition

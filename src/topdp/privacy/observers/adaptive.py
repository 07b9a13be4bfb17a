"""The loss to coalitions that also read every agent's estimate, without assumptions on gradients.

An agent's gradient is taken at its estimate, so an observer that sees all estimates knows where all gradients
are taken. In two neighbouring data sets, the gradients of the other agents are the same functions of these
estimates. They therefore carry nothing more about the owner's record. docs/privacy.md has the statement and
the proof.

**Guarantees.** Observers: every coalition of `colluders` agents (which covers all smaller coalitions), with
all that `view` gives them and every agent's estimate of every round. **No assumption on gradients, models or
losses**: they may depend on all that was released before, and colluders may send whatever they like.
Required: a gradient reads its agent's own estimates, its own data, and randomness that no noise depends on.
One record changes the gradient by at most the sensitivity, in the rounds of its batches, whatever came
before. Partners, order and stops do not depend on data. Adjacency and sensitivity are those of the exposure.
`upper` is a certified bound on the exact μ; if every row is seen, it is exact. An estimate that is never sent
also counts as seen, so if it has no noise of its own, the answer is infinite.

With a robust rule (`Plan.robust`), rows are not sums of rows. Then every row counts as seen, whether or not
it is sent. A round reveals only the gradient and the noise that it adds, whatever function of earlier rows
they are added to.

With rounding (`Plan.rounded`), rows are functions of sums. If every row is seen, rounding is post-processing
of a release with noise, and the answer holds. If a row is hidden from some observer, the plan is refused.

The observer of `outsider` reads every link and every estimate, and knows no agent's draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topdp.base.array_types import Floats
from topdp.base.rounding import gamma
from topdp.plan import Capability, Plan
from topdp.privacy.basics.exposure import COVERED_NEEDS, Exposure, check, uncovered_reason
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, expect_supported
from topdp.privacy.observers import shared_noise, view_effort
from topdp.privacy.observers._estimate_readers import estimate_readers
from topdp.privacy.observers._neighbourhoods import affordable_ball_rows, neighbourhood_bound
from topdp.privacy.observers._reader_layout import RowFlow, UnsuitedError
from topdp.privacy.observers.observer_filter import Public, nonlinear_reason, seen_rows
from topdp.privacy.observers.shared_noise import Coalition, NoisyReleases
from topdp.privacy.observers.view import Bound, View, amplified, leading_view, view
from topdp.privacy.observers.worst_case import (
    INFORMATION_ROUNDINGS,
    all_draws_count,
    every_round,
    every_round_mu,
    information,
)
from topdp.privacy.query import DEFAULT_QUERY, Query

# The most work if slow answers are allowed: about two hours on one core. Otherwise a bound is computed.
MAX_SLOW_WORK = 60 * view_effort.MAX_UNASKED_WORK

# The most coalitions that are computed one by one unless slow answers are allowed.
MAX_UNASKED_COALITIONS = 2000


def adaptive(plan: Plan, exposure: Exposure, query: Query = DEFAULT_QUERY, bound: Bound = "upper") -> View:
    """Return the loss of each owner to every coalition of `query.colluders` agents that reads all estimates.

    With 0 colluders, the observer reads only estimates. `bound`: which bound to compute, as in `view`. Raise
    NotCovered if the answer does not cover the plan, or would take too long.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> adaptive(plan, exposure(6, sensitivity=1.0)).worst().round(2).tolist()
    [0.87, 0.87, 0.86, 0.86, 0.86, 0.86]
    """
    check(plan, exposure)
    expect_colluders(query.colluders, plan.agents)
    expect_supported(adaptive_reason(plan, Public.ESTIMATES, query.colluders))
    if in_the_open(plan):
        return _by_coalitions(plan, exposure, query)
    bounded = _neighbourhood_bound(plan, exposure, query, bound)
    if bounded is not None:
        return bounded
    return _seen_by(plan, exposure, Public.ESTIMATES, _coalitions(plan, query), query, bound)


def outsider(plan: Plan, exposure: Exposure, query: Query = DEFAULT_QUERY) -> View:
    """Return the loss of each owner to an outsider, which reads every link and estimate, but knows no draw.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> outsider(plan, exposure(6, sensitivity=1.0)).worst().round(2).tolist()
    [1.17, 1.17, 1.17, 1.17, 1.17, 1.17]
    """
    check(plan, exposure)
    expect_supported(adaptive_reason(plan, Public.LINKS, 0))
    return _seen_by(plan, exposure, Public.LINKS, [()], query)


def leading_adaptive(
    plan: Plan, exposure: Exposure, owner: int, last: Sequence[int], query: Query = DEFAULT_QUERY
) -> tuple[Floats, Floats]:
    """Return for each r in `last` a sound μ of `owner` if its data enter no round after r, and 1/z².

    The first result [len(last)] is the μ to the worst coalition. It treats Poisson samples as if the record
    were in every round. The second result [releases] is used for their amplification: it is 1/z² of each
    release at unit sensitivity, to the observer that sees all rows of the release and learns most.
    """
    check(plan, exposure)
    expect_colluders(query.colluders, plan.agents)
    public = Public.ESTIMATES
    expect_supported(adaptive_reason(plan, public, query.colluders))
    period, sensitivity = int(exposure.periods()[owner]), float(exposure.sensitivity[owner])
    if in_the_open(plan):
        noisy, _, units = _units(plan, query)
        worst = [_every_round(noisy, units[:, :, owner], period, r).max(initial=0.0) for r in last]
        return np.array(worst) * sensitivity, _each_release(noisy, units)[:, owner]
    coalitions = [J for J in _coalitions(plan, query) if owner not in J]
    per_release = information(plan)[:, owner]
    if not _all_seen(plan, public, coalitions):
        return leading_view(plan, exposure, owner, last, query, coalitions, public), per_release
    mu = np.array([every_round(per_release[: r + 1], period) for r in last]) * sensitivity
    return mu, per_release


def has_short_form(plan: Plan, public: Public, colluders: int) -> bool:
    """Return whether the answer is immediate, because observers that read the `public` rows see all rows."""
    if not plan.std.values.any() or _all_seen(plan, public, [()]):
        return True
    if public is Public.LINKS:
        return False
    few = math.comb(plan.agents, colluders) <= plan.agents
    return few and _all_seen(plan, public, list(itertools.combinations(range(plan.agents), colluders)))


def adaptive_reason(plan: Plan, public: Public, colluders: int) -> str | None:
    """Return None, or the reason why no answer covers the plan, such as hidden rows that are rounded."""
    reason = uncovered_reason(plan, COVERED_NEEDS)
    if reason is None and Capability.ROUNDED_ROWS in plan.needs:
        return None if has_short_form(plan, public, colluders) else nonlinear_reason(plan)
    return reason


def in_the_open(plan: Plan) -> bool:
    """Return whether draws are shared and every row counts as seen, so that releases compose one by one."""
    noisy = bool(plan.std.values.any())
    return noisy and not all_draws_count(plan) and _all_seen(plan, Public.ESTIMATES, [()])


def most_learned(plan: Plan, query: Query = DEFAULT_QUERY) -> Floats:
    """Return 1/z² of each release, at sensitivity 1, to the coalition that learns most [releases, agents].

    The plan must be `in_the_open`, so that releases compose. A row that is missing, or that mixes other rows
    than the plan states, reveals no more, because rows are sums of rows that were seen and of fresh noise.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.ones(2), noise=np.ones(2))
    >>> protocol = topdp.protocols.Correlated(secrets="all", pair_noise=3.0, gossip=1)
    >>> plan = protocol.plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> most_learned(plan)[:, 0].round(3).tolist()  # pair noise hides two thirds
    [0.357, 0.0, 0.357, 0.0]
    """
    expect_colluders(query.colluders, plan.agents)
    noisy, _, units = _units(plan, query)
    return _each_release(noisy, units)


def expect_colluders(colluders: int, agents: int) -> None:
    """Raise PrivacyError unless `colluders` is a number of agents that leaves at least one agent outside."""
    if isinstance(colluders, bool) or not isinstance(colluders, int) or not 0 <= colluders < agents:
        raise PrivacyError(
            f"Expected privacy.colluders from 0 to {agents - 1} for {agents} agents, got {colluders!r}."
        )


def _coalitions(plan: Plan, query: Query) -> list[Coalition]:
    """Return all coalitions of `query.colluders` agents, or one for each agent if all learn the same.

    Raise NotCovered if there are too many.
    """
    n, colluders = plan.agents, query.colluders
    possible = math.comb(n, colluders)
    if possible > n and all_draws_count(plan) and _all_seen(plan, Public.ESTIMATES, [()]):
        return [tuple(sorted((first + k) % n for k in range(colluders))) for first in range(n)]
    if possible > MAX_UNASKED_COALITIONS and not query.allow_slow:
        raise NotCovered(
            f"{colluders} of {n} agents can collude in {possible} ways, and to compute each would take very "
            "long. Use fewer colluders, guarantee='worst-case', which covers any number, or "
            "privacy.allow_slow=true."
        )
    return list(itertools.combinations(range(n), colluders))


def _neighbourhood_bound(plan: Plan, exposure: Exposure, query: Query, bound: Bound) -> View | None:
    """Return the bound by neighbourhoods, or None if it is not needed or does not support the plan.

    It is needed if it takes too long to compute every coalition.
    """
    possible = math.comb(plan.agents, query.colluders)
    work = view_effort.reader_work(plan, possible)
    few = possible <= MAX_UNASKED_COALITIONS and work <= view_effort.MAX_UNASKED_WORK
    if few or not plan.std.values.any() or _all_seen(plan, Public.ESTIMATES, [()]):
        return None
    if query.allow_slow and work <= MAX_SLOW_WORK:
        return None
    try:
        flow = RowFlow(plan)
        room = affordable_ball_rows(flow, query)
        view = neighbourhood_bound(flow, exposure, query, room=room)
    except UnsuitedError:
        return None
    # In the search for noise, the bound itself replaces the values of aligned records.
    if bound != "aligned" or view.upper is None:
        return view
    return replace(view, lower=view.upper, upper=None)


def _seen_by(
    plan: Plan,
    exposure: Exposure,
    public: Public,
    coalitions: list[Coalition],
    query: Query,
    bound: Bound = "upper",
) -> View:
    """Return the loss of each owner to each of `coalitions`, which also read the `public` rows."""
    noiseless = not plan.std.values.any()  # if so, estimates reveal everything
    if not noiseless and not _all_seen(plan, public, coalitions):
        if public is Public.ESTIMATES:
            try:
                return estimate_readers(RowFlow(plan), exposure, coalitions, bound, query)
            except UnsuitedError:
                pass
        return view(plan, exposure, coalitions, "all", bound, query, public)
    if not all_draws_count(plan):
        noisy = shared_noise.noisy_releases(plan)
        units = shared_noise.information_of(plan, noisy, coalitions)
        return _composed(plan, exposure, noisy, coalitions, units)
    # All noise is own noise of the owner, so all observers learn the same.
    per_release = information(plan)
    each = every_round_mu(per_release, exposure.periods())
    mu = np.repeat((each * exposure.sensitivity)[:, None], len(coalitions), axis=1)
    query.progress("accounting", len(coalitions), len(coalitions), unit="observer")
    return _exact_view(exposure, coalitions, mu, per_release)


def _exact_view(exposure: Exposure, coalitions: list[Coalition], mu: Floats, per_release: Floats) -> View:
    """Return the view with the exact losses `mu` [agents, coalitions] of agents outside each coalition."""
    for o, J in enumerate(coalitions):
        mu[list(J), o] = np.nan
    samples, asked = amplified(exposure, per_release), ~np.isnan(mu)
    return View(observers=tuple(coalitions), lower=mu, upper=mu, asked=asked, samples=samples)


def _by_coalitions(plan: Plan, exposure: Exposure, query: Query) -> View:
    """Return the view of a plan with shared draws whose rows are all seen, computed for each coalition."""
    noisy, coalitions, units = _units(plan, query)
    if coalitions is not None:
        return _composed(plan, exposure, noisy, coalitions, units)
    note = (
        f"The {math.comb(plan.agents, query.colluders)} coalitions of {query.colluders} agents are bounded "
        "together, by how well secrets are connected; privacy.allow_slow=true computes each, and needs less "
        "noise."
    )
    return replace(_composed(plan, exposure, noisy, [()], units), note=note)


def _units(plan: Plan, query: Query) -> tuple[NoisyReleases, list[Coalition] | None, Floats]:
    """Return the releases, the coalitions, and 1/z² [patterns, coalitions, agents] at unit sensitivity.

    1/z² is 0 for members of the coalition. If there are too many coalitions to compute each, the second
    result is None, and the third is one bound [patterns, 1, agents] for all coalitions. Raise NotCovered if
    there is no such bound.
    """
    noisy = shared_noise.noisy_releases(plan)
    coalitions = shared_noise.worst_coalitions(plan, noisy, query)
    if coalitions is not None:
        return noisy, coalitions, shared_noise.information_of(plan, noisy, coalitions)
    units = shared_noise.connectivity_bound(plan, noisy, query.colluders)
    if units is None:
        raise NotCovered(
            f"{query.colluders} of {plan.agents} agents can collude in "
            f"{math.comb(plan.agents, query.colluders)} ways, which would take very long, and the secrets "
            'are connected too weakly for a bound. Use a larger secrets_degree, secrets = "all", fewer '
            "colluders, or privacy.allow_slow=true."
        )
    return noisy, None, units


def _composed(
    plan: Plan, exposure: Exposure, noisy: NoisyReleases, coalitions: list[Coalition], units: Floats
) -> View:
    """Return the view that composes the releases of a plan for every owner and coalition.

    `units` [kinds, coalitions, agents]: 1/z² of each kind of release, at unit sensitivity.
    """
    mu = np.zeros((plan.agents, len(coalitions)))
    ceiling = every_round_mu(information(plan), exposure.periods())  # the loss to all others together
    for i, period in enumerate(exposure.periods().tolist()):
        mu[i] = np.minimum(_every_round(noisy, units[:, :, i], period), ceiling[i]) * exposure.sensitivity[i]
    return _exact_view(exposure, coalitions, mu, _each_release(noisy, units))


def _each_release(noisy: NoisyReleases, units: Floats) -> Floats:
    """Return 1/z² at unit sensitivity to the worst coalition of each release [releases, agents]."""
    without_gradient = np.zeros((1, units.shape[2]))
    largest = np.concatenate([units.max(axis=1), without_gradient])
    with np.errstate(invalid="ignore"):
        return np.where(largest[noisy.which] > 0, largest[noisy.which] * noisy.ratio[:, None], 0.0)


def _every_round(noisy: NoisyReleases, units: Floats, period: int, last: int | None = None) -> Floats:
    """Return μ at unit sensitivity of the worst record that is used once in `period` rounds [coalitions].

    `units` [kinds, coalitions]: 1/z² of each kind of release. `last`: the last release that counts; None:
    all.
    """
    stop = len(noisy.which) if last is None else last + 1
    worst = np.zeros(units.shape[1])
    for s in range(min(period, stop)):
        which, ratio = noisy.which[s:stop:period], noisy.ratio[s:stop:period]
        total = np.zeros(units.shape[1])
        for kind in range(len(noisy.kinds)):
            weight = math.fsum(ratio[which == kind])
            with np.errstate(invalid="ignore"):
                total += np.where((units[kind] > 0) & (weight > 0), units[kind] * weight, 0.0)
        worst = np.maximum(worst, total)
    # μ² = Σ_r 1/z_r² over the rounds that use the record; arXiv:1905.02383, Corollary 3.3
    return np.sqrt(worst) * (1 + gamma(len(noisy.kinds) + INFORMATION_ROUNDINGS))


def _all_seen(plan: Plan, public: Public, coalitions: Sequence[Coalition]) -> bool:
    """Return whether each of `coalitions` sees every row that is made."""
    if Capability.ROBUST_MIXING in plan.needs:  # such rows are not linear, and always count as seen
        return True
    others = plan.exists & ~plan.memories  # memory rows follow from the estimates
    if public is not Public.NOTHING and not others[:, plan.agents :].any():
        return True
    marked = (np.isin(np.arange(plan.agents), J) for J in coalitions)
    return all((seen_rows(plan, members, public) == plan.exists).all() for members in marked)

"""What coalitions learn whatever gradients do: the view of those who can also read every agent's estimate.

An agent's gradient is taken at its estimate. Who sees all estimates, as they come, knows where all gradients
are taken; so the others' gradients, which are the same functions in both of two neighbouring worlds, are no
secret carriers of the owner's record any more. docs/privacy.md has the statement and the proof.

**Guarantees.** Observers: every coalition of `colluders` agents (which covers all smaller ones), with all
that `view` gives them and every agent's estimate of every round. **No assumption on gradients, models or
losses**: they may depend on all that was released before, and colluders may send whatever they like. What is
needed: a gradient reads its agent's own estimates, its own data, and randomness that no noise depends on; one
record changes it by at most the sensitivity, in the rounds of its batches, whatever came before; partners,
order and stops do not depend on data. Adjacency and sensitivity are the exposure's. `upper` is a certified
bound on the exact μ; where every row is seen it is exact. An estimate that is never sent counts as seen all
the same: without noise of its own the answer is infinite.

`outsider` is somebody who reads every link and every estimate, but knows nobody's draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from topdp.plan import Plan
from topdp.plan.arrays import Bools, Floats, Ints
from topdp.privacy.basics.checks import NotCovered, PrivacyError
from topdp.privacy.basics.exposure import Exposure, check
from topdp.privacy.observers.effort import WIDEST, expect_bearable
from topdp.privacy.observers.filtering import Public, seen_rows, unknown_draws, whiten
from topdp.privacy.observers.view import Bound, Progress, View, amplified, leading_view, view
from topdp.privacy.observers.worst_case import ROUNDING, all_draws_count, every_round, information

Coalition = tuple[int, ...]

COALITIONS = 2000
"""More coalitions than these are not looked at one by one unless the user is patient."""


def adaptive(
    plan: Plan,
    exposure: Exposure,
    colluders: int = 1,
    progress: Progress | None = None,
    patient: bool = False,
    bound: Bound = "upper",
) -> View:
    """The loss of each owner to every coalition of so many agents who can read all estimates.

    0 colluders: somebody who reads estimates alone. `progress(done, total)` is called after each coalition.
    `patient`: also where that takes very long. `bound`: as in `view`.

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
    coalitions = _coalitions(plan, Public.ESTIMATES, colluders, patient)
    return _seen_by(plan, exposure, Public.ESTIMATES, coalitions, progress, patient, bound)


def outsider(plan: Plan, exposure: Exposure, progress: Progress | None = None, patient: bool = False) -> View:
    """The loss of each owner to one who reads every link and every estimate and knows no draw.

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
    return _seen_by(plan, exposure, Public.LINKS, [()], progress, patient)


def leading_adaptive(
    plan: Plan, exposure: Exposure, owner: int, last: Sequence[int], colluders: int = 1, patient: bool = False
) -> Floats:
    """[len(last)]: the sound μ of `owner` to the worst coalition, if its data enter up to round `last`.

    Poisson samples count as if the record were in every round.
    """
    check(plan, exposure)
    public = Public.ESTIMATES
    coalitions = [J for J in _coalitions(plan, public, colluders, patient) if owner not in J]
    if not _all_seen(plan, public, coalitions):
        expect_bearable(plan, patient, len(coalitions), public, owners=1)
        return leading_view(plan, exposure, owner, last, coalitions, public)
    period, sensitivity = int(exposure.periods()[owner]), float(exposure.sensitivity[owner])
    found = [
        [every_round(per_release[: r + 1, owner], period) for r in last]
        for per_release in _per_release(plan, coalitions)
    ]
    return np.asarray(np.max(found, axis=0) * sensitivity)


def expect_colluders(colluders: int, agents: int) -> None:
    """Refuses more colluders than leave somebody to protect."""
    if isinstance(colluders, bool) or not isinstance(colluders, int) or not 0 <= colluders < agents:
        raise PrivacyError(
            f"Expected privacy.colluders from 0 to {agents - 1}, since there are {agents} agents, got "
            f"{colluders!r}."
        )


def _coalitions(plan: Plan, public: Public, colluders: int, patient: bool) -> list[Coalition]:
    """All of them; or one around each agent where all coalitions learn the same."""
    expect_colluders(colluders, plan.agents)
    n, possible = plan.agents, math.comb(plan.agents, colluders)
    if possible > n and all_draws_count(plan) and _all_seen(plan, public, [()]):
        return [tuple(sorted((first + k) % n for k in range(colluders))) for first in range(n)]
    if possible > COALITIONS and not patient:
        raise NotCovered(
            f"{colluders} of {n} agents can collude in {possible} ways, which are not all looked at unasked. "
            "Take fewer colluders, guarantee='worst-case', which covers any number, or privacy.patient=true."
        )
    return list(itertools.combinations(range(n), colluders))


def _seen_by(
    plan: Plan,
    exposure: Exposure,
    public: Public,
    coalitions: list[Coalition],
    progress: Progress | None,
    patient: bool,
    bound: Bound = "upper",
) -> View:
    noiseless = not plan.std.values.any()  # then estimates tell all, whoever reads what
    if not noiseless and not _all_seen(plan, public, coalitions):
        expect_bearable(plan, patient, len(coalitions), public)
        widest = None if patient else WIDEST
        return view(plan, exposure, coalitions, "all", bound, progress, widest, public)
    mu = np.full((plan.agents, len(coalitions)), np.nan)
    most = np.zeros((plan.releases, plan.agents))
    periods, before = exposure.periods(), None
    for o, (J, per_release) in enumerate(zip(coalitions, _per_release(plan, coalitions), strict=True)):
        if per_release is not before:
            each = np.array([every_round(per_release[:, i], periods[i]) for i in range(plan.agents)])
            before = per_release
            most = np.maximum(most, per_release)
        mu[:, o] = each * exposure.sensitivity
        mu[list(J), o] = np.nan
        if progress is not None:
            progress(o + 1, len(coalitions))
    asked = ~np.isnan(mu)
    return View(tuple(coalitions), mu, mu, asked, amplified(exposure, most))


def _all_seen(plan: Plan, public: Public, coalitions: Sequence[Coalition]) -> bool:
    """Whether each of them sees every row that is made."""
    if public is Public.ESTIMATES and not plan.exists[:, plan.agents :].any():
        return True
    return all((seen_rows(plan, _marked(plan, J), public) == plan.exists).all() for J in coalitions)


def _per_release(plan: Plan, coalitions: Sequence[Coalition]) -> Iterator[Floats]:
    """[releases, agents] for each coalition that sees every row: 1/z² of the releases, at unit sensitivity.

    Given the rows of the round before, a round is one Gaussian release of each owner's gradient, in all of
    its rows: no round depends on the noise of another, and M is diagonal.
    """
    alike = information(plan) if all_draws_count(plan) else None
    for J in coalitions:
        yield _short(plan, _marked(plan, J)) if alike is None else alike


def _short(plan: Plan, coalition: Bools) -> Floats:
    # 1/z_t² = sᵀ(NNᵀ)⁺s, s the steps of the owner's rows, N the deviations of the draws unknown to J
    unknown = unknown_draws(plan, coalition)
    result = np.zeros((plan.releases, plan.agents))
    known: dict[tuple[int, int, int, bytes], Floats] = {}
    for r in np.flatnonzero(plan.rate > 0).tolist():
        kind = (plan.draw.which[r], plan.std.which[r], plan.carries.which[r], plan.exists[r].tobytes())
        if kind not in known:
            known[kind] = _release(plan, r, unknown)
        unit = known[kind] if plan.scale[r] > 0 else np.where(known[kind] > 0, np.inf, 0.0)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            result[r] = np.where(unit > 0, unit * np.square(plan.rate[r] / plan.scale[r]), 0.0)
    result[:, coalition] = 0.0
    return result


def _release(plan: Plan, round: int, unknown: Bools) -> Floats:
    """[agents]: 1/z² of one round at unit step and scale."""
    rows = np.flatnonzero(plan.exists[round])
    draw, std = plan.draw[round][rows], plan.std[round][rows]
    counts = (draw >= 0) & (std != 0) & np.where(draw >= 0, unknown[draw], False)
    noise = sparse.coo_array(
        (std[counts], (np.nonzero(counts)[0], draw[counts])), shape=(len(rows), plan.draws)
    ).tocsr()
    covariance = (noise @ noise.T).tocsr()
    step = plan.carries[round][rows].astype(float)
    result = np.zeros(plan.agents)
    # Rows that share no draws, directly or by others, are independent releases.
    for group in _groups(connected_components(covariance, directed=False)[1]):
        owners, column = np.unique(plan.owner[rows[group]], return_inverse=True)
        S = np.zeros((len(group), len(owners)))
        S[np.arange(len(group)), column] = step[group]
        result[owners] += _squared(covariance[group][:, group].toarray(), S)
    return result


def _squared(C: Floats, S: Floats) -> Floats:
    """sᵀC⁺s for each column s of S; infinite where s leaves the range of C."""
    fresh, inverse, null, weights, guard = whiten(C, C.diagonal())
    left = np.abs(S[null] - weights @ S[fresh])
    # Rounding in the weights is judged by all that enters the row, whoever's step it is.
    entered = (S[null] + np.abs(weights) @ S[fresh]).sum(axis=1, keepdims=True)
    leaks = (left > ROUNDING * entered).any(axis=0)
    D = inverse @ S[fresh] if len(fresh) else np.zeros((0, S.shape[1]))
    if not np.isfinite(guard):  # rounding may hide that there is no noise at all
        return np.where(leaks | D.any(axis=0), np.inf, 0.0)
    return np.where(leaks, np.inf, np.square(D * guard).sum(axis=0))


def _groups(labels: Ints) -> list[Ints]:
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _marked(plan: Plan, coalition: Coalition) -> Bools:
    return np.isin(np.arange(plan.agents), coalition)

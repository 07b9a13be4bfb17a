"""A Kalman filter: the covariance of the rows unknown to an observer, updated from round to round.

The observer is a coalition J. Every row is linear in Gaussian draws. J knows the rows that it reads or makes.
P is the conditional covariance of the other rows, given all that J has seen. Each round mixes P, adds the
fresh noise, and conditions on what J sees. This is a Kalman filter without measurement noise (Kalman 1960).
This file does not use gradients, owners or budgets: `gram_matrix` sends shifts through the gains computed
here.

The state contains only *live* rows: rows that J sees now, and rows that enter a row that J sees later. Rows
that J knows have no covariance and are left out, so the state is smaller than the plan. The work for one
round is O(rows²·(sources + rows seen)), and memory does not grow with the square of the number of rounds.

**Rounding.** P, as stored, is the covariance of a plan with less noise, which never reveals less: in each
round more noise is taken away from every row than rounding can be wrong by (`_certified`). What shifts are
wrong by is hidden by the noise of the rows themselves: by their fresh noise, or by a reserve that is taken
away from them (`_reader_tracking` has these arguments in full). `FilteredRound.error` is the bound on it.

A row that J sees counts as noiseless if at most `NOISE_RESOLUTION`·V of its variance is left, where V is the
variance that entered it from draws and rows unknown to J. No bound on rounding holds for such a row, unless
nothing unknown entered it. Then `UncertifiedError` is raised, unless `trust_null_rows` is set: the row then
counts as an exact function of the rows before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dtrtri

from topdp.base.array_types import Bools, Floats, Ints
from topdp.base.rounding import LARGEST_SAFE_VARIANCE, LEAST_SAFE_VARIANCE, gamma
from topdp.plan import Capability, Plan, Round, unsupported
from topdp.privacy.basics.refusals import PrivacyError, expect_supported

# Below this share of the variance that entered a row, the row counts as having no noise of its own.
NOISE_RESOLUTION = 1e-13

# The share of the variance of a row without fresh noise that is reserved to hide rounding in shifts.
RESERVED_SHARE = 2.0**-40

# The largest share of the noise of a row that may be taken away because of rounding.
MAX_TAKEN_SHARE = 1 / 64


class UncertifiedError(Exception):
    """There is no bound on rounding. Callers catch this error; users never see it."""


class Public(Enum):
    """What every observer can read in addition to the rows sent to it."""

    NOTHING = "nothing"
    ESTIMATES = "every agent's estimate, in every round"
    LINKS = "every row that is sent to anybody, and every agent's estimate"


@dataclass(frozen=True, kw_only=True)
class FilteredRound:
    """One round as J sees it: how shifts of the unknown rows propagate, and which of these rows J sees.

    Live rows are ordered: first the `kept` rows, which stay unknown, then the seen rows. Seen rows are of two
    kinds. A *fresh* row has noise of its own, given the fresh rows before it. A *null* row has none: it is an
    exact equation for J.
    """

    rows: Ints  # [live] the numbers of the live rows in the plan
    mix: Any  # sparse [live, kept rows of the previous round]: the weights of their sources
    owner: Ints  # [live]
    step: Floats  # [live]
    kept: int  # the number of kept rows
    fresh: Ints  # [k] the positions of fresh rows among the live rows
    inverse: Floats  # [k, k] L⁻¹, where L Lᵀ is the conditional covariance of the fresh rows
    gain: Floats  # [k, kept] L⁻¹ · covariance of the fresh rows with the kept rows
    guard: float  # >= 1: the factor by which whitened shifts are enlarged because of rounding
    hides: Floats  # [live] the noise of its own that hides a shift of the row
    error: float  # the most by which rounding of this round changes a shift, relative to what it can reveal
    null: Ints  # [l] the positions of null rows among the live rows
    null_weights: Floats  # [l, k] the weights of the fresh rows in the null rows
    null_size: Floats  # [l] a bound on the shifts that entered a null row, for comparison with rounding
    before: Floats  # [live, live] P of the live rows before J sees some of them
    variance: Floats  # [live] V, the variance that entered the rows unseen
    size: Floats  # [live] the same for shifts, per unit of gradient


def nonlinear_reason(plan: Plan) -> str | None:
    """Return None, or the reason why no analysis covers hidden rows of `plan`.

    Analyses of hidden rows cover only rows that are sums of rows, gradients and noise.
    """
    need = unsupported(plan, {Capability.SHARED_DRAWS, Capability.PRUNED_ROWS})
    return need and (
        f"Not covered: {need}. No analysis covers rows that are hidden from an observer in such plans. Use "
        "guarantee='worst-case', in which every row counts as seen; 'adaptive', where mixing is robust or "
        "all rows are estimates (dsgd, muffliato, correlated, plain, or any in pairs); or "
        "train.optimiser='sgd', robust.rule='mean' and train.rows='model'."
    )


def filtered_rounds(
    plan: Plan, coalition: Bools, public: Public = Public.NOTHING, *, trust_null_rows: bool = False
) -> Iterator[FilteredRound]:
    """Yield the rounds of `plan` as the agents marked in `coalition` [agents] see them together.

    `public`: what they can read in addition. `trust_null_rows`: whether rows without noise of their own count
    as exact functions of other rows; rounding is then not bounded. Raise NotCovered if rows of the plan are
    not linear, and UncertifiedError if there is no bound on rounding.
    """
    expect_supported(nonlinear_reason(plan))
    unknown = unknown_draws(plan, coalition)
    seen, live = live_rows(plan, coalition, unknown, public)
    distinct = [len(np.unique(d[d >= 0])) == (d >= 0).sum() for d in plan.draw.values]
    before = _Unknown(np.empty(0, np.int64), np.zeros((0, 0)), np.zeros(0), np.zeros(0))
    for r in range(plan.releases):
        keep = np.flatnonzero(live[r] & ~seen[r])
        rows, kept = np.concatenate([keep, np.flatnonzero(live[r] & seen[r])]), len(keep)
        with np.errstate(over="ignore", invalid="ignore"):  # `_advance` raises an error for an overflow
            sight, before = _advance(plan, plan[r], rows, kept, unknown, distinct[plan.draw.which[r]], before)
        if not (trust_null_rows or np.isfinite(sight.error)):
            raise UncertifiedError("Some noise is as small as rounding.")
        yield sight


@dataclass(frozen=True)
class _Unknown:
    """The state of the filter: the live rows that J has not seen, and their conditional covariance."""

    rows: Ints
    P: Floats  # the conditional covariance
    variance: Floats  # V: the variance that entered unseen, without any conditioning; P_aa <= V_a
    size: Floats  # the same for shifts, per unit of gradient: a bound on |shift| without any conditioning


def _advance(
    plan: Plan, this: Round, rows: Ints, kept: int, unknown: Bools, distinct: bool, before: _Unknown
) -> tuple[FilteredRound, _Unknown]:
    """Return the filtered round `this`, and the state after it.

    `rows`: the live rows, of which the first `kept` stay unknown. `unknown` [draws]: the draws that J does
    not know. `distinct`: whether no draw enters two rows of the round. `before`: the state before the round.
    """
    position = np.full(plan.rows, -1)
    position[before.rows] = np.arange(len(before.rows))
    source, weight = this.source[rows], this.weight[rows]
    at = np.where(source >= 0, position[source], -1)
    used = (at >= 0) & (weight != 0)
    mix = sparse.csr_array(
        (weight[used], at[used], np.concatenate([[0], np.cumsum(used.sum(axis=1))])),
        shape=(len(rows), len(before.rows)),
    )
    # P ← W P Wᵀ + N Nᵀ (Kalman 1960)
    P = mix @ np.ascontiguousarray((mix @ before.P).T)
    fresh_variance, alone = _add_noise(P, plan, this, rows, unknown, distinct)
    share = np.where(used, np.abs(weight), 0.0)
    # (Σ w x)² <= (Σ|w|) (Σ |w| x²)
    variance = share.sum(axis=1) * _gather(share, at, before.variance) + fresh_variance
    step = this.step[rows]
    size = _gather(share, at, before.size) + np.abs(step)
    # |P_ab| <= √P_aa·√P_bb before the noise, so that `spread` bounds the variance of all terms of the row.
    root = np.sqrt(np.maximum(before.P.diagonal(), 0.0))
    spread = np.square(_gather(share, at, root)) * 1.01 + fresh_variance

    if not (np.isfinite(variance).all() and np.isfinite(size).all()):
        raise PrivacyError("Expected noise and weights with finite sums, got an overflow. Use smaller noise.")
    white = whiten(P[kept:, kept:], variance[kept:])
    gain = white.inverse @ P[kept:, :kept][white.fresh]
    whole, P = P, P[:kept, :kept] - gain.T @ gain
    operations = 2 * source.shape[1] + this.draw.shape[1] + 8
    certificate = _certified(whole, P, white, spread, alone, operations)
    sight = FilteredRound(
        rows=rows,
        mix=mix,
        owner=plan.owner[rows].astype(np.int64),
        step=step,
        kept=kept,
        fresh=kept + white.fresh,
        inverse=white.inverse,
        gain=gain,
        guard=certificate.guard,
        hides=certificate.hides,
        error=certificate.error,
        null=kept + white.null,
        null_weights=white.weights,
        # Without any unseen noise nothing was ever subtracted, so there is no rounding: every shift counts.
        null_size=np.where(variance[kept:] > 0, size[kept:], 0.0)[white.null],
        before=whole,
        variance=variance,
        size=size,
    )
    return sight, _Unknown(rows[:kept], P, variance[:kept], size[:kept])


class _Certificate(NamedTuple):
    """The results of `_certified`, as in `FilteredRound`. Without a certificate, `error` is infinite."""

    guard: float
    hides: Floats
    error: float


def _certified(
    P: Floats, after: Floats, white: Whitening, spread: Floats, alone: Floats, operations: int
) -> _Certificate:
    """Take noise from `after`, so that it is at most the exact covariance of kept rows; return the bounds.

    `P` [live, live]: the covariance before J sees some rows. `after` [kept, kept]: the computed covariance
    given these; it is changed in place. `spread` [live]: a bound on the variance of all terms of a row.
    `alone` [live]: the fresh noise that enters only this row. `operations`: a bound on the number of
    operations for an entry of P.

    In terms of the inverse X and the gain G, as stored, let L = X⁻¹. The rows have at least the covariance
    Π' = [[P' + (1-ρ)GᵀG, (1-ρ)GᵀLᵀ], [(1-ρ)LG, (1-ρ)LLᵀ]], for which G and X·(1-ρ)^-½ are exact, if P - h -
    Π' is positive semidefinite; h is what rounding of P and the reserve take away. Multiply by diag(1, X) on
    both sides: the block of the fresh rows is XCXᵀ - 1 - XhXᵀ + ρ >= ρ/2, for ρ twice the size of the first
    three terms. The other blocks are e + ρG, where e is the rounding of the gain, and P_kk - h - (1-ρ)GᵀG -
    P'. Hence P' = P_kk - GᵀG - h - 3ρGᵀG - 4eᵀe/ρ will do (Schur complement), and GᵀG <= m·diag(GᵀG).
    """
    m, stay = len(P), len(after)
    uncertified = _Certificate(white.guard, np.zeros(m), math.inf)
    fresh, live = stay + white.fresh, spread > 0
    if (spread[stay + white.null] > 0).any():
        return uncertified
    if not ((spread[live] > LEAST_SAFE_VARIANCE) & (spread < LARGEST_SAFE_VARIANCE)[live]).all():
        return uncertified
    k, X = len(fresh), white.inverse
    reserve = np.where(alone > 0, 0.0, RESERVED_SHARE * spread)
    h = m * gamma(operations) * spread + reserve
    C = P[np.ix_(fresh, fresh)]
    length = float(np.linalg.norm(np.abs(X) @ np.sqrt(spread[fresh])))  # ‖|X|·√spread‖
    y = float(np.linalg.norm(X @ C @ X.T - np.eye(k))) + gamma(2 * k + 4) * (length**2 + 2)
    rho = 2.02 * (y + float((np.square(X) @ h[fresh]).sum())) + gamma(8)
    e = gamma(k + 2) * length
    share = 1.01 * (3.1 * rho + 4 * e**2 / rho + gamma(2 * k + 8))
    taken = (m * share * spread + h)[:stay]
    hides = np.where(alone > 0, alone / 2, reserve)
    if not (rho < MAX_TAKEN_SHARE and (taken <= MAX_TAKEN_SHARE * alone[:stay])[alone[:stay] > 0].all()):
        return uncertified
    remains = live[:stay]
    if not (alone[:stay][remains] > 0).all():
        weak = np.where(alone[:stay] > 0, 1.0, 3.0)
        if not _positive(after[np.ix_(remains, remains)], (taken * weak)[remains]):
            return uncertified
    after[np.diag_indices(stay)] -= taken
    hidden = math.sqrt(float((spread[live] / hides[live]).sum()))
    error = 12 * gamma(operations + k + 16) * (1 + length) * (1 + hidden)
    return _Certificate(1 / math.sqrt(1 - rho), hides, error if error < 1e-3 else math.inf)


def _positive(P: Floats, margin: Floats) -> bool:
    """Return whether P - diag(`margin`) is proved to be positive semidefinite."""
    scale = np.sqrt(np.maximum(P.diagonal(), 0.0))
    if not (scale > 0).all():
        return False
    # A matrix with a Cholesky factor in floating point is positive up to γ_(m+1) of its diagonal per entry.
    scaled = P / scale[:, None] / scale
    scaled[np.diag_indices(len(P))] -= margin / scale**2 + 2 * len(P) * gamma(len(P) + 8)
    try:
        np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return False
    return True


def _add_noise(
    P: Floats, plan: Plan, this: Round, rows: Ints, unknown: Bools, distinct: bool
) -> tuple[Floats, Floats]:
    """Add to P the covariance of the draws that J does not know.

    Return the variances that were added, and the part of them that enters only the row itself.
    """
    draw, std = this.draw[rows], this.std[rows]
    counts = (draw >= 0) & (std != 0) & unknown[draw]
    entries = draw[counts]
    variance: Floats = np.where(counts, std, 0.0) ** 2 @ np.ones(std.shape[1])
    if distinct or len(np.unique(entries)) == len(entries):
        P[np.diag_indices(len(rows))] += variance
        return variance, variance
    row = np.nonzero(counts)[0]
    noise = sparse.coo_array((std[counts], (row, entries)), shape=(len(rows), plan.draws)).tocsr()
    shared: Floats = (noise @ noise.T).toarray()
    P += shared
    own = counts & (np.bincount(entries, minlength=plan.draws) == 1)[draw]
    return shared.diagonal().copy(), np.where(own, std, 0.0) ** 2 @ np.ones(std.shape[1])


def _gather(share: Floats, at: Ints, values: Floats) -> Floats:
    """Return for each row the sum of `share`·`values` over its sources; `at`: their positions in `values`."""
    if not len(values):
        return np.zeros(len(share))
    return np.asarray((share * values[at]).sum(axis=1))


@dataclass(frozen=True, eq=False, kw_only=True)
class Whitening:
    """The transformation that makes the rows seen in a round independent."""

    fresh: Ints  # the rows with noise of their own, given the earlier rows
    inverse: Floats  # L⁻¹ [fresh, fresh], where L Lᵀ is the covariance of the fresh rows
    null: Ints  # the other rows
    weights: Floats  # Q [null, fresh]: the null rows as combinations of the fresh rows
    # The factor by which whitened shifts grow if C loses what rounding may add; infinite if C could vanish.
    guard: float


def whiten(C: Floats, variance: Floats) -> Whitening:
    """Return the whitening of rows with covariance C; `variance` is the variance V that entered each row.

    A row is null if, given the earlier rows, at most NOISE_RESOLUTION·V of its variance remains.
    """
    k = len(C)
    scale = np.sqrt(np.maximum(C.diagonal(), 0.0))
    if (scale > 0).all():
        try:
            L = np.asarray(np.linalg.cholesky(C / scale[:, None] / scale), np.float64) * scale[:, None]
            if (L.diagonal() ** 2 > NOISE_RESOLUTION * variance).all():
                # The inverse of a triangular matrix, without the input checks, which would take longer.
                inverse = np.asarray(dtrtri(L, lower=1)[0], np.float64) if k else np.zeros((0, 0))
                return Whitening(
                    fresh=np.arange(k),
                    inverse=inverse,
                    null=np.empty(0, np.int64),
                    weights=np.empty((0, k)),
                    guard=_guard(C, inverse, variance),
                )
        except np.linalg.LinAlgError:
            pass
    fresh: list[int] = []
    null: list[int] = []
    inverse, Q = np.zeros((k, k)), np.zeros((k, k))
    for a in range(k):
        f = len(fresh)
        explained = inverse[:f, :f] @ C[fresh, a]
        left = C[a, a] - explained @ explained
        if left > NOISE_RESOLUTION * variance[a]:
            inverse[f, :f] = -(explained @ inverse[:f, :f]) / np.sqrt(left)
            inverse[f, f] = 1 / np.sqrt(left)
            fresh.append(a)
        else:
            Q[len(null), :f] = explained @ inverse[:f, :f]
            null.append(a)
    f = len(fresh)
    inverse = inverse[:f, :f]
    return Whitening(
        fresh=np.array(fresh, np.int64),
        inverse=inverse,
        null=np.array(null, np.int64),
        weights=Q[: len(null), :f],
        guard=_guard(C[np.ix_(fresh, fresh)], inverse, variance[fresh]),
    )


def _guard(C: Floats, inverse: Floats, variance: Floats) -> float:
    """Return `Whitening.guard` of the fresh rows, whose covariance is C."""
    # C as given is wrong by at most γ·√V_a·√V_b per entry, so by at most E = k·γ·V (Gershgorin). X·C·Xᵀ >=
    # 1 - y for the inverse X, as computed. So X(C - E)Xᵀ >= 1 - ρ with ρ = y + tr(X E Xᵀ).
    k = len(variance)
    entered = float((inverse * inverse @ variance).sum())
    y = float(np.linalg.norm(inverse @ C @ inverse.T - np.eye(k))) + gamma(4 * k + 8) * (entered + k)
    share = 1.01 * (y + k * gamma(4 * k + 32) * entered)
    return 1 / math.sqrt(1 - share) if share < 0.5 else math.inf


def unknown_draws(plan: Plan, coalition: Bools) -> Bools:
    """Return for each draw whether no member of J knows it, as Booleans [draws].

    The owner of a row knows the draws that enter it, even if `known_by` does not list the owner.
    """
    unknown = np.asarray(~(coalition[plan.known_by] & (plan.known_by >= 0)).any(axis=1))
    entering = plan.draw.values[:, coalition[plan.owner]]
    unknown[entering[entering >= 0]] = False
    return unknown


def seen_rows(plan: Plan, coalition: Bools, public: Public) -> Bools:
    """Return for each release and row whether J sees the row, as Booleans [releases, m].

    J sees a row if it reads or makes the row, makes another row from it, or if the row is public.
    """
    readers = plan.readers.values
    reads = ((coalition[readers] | (public is Public.LINKS)) & (readers >= 0)).any(axis=-1)
    seen = reads[plan.readers.which] | coalition[plan.owner]
    own = np.flatnonzero(coalition[plan.owner])
    source, weight = (part.values[:, own][part.which] for part in (plan.source, plan.weight))
    round, row, slot = np.nonzero((source >= 0) & (weight != 0))
    later = round > 0
    seen[round[later] - 1, source[round, row, slot][later]] = True
    if public is not Public.NOTHING:
        seen[:, : plan.agents] = True
        seen[:, plan.memories] = True  # memory rows follow from estimates, which J knows
    return np.asarray(seen & plan.exists)


def live_rows(plan: Plan, coalition: Bools, unknown: Bools, public: Public) -> tuple[Bools, Bools]:
    """Return two masks [releases, m]: the rows that J sees, and the live rows.

    A row is live if J sees it, or if it enters a row that J sees later. Two kinds of rows reveal nothing, and
    are not live: J's own rows of which J knows every term, and memory rows of estimates that J sees.
    """
    seen = seen_rows(plan, coalition, public)
    own = np.flatnonzero(coalition[plan.owner])
    live = seen.copy()
    for r in range(plan.releases - 1, -1, -1):
        live_own = own[live[r, own]]
        draw, std = plan.draw[r][live_own], plan.std[r][live_own]
        reveals = ((draw >= 0) & (std != 0) & unknown[draw]).any(axis=1)
        if r > 0:
            source, weight = plan.source[r][live_own], plan.weight[r][live_own]
            reveals |= ((source >= 0) & (weight != 0) & ~seen[r - 1, source]).any(axis=1)
        live[r, live_own[~reveals]] = False
        if r > 0:
            source, weight = plan.source[r][live[r]], plan.weight[r][live[r]]
            used = source[(source >= 0) & (weight != 0)]
            live[r - 1, used] = True
            if (live[r - 1] & ~plan.exists[r - 1]).any():
                missing = int(np.flatnonzero(live[r - 1] & ~plan.exists[r - 1])[0])
                raise PrivacyError(
                    f"Expected round {r} to use only rows that exist, got row {missing}, "
                    f"which round {r - 1} does not make."
                )
    if public is not Public.NOTHING:
        live[:, plan.memories] = False
    return seen, live

"""The loss to coalitions from releases in which every row is seen and some draws are shared.

Given the rows of the previous release, a release is one Gaussian mechanism on each owner's gradient, with the
draws that the coalition does not know as noise. The loss depends on which draws the coalition knows, so each
coalition is computed separately, as one small matrix of a batch. If there are too many coalitions, symmetry
shows which ones learn most, or one bound covers all, by the connectivity of the graph of secrets.

**Guarantees.** As `adaptive`: exact for each coalition that is computed, up to rounding on the side of larger
loss. `connectivity_bound` is never below the exact value of any coalition of that size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from topdp.base.array_types import Bools, Floats, Ints
from topdp.plan import Plan
from topdp.privacy.observers.observer_filter import VARIANCE_ROUNDING, whiten
from topdp.privacy.observers.worst_case import STEP_ROUNDING
from topdp.privacy.query import Query

Coalition = tuple[int, ...]

MAX_BATCH_NUMBERS = 1 << 22  # in matrices that are inverted at once

# The largest ρ, the share of the noise that rounding may take. Above it, rows are processed one by one.
MAX_ROUNDING_SHARE = 1e-6

# The most multiplications for computing coalitions one by one by default: some seconds.
MAX_UNASKED_PRODUCTS = 4e9


class ReleasePattern(NamedTuple):
    """A release at unit step and scale, which many rounds repeat."""

    noise: Any  # sparse [draws, rows] standard deviations
    products: Any  # sparse [draws, rows·rows]: what each draw adds to the covariance of the rows
    steps: Floats  # [rows, agents] which row carries the gradient of which agent
    owner: Ints  # [rows]


class NoisyReleases(NamedTuple):
    """The releases of a plan that carry gradients: the pattern of each, and the square of step over scale."""

    knows: Any  # sparse [agents, draws]: whether the agent knows the draw, or makes a row of it
    kinds: list[ReleasePattern]
    which: Ints  # [releases]; -1: carries nothing
    ratio: Floats  # [releases]


def noisy_releases(plan: Plan) -> NoisyReleases:
    """Return the releases of `plan` that carry gradients; equal patterns are stored once."""
    which, numbers = np.full(plan.releases, -1), {}
    kinds: list[ReleasePattern] = []
    for r in np.flatnonzero(plan.rate > 0).tolist():
        name = (plan.draw.which[r], plan.std.which[r], plan.carries.which[r], plan.exists[r].tobytes())
        if name not in numbers:
            numbers[name] = len(kinds)
            kinds.append(_kind(plan, r))
        which[r] = numbers[name]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.where(plan.rate > 0, np.square(plan.rate / plan.scale), 0.0)
    return NoisyReleases(_known_draws(plan), kinds, which, ratio)


def _kind(plan: Plan, round: int) -> ReleasePattern:
    tells = plan.carries[round] | ((plan.draw[round] >= 0) & (plan.std[round] != 0)).any(axis=1)
    rows = np.flatnonzero(plan.exists[round] & tells)  # the other rows follow from rows seen before
    m, draw, std = len(rows), plan.draw[round][rows], plan.std[round][rows]
    enters = (draw >= 0) & (std != 0)
    entries = (std[enters], (draw[enters], np.nonzero(enters)[0]))
    noise = sparse.coo_array(entries, shape=(plan.draws, m)).tocsr()  # adds up entries at the same position
    noise.eliminate_zeros()
    steps = np.zeros((m, plan.agents))
    steps[np.arange(m), plan.owner[rows]] = plan.carries[round][rows]
    return ReleasePattern(noise, _products(noise), steps, plan.owner[rows].astype(np.int64))


def _products(noise: Any) -> Any:
    """Return [draws, rows·rows]: the outer product of the entries of each draw."""
    count, m = np.diff(noise.indptr), noise.shape[1]
    squares = count.astype(np.int64) ** 2
    # Entry e of draw d is multiplied with all entries of d in turn.
    first = np.repeat(np.arange(noise.nnz), np.repeat(count, count))
    draw = np.repeat(np.arange(len(count)), squares)
    place = np.arange(squares.sum()) - np.repeat(np.cumsum(squares) - squares, squares)
    second = noise.indptr[draw] + place % np.maximum(count, 1)[draw]
    values = noise.data[first] * noise.data[second]
    at = noise.indices[first].astype(np.int64) * m + noise.indices[second]
    return sparse.coo_array((values, (draw, at)), shape=(len(count), m * m)).tocsr()


def _known_draws(plan: Plan) -> Any:
    """Return [agents, draws]: whether the agent knows the draw, or owns a row that it enters."""
    draw, who = np.nonzero(plan.known_by >= 0)
    entering = plan.draw.values
    made = np.broadcast_to(plan.owner[:, None], entering.shape)[entering >= 0]
    agents = np.concatenate([plan.known_by[draw, who], made])
    draws = np.concatenate([draw, entering[entering >= 0]])
    pairs = np.unique(np.stack([agents, draws]).astype(np.int64), axis=1)
    return sparse.csr_array((np.ones(pairs.shape[1]), pairs), shape=(plan.agents, plan.draws))


def worst_coalitions(plan: Plan, noisy: NoisyReleases, query: Query) -> list[Coalition] | None:
    """Return coalitions that include the worst one for each agent; None if there are too many."""
    n, colluders = plan.agents, query.colluders
    if len(noisy.kinds) == 1 and (own := _equal_pairs(noisy.kinds[0], noisy.knows)) is not None:
        # docs/privacy.md: where all share secrets, the agents with most own noise are the worst colluders.
        order = np.argsort(-own, kind="stable").tolist()
        worst, others = order[:colluders], order[colluders:]
        return [tuple(sorted(worst))] + [
            tuple(sorted([*worst[:k], others[0], *worst[k + 1 :]])) for k in range(colluders) if others
        ]
    work = sum(len(kind.owner) ** 3 for kind in noisy.kinds)
    if query.allow_slow or math.comb(n, colluders) * 2 * max(work, 1) <= MAX_UNASKED_PRODUCTS:
        return list(itertools.combinations(range(n), colluders))
    return None


def enumerable(agents: int, colluders: int) -> bool:
    """Return whether all coalitions are computed one by one by default, for agents with one row each."""
    return math.comb(agents, colluders) * 2 * agents**3 <= MAX_UNASKED_PRODUCTS


def information_of(plan: Plan, noisy: NoisyReleases, coalitions: Sequence[Coalition]) -> Floats:
    """Return [kinds, coalitions, agents]: 1/z² at unit step, scale and sensitivity; 0 for members."""
    result = np.zeros((len(noisy.kinds), len(coalitions), plan.agents))
    members = np.zeros((len(coalitions), plan.agents), bool)
    for o, J in enumerate(coalitions):
        members[o, list(J)] = True
    for k, kind in enumerate(noisy.kinds):
        step = max(1, MAX_BATCH_NUMBERS // max(1, len(kind.owner) ** 2, plan.draws))
        for start in range(0, len(coalitions), step):
            part = slice(start, start + step)
            unknown = members[part].astype(float) @ noisy.knows == 0
            result[k, part] = _squared(kind, unknown, members[part])
    result[:, members] = 0.0
    return result


def _squared(kind: ReleasePattern, unknown: Bools, members: Bools) -> Floats:
    """Return [coalitions, agents]: sᵀC⁻¹s, C the covariance of the draws unknown to each coalition."""
    m = len(kind.owner)
    if not m:  # a round without rows releases nothing
        return np.zeros((len(unknown), kind.steps.shape[1]))
    C = np.asarray(unknown.astype(float) @ kind.products).reshape(-1, m, m)
    rows = np.arange(m)
    C[:, rows, rows] += members[:, kind.owner]  # members know their own rows: no release
    variance = C[:, rows, rows]
    with np.errstate(all="ignore"):
        scale = np.sqrt(variance)
        try:
            inverse = np.linalg.inv(C / scale[:, :, None] / scale[:, None, :])
        except np.linalg.LinAlgError:
            inverse = np.full_like(C, np.nan)
        # C - E >= (1 - ρ)C with E = VARIANCE_ROUNDING·V and ρ = tr(C⁻¹E), as in `whiten`
        share = VARIANCE_ROUNDING * inverse[:, rows, rows].sum(axis=1)
        sure = (inverse[:, rows, rows] > 0.5).all(axis=1) & (share < MAX_ROUNDING_SHARE)
        weights = kind.steps / scale[:, :, None]
        squares = np.einsum("ora,ora->oa", weights, inverse @ weights) / (1 - share)[:, None]
    for o in np.flatnonzero(~sure).tolist():
        squares[o] = _one_by_groups(C[o], kind)
    return np.asarray(squares)


def _one_by_groups(C: Floats, kind: ReleasePattern) -> Floats:
    """Return [agents]: sᵀC⁺s, also for rows without noise; rows that share no draws are independent."""
    result = np.zeros(kind.steps.shape[1])
    labels = connected_components(sparse.csr_array(C), directed=False)[1]
    for label in range(labels.max(initial=-1) + 1):
        group = np.flatnonzero(labels == label)
        result += _generalized(C[np.ix_(group, group)], kind.steps[group])
    return result


def _generalized(C: Floats, S: Floats) -> Floats:
    """Return sᵀC⁺s for each column s of S; infinite where s leaves the range of C."""
    white = whiten(C, C.diagonal())
    left = np.abs(S[white.null] - white.weights @ S[white.fresh])
    # Rounding in the weights is compared with all that enters the row, from any step.
    entered = (S[white.null] + np.abs(white.weights) @ S[white.fresh]).sum(axis=1, keepdims=True)
    leaks = (left > STEP_ROUNDING * entered).any(axis=0)
    D = white.inverse @ S[white.fresh] if len(white.fresh) else np.zeros((0, S.shape[1]))
    if not np.isfinite(white.guard):  # there may be no noise but rounding
        return np.where(leaks | D.any(axis=0), np.inf, 0.0)
    return np.where(leaks, np.inf, np.square(D * white.guard).sum(axis=0))


def connectivity_bound(plan: Plan, noisy: NoisyReleases, colluders: int) -> Floats | None:
    """Return [kinds, 1, agents]: an upper bound on 1/z² for every coalition of `colluders`; None if unknown.

    For pairs with opposite signs NNᵀ is a diagonal of own noise plus a Laplacian. Removing an agent lowers
    its second eigenvalue by at most the heaviest edge (Fiedler 1973).
    """
    result = []
    for kind in noisy.kinds:
        parts = _own_and_pairs(kind, noisy.knows)
        if parts is None:
            return None
        own, weights = parts
        laplacian = np.diag(weights.sum(axis=1)) - weights
        second = float(np.linalg.eigvalsh(laplacian)[1]) if plan.agents > 1 else 0.0
        connected = second - colluders * float(weights.max(initial=0.0)) - 1e-9 * float(np.trace(laplacian))
        if connected <= 0 or own.min() <= 0:
            return None
        result.append(by_connectivity(own, connected, colluders)[None] * (1 + 1e-12))
    return np.array(result)


def by_connectivity(own: Floats, connected: float, colluders: int) -> Floats:
    """Return [agents]: the largest possible [(diag(own) + L)⁻¹]_ii.

    `own` [agents]: the variances of own noise. `connected`: λ such that after the removal of any `colluders`
    agents the Laplacian L of the remaining m satisfies L >= λ·(I - 11ᵀ/m).

    >>> by_connectivity(np.array([0.1, 0.1, 0.2]), connected=5.0, colluders=1).round(2).tolist()
    [5.1, 5.1, 3.38]
    """
    # With D + λ(I - 11ᵀ/m) instead, by Sherman and Morrison: 1/(d_i+λ) + λ/(d_i+λ)² / Σ_j d_j/(d_j+λ);
    # that is largest if the agents with most own noise collude.
    kept = own / (own + connected)
    order = np.argsort(-own, kind="stable")
    worst, runner_up = order[:colluders], order[colluders : colluders + 1]
    left = np.full(len(own), kept.sum() - kept[worst].sum())
    left[worst] += kept[worst] - kept[runner_up].sum()
    return np.asarray((1 + connected / (own + connected) / left) / (own + connected))


def _own_and_pairs(kind: ReleasePattern, knows: Any) -> tuple[Floats, Floats] | None:
    """Return own variances [n] and weights [n, n] of pairs; None if the noise has another form.

    Also None if an agent knows a draw that enters none of its rows: such a draw hides nothing from it.
    """
    n, noise = kind.steps.shape[1], kind.noise
    if len(kind.owner) != n or not np.array_equal(kind.steps, np.eye(n)):
        return None
    entries = np.diff(noise.indptr)
    if (entries > 2).any() or ((knows.sum(axis=0) != entries) & (entries > 0)).any():
        return None
    first = noise.indptr[:-1]
    alone, paired = first[entries == 1], first[entries == 2]
    if (noise.data[paired] + noise.data[paired + 1]).any():
        return None
    own = np.zeros(n)
    np.add.at(own, noise.indices[alone], np.square(noise.data[alone]))
    weights = np.zeros((n, n))
    i, j, shared = noise.indices[paired], noise.indices[paired + 1], np.square(noise.data[paired])
    np.add.at(weights, (i, j), shared)
    np.add.at(weights, (j, i), shared)
    return own, weights


def _equal_pairs(kind: ReleasePattern, knows: Any) -> Floats | None:
    """Return own variances [n] if every two agents share noise of the same variance; otherwise None."""
    parts = _own_and_pairs(kind, knows)
    if parts is None or len(parts[0]) < 2:
        return None
    between = parts[1][~np.eye(len(parts[0]), dtype=bool)]
    return parts[0] if between[0] > 0 and (between == between[0]).all() else None

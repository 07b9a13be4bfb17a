"""The loss to coalitions from releases in which every row is seen and some draws are shared.

Given the rows of the previous release, a release is one Gaussian mechanism on each owner's gradient. Its
noise are the draws that the coalition does not know. The loss depends on which draws the coalition knows, so
each coalition is computed separately, as one small matrix of a batch. If there are too many coalitions,
symmetry shows which coalitions learn most, or one bound covers all of them. This bound uses the connectivity
of the graph of pair secrets.

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
from topdp.base.rounding import gamma
from topdp.plan import Plan
from topdp.privacy.observers._exact_squares import exact_squares
from topdp.privacy.query import Query

Coalition = tuple[int, ...]

MAX_BATCH_NUMBERS = 1 << 22  # the most numbers in matrices that are inverted at once

# The largest share of the noise that may count as rounding. Above it, fractions are used.
MAX_ROUNDING_SHARE = 1e-6

# The most multiplications for computing coalitions one by one by default: they take some seconds.
MAX_UNASKED_PRODUCTS = 4e9


class ReleasePattern(NamedTuple):
    """A release at unit step and scale; many rounds may have the same pattern."""

    noise: Any  # sparse [draws, rows]: the standard deviation of each draw in each row
    products: Any  # sparse [draws, rows·rows]: what each draw adds to the covariance of the rows
    steps: Floats  # [rows, agents]: 1 if the row carries the gradient of the agent, otherwise 0
    owner: Ints  # [rows]


class NoisyReleases(NamedTuple):
    """The releases of a plan that carry gradients."""

    knows: Any  # sparse [agents, draws]: whether the agent knows the draw, or makes a row that it enters
    kinds: list[ReleasePattern]  # the different patterns
    which: Ints  # [releases] the pattern of each release; -1: the release carries no gradient
    ratio: Floats  # [releases] (step / scale)²


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
    """Return the pattern of the release in `round`."""
    tells = plan.carries[round] | ((plan.draw[round] >= 0) & (plan.std[round] != 0)).any(axis=1)
    rows = np.flatnonzero(plan.exists[round] & tells)  # the other rows follow from rows that were seen before
    m, draw, std = len(rows), plan.draw[round][rows], plan.std[round][rows]
    enters = (draw >= 0) & (std != 0)
    entries = (std[enters], (draw[enters], np.nonzero(enters)[0]))
    noise = sparse.coo_array(entries, shape=(plan.draws, m)).tocsr()  # adds entries at the same position
    noise.eliminate_zeros()
    steps = np.zeros((m, plan.agents))
    steps[np.arange(m), plan.owner[rows]] = plan.carries[round][rows]
    return ReleasePattern(noise, _products(noise), steps, plan.owner[rows].astype(np.int64))


def _products(noise: Any) -> Any:
    """Return the outer product of the entries of each draw, as a sparse array [draws, rows·rows]."""
    count, m = np.diff(noise.indptr), noise.shape[1]
    squares = count.astype(np.int64) ** 2
    # Entry e of draw d is multiplied with all entries of d in turn.
    first = np.repeat(np.arange(noise.nnz), np.repeat(count, count))
    draw = np.repeat(np.arange(len(count)), squares)
    position = np.arange(squares.sum()) - np.repeat(np.cumsum(squares) - squares, squares)
    second = noise.indptr[draw] + position % np.maximum(count, 1)[draw]
    values = noise.data[first] * noise.data[second]
    at = noise.indices[first].astype(np.int64) * m + noise.indices[second]
    return sparse.coo_array((values, (draw, at)), shape=(len(count), m * m)).tocsr()


def _known_draws(plan: Plan) -> Any:
    """Return a sparse array [agents, draws]: 1 if the agent knows the draw, by `known_by` or as the owner of
    a row with it.
    """
    draw, who = np.nonzero(plan.known_by >= 0)
    entering = plan.draw.values
    made = np.broadcast_to(plan.owner[:, None], entering.shape)[entering >= 0]
    agents = np.concatenate([plan.known_by[draw, who], made])
    draws = np.concatenate([draw, entering[entering >= 0]])
    pairs = np.unique(np.stack([agents, draws]).astype(np.int64), axis=1)
    return sparse.csr_array((np.ones(pairs.shape[1]), pairs), shape=(plan.agents, plan.draws))


def worst_coalitions(plan: Plan, noisy: NoisyReleases, query: Query) -> list[Coalition] | None:
    """Return coalitions that include the worst coalition for each agent; None if there are too many."""
    n, colluders = plan.agents, query.colluders
    if len(noisy.kinds) == 1 and (own := _equal_pairs(noisy.kinds[0], noisy.knows)) is not None:
        # docs/privacy.md: if all pairs share secrets, the agents with most own noise are the worst colluders.
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
    """Return whether all coalitions are computed one by one by default, if each agent has one row."""
    return math.comb(agents, colluders) * 2 * agents**3 <= MAX_UNASKED_PRODUCTS


def information_of(plan: Plan, noisy: NoisyReleases, coalitions: Sequence[Coalition]) -> Floats:
    """Return 1/z² at unit step, scale and sensitivity [kinds, coalitions, agents]; 0 for members."""
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
    """Return sᵀC⁻¹s [coalitions, agents], where C is the covariance of the draws unknown to each coalition.

    s is the step of the agent in each row. `unknown` [coalitions, draws], `members` [coalitions, agents].
    """
    m = len(kind.owner)
    if not m:  # a round without rows releases nothing
        return np.zeros((len(unknown), kind.steps.shape[1]))
    C = np.asarray(unknown.astype(float) @ kind.products).reshape(-1, m, m)
    rows = np.arange(m)
    C[:, rows, rows] += members[:, kind.owner]  # the members' own rows are no release; 1 makes C invertible
    variance = C[:, rows, rows]
    with np.errstate(all="ignore"):
        scale = np.sqrt(variance)
        try:
            inverse = np.linalg.inv(C / scale[:, :, None] / scale[:, None, :])
        except np.linalg.LinAlgError:
            inverse = np.full_like(C, np.nan)
        # C as stored is wrong by E with |E| <= γ·|N|ᵀ|N|, so by at most the diagonal matrix of γ times its
        # row sums (Gershgorin), and C - E >= (1 - ρ)C with ρ = tr(C⁻¹E).
        noise = abs(kind.noise)
        wrong = gamma(int(np.diff(noise.tocsc().indptr).max(initial=0)) + 8) * (noise.T @ noise.sum(axis=1))
        diagonal = inverse[:, rows, rows]
        share = 1.01 * (wrong / variance * diagonal).sum(axis=1)
        # For x ≈ C⁻¹w and r = w - Cx: wᵀC⁻¹w = wᵀx + xᵀr + rᵀC⁻¹r, where r is computed and rounded.
        residual = np.abs(np.eye(m) - C / scale[:, :, None] / scale[:, None, :] @ inverse).max(
            axis=1, initial=0.0
        )
        sums = np.abs(inverse).sum(axis=1)
        residual = residual + gamma(m + 8) * (1 + 1.01 * sums)
        weights = kind.steps / scale[:, :, None]
        sums, residual = (np.einsum("or,ora->oa", part, np.abs(weights)) for part in (sums, residual))
        error = 1.01 * (sums * residual + 2 * m * np.square(residual) * diagonal.sum(axis=1)[:, None])
        squares = np.einsum("ora,ora->oa", weights, inverse @ weights)
        sure = (diagonal > 0.4).all(axis=1) & (share < MAX_ROUNDING_SHARE)
        sure &= (error <= MAX_ROUNDING_SHARE * squares).all(axis=1)
        squares += error
        squares *= (1 + gamma(4 * m + 16)) / (1 - share)[:, None]
    for o in np.flatnonzero(~sure).tolist():
        squares[o] = _one_by_groups(kind, unknown[o], members[o])
    return np.asarray(squares)


def _one_by_groups(kind: ReleasePattern, unknown: Bools, members: Bools) -> Floats:
    """Return sᵀ(BBᵀ)⁺s [agents] exactly, also for rows without noise, by groups of rows that share no draws.

    `unknown` [draws], `members` [agents]: as in `_squared`, for one coalition.
    """
    result = np.zeros(kind.steps.shape[1])
    B = kind.noise[np.flatnonzero(unknown)].toarray().T
    B = B[:, B.any(axis=0)]
    linked = (B != 0).astype(float)
    labels = connected_components(sparse.csr_array(linked @ linked.T), directed=False)[1]
    for label in range(labels.max(initial=-1) + 1):
        group = np.flatnonzero((labels == label) & ~members[kind.owner])
        result += exact_squares(B[group], kind.steps[group])
    return result


def connectivity_bound(plan: Plan, noisy: NoisyReleases, colluders: int) -> Floats | None:
    """Return an upper bound on 1/z² for every coalition of `colluders` agents [kinds, 1, agents].

    Return None if no bound is known. If the noise consists of own noise and of pair noise with opposite
    signs, its covariance NNᵀ is a diagonal of own noise plus a Laplacian. The removal of an agent lowers the
    second eigenvalue of the Laplacian by at most the heaviest edge (Fiedler 1973).
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
    """Return the largest possible [(diag(own) + L)⁻¹]_ii of each agent i [agents].

    `own` [agents]: the variances of own noise. `connected`: a number λ such that, after the removal of any
    `colluders` agents, the Laplacian L of the m remaining agents satisfies L >= λ·(I - 11ᵀ/m).

    >>> by_connectivity(np.array([0.1, 0.1, 0.2]), connected=5.0, colluders=1).round(2).tolist()
    [5.1, 5.1, 3.38]
    """
    # For D + λ(I - 11ᵀ/m), by Sherman and Morrison, it is 1/(d_i+λ) + λ/(d_i+λ)² / Σ_j d_j/(d_j+λ). This is
    # largest if the agents with most own noise collude.
    share = own / (own + connected)
    order = np.argsort(-own, kind="stable")
    # Sums without differences, because shares may span many decades.
    total = np.full(len(own), math.fsum(share[order[colluders:]]))
    for agent in order[:colluders]:
        total[agent] = math.fsum([share[agent], *share[order[colluders + 1 :]]])
    return np.asarray((1 + connected / (own + connected) / total) / (own + connected))


def _own_and_pairs(kind: ReleasePattern, knows: Any) -> tuple[Floats, Floats] | None:
    """Return the variances of own noise [n] and of pair noise [n, n]; None if the noise has another form.

    The form is: one row for each agent, and draws that enter one row, or two rows with opposite signs. Also
    return None if an agent knows a draw that enters none of its rows, because such a draw hides nothing from
    that agent.
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
    """Return the variances of own noise [n] if all pairs share noise of the same variance; otherwise None."""
    parts = _own_and_pairs(kind, knows)
    if parts is None or len(parts[0]) < 2:
        return None
    between = parts[1][~np.eye(len(parts[0]), dtype=bool)]
    return parts[0] if between[0] > 0 and (between == between[0]).all() else None

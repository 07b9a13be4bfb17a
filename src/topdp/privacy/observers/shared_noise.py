"""What coalitions learn from rounds in which every row is seen and some draws are shared.

Given the rows of the round before, a round is one Gaussian release of each owner's gradient, under the draws
that the coalition does not know. Coalitions that know different draws learn different things, so they are
looked at one by one; many at once, since each is a small matrix. Where there are too many of them, those that
learn most are known by symmetry, or all are bounded by how well the secrets are connected.

**Guarantees.** As `adaptive`: exact for each coalition that is looked at, but for rounding, which is on the
side of larger loss. `bounded` is never below the exact value of any coalition of that size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from topdp.plan import Plan
from topdp.plan.arrays import Bools, Floats, Ints
from topdp.privacy.observers.filtering import RESOLUTION, ROUNDING, unknown_draws, whiten
from topdp.privacy.observers.worst_case import ROUNDING as LEAK

Coalition = tuple[int, ...]

CHUNK = 1 << 22  # numbers of matrices that are inverted at once

EFFORT = 4e9
"""Multiplications that are made unasked to look at coalitions one by one: some seconds."""


class Kind(NamedTuple):
    """A release at unit step and scale, as it comes again in many rounds."""

    noise: Floats  # [rows, draws] standard deviations
    steps: Floats  # [rows, agents] which row carries whose gradient
    owner: Ints  # [rows]


class Releases(NamedTuple):
    """The noisy releases of a plan: which kind each is, and the square of step over scale."""

    kinds: list[Kind]
    which: Ints  # [releases]; -1: carries nothing
    ratio: Floats  # [releases]


def releases(plan: Plan) -> Releases:
    """What carries gradients, each kind once."""
    which, known = np.full(plan.releases, -1), {}
    kinds: list[Kind] = []
    for r in np.flatnonzero(plan.rate > 0).tolist():
        name = (plan.draw.which[r], plan.std.which[r], plan.carries.which[r], plan.exists[r].tobytes())
        if name not in known:
            known[name] = len(kinds)
            kinds.append(_kind(plan, r))
        which[r] = known[name]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.where(plan.rate > 0, np.square(plan.rate / plan.scale), 0.0)
    return Releases(kinds, which, ratio)


def _kind(plan: Plan, round: int) -> Kind:
    rows = np.flatnonzero(plan.exists[round])
    draw, std = plan.draw[round][rows], plan.std[round][rows]
    noise = np.zeros((len(rows), plan.draws))
    at = np.nonzero(draw >= 0)
    np.add.at(noise, (at[0], draw[at]), std[at])
    steps = np.zeros((len(rows), plan.agents))
    steps[np.arange(len(rows)), plan.owner[rows]] = plan.carries[round][rows]
    return Kind(noise, steps, plan.owner[rows].astype(np.int64))


def looked_at(plan: Plan, found: Releases, colluders: int, patient: bool) -> list[Coalition] | None:
    """Coalitions of which one learns most of each agent; None: too many to look at."""
    n = plan.agents
    if len(found.kinds) == 1 and (own := _alike(found.kinds[0])) is not None:
        # docs/privacy.md: where all share secrets, those collude who had most noise of their own.
        order = np.argsort(-own, kind="stable").tolist()
        most, others = order[:colluders], order[colluders:]
        return [tuple(sorted(most))] + [
            tuple(sorted([*most[:k], others[0], *most[k + 1 :]])) for k in range(colluders) if others
        ]
    rows = max((len(kind.owner) for kind in found.kinds), default=0)
    if patient or enumerable(rows, colluders, len(found.kinds)):
        return list(itertools.combinations(range(n), colluders))
    return None


def enumerable(agents: int, colluders: int, kinds: int = 1) -> bool:
    """Whether coalitions of so many agents with a row each are looked at one by one, unasked."""
    return math.comb(agents, colluders) * kinds * 2 * agents**3 <= EFFORT


def information_of(plan: Plan, found: Releases, coalitions: Sequence[Coalition]) -> Floats:
    """[kinds, coalitions, agents]: 1/z² at unit step, scale and sensitivity; 0 for members."""
    result = np.zeros((len(found.kinds), len(coalitions), plan.agents))
    members = np.zeros((len(coalitions), plan.agents), bool)
    for o, J in enumerate(coalitions):
        members[o, list(J)] = True
    knows = ~np.stack([unknown_draws(plan, marked) for marked in np.eye(plan.agents, dtype=bool)])
    for k, kind in enumerate(found.kinds):
        for part in _parts(len(coalitions), len(kind.owner)):
            unknown = ~(members[part].astype(float) @ knows > 0)
            result[k, part] = _squared(kind, unknown, members[part])
    result[:, members] = 0.0
    return result


def _squared(kind: Kind, unknown: Bools, members: Bools) -> Floats:
    """sᵀ(NNᵀ)⁺s [coalitions, agents], N the deviations of the draws unknown to each."""
    C = (kind.noise * unknown[:, None, :]) @ kind.noise.T
    rows = np.arange(len(kind.owner))
    C[:, rows, rows] += members[:, kind.owner]  # what members make they know: no release
    variance = C[:, rows, rows]
    with np.errstate(all="ignore"):
        scale = np.sqrt(variance)
        try:
            L = np.linalg.cholesky(C / scale[:, :, None] / scale[:, None, :]) * scale[:, :, None]
            clear = bool((L[:, rows, rows] ** 2 > RESOLUTION * variance).all())
        except np.linalg.LinAlgError:
            clear = False
    if not clear or not np.isfinite(scale).all():
        return np.array([_one_by_groups(one, kind) for one in C])
    inverse = np.linalg.inv(L)
    # C - E >= (1 - ρ)C with E = ROUNDING·V and ρ = tr(L⁻¹EL⁻ᵀ), as in `whiten`
    share = ROUNDING * np.einsum("orc,oc->o", inverse**2, variance)
    squares = np.square(inverse @ kind.steps).sum(axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(share < 0.5, 1 / (1 - np.minimum(share, 0.5)), np.inf)[:, None] * squares)


def _one_by_groups(C: Floats, kind: Kind) -> Floats:
    """The same with rows that may lack noise; those that share no draws are independent releases."""
    result = np.zeros(kind.steps.shape[1])
    labels = connected_components(sparse.csr_array(C), directed=False)[1]
    for label in range(labels.max(initial=-1) + 1):
        group = np.flatnonzero(labels == label)
        result += _generalized(C[np.ix_(group, group)], kind.steps[group])
    return result


def _generalized(C: Floats, S: Floats) -> Floats:
    """sᵀC⁺s for each column s of S; infinite where s leaves the range of C."""
    fresh, inverse, null, weights, guard = whiten(C, C.diagonal())
    left = np.abs(S[null] - weights @ S[fresh])
    # Rounding in the weights is judged by all that enters the row, whoever's step it is.
    entered = (S[null] + np.abs(weights) @ S[fresh]).sum(axis=1, keepdims=True)
    leaks = (left > LEAK * entered).any(axis=0)
    D = inverse @ S[fresh] if len(fresh) else np.zeros((0, S.shape[1]))
    if not np.isfinite(guard):  # rounding may hide that there is no noise at all
        return np.where(leaks | D.any(axis=0), np.inf, 0.0)
    return np.where(leaks, np.inf, np.square(D * guard).sum(axis=0))


def bounded(plan: Plan, found: Releases, colluders: int) -> Floats | None:
    """[kinds, 1, agents]: no coalition of so many learns more; None where no bound is known.

    In pairs with opposite signs NNᵀ is a diagonal of own noise and a Laplacian. An agent that leaves takes at
    most the heaviest edge from its second eigenvalue (Fiedler 1973).
    """
    left = plan.agents - colluders
    result = []
    for kind in found.kinds:
        parts = _own_and_pairs(kind)
        if parts is None or left < 1:
            return None
        own, weights = parts
        laplacian = np.diag(weights.sum(axis=1)) - weights
        second = float(np.linalg.eigvalsh(laplacian)[1]) if plan.agents > 1 else 0.0
        connected = second - colluders * float(weights.max(initial=0.0)) - 1e-9 * float(np.trace(laplacian))
        least = float(own.min())
        if connected <= 0 or least <= 0:
            return None
        # [(aI + L)⁻¹]_ii = 1/(ma) + (the rest, orthogonal to 1)/(a + at least λ_2)
        share = 1 / (left * least) + (1 - 1 / left) / (least + connected)
        result.append(np.full((1, plan.agents), share * (1 + 1e-12)))
    return np.array(result)


def _own_and_pairs(kind: Kind) -> tuple[Floats, Floats] | None:
    """Own variances [n] and weights [n, n] of pairs; None where noise has another form."""
    n = kind.steps.shape[1]
    if len(kind.owner) != n or not np.array_equal(kind.steps, np.eye(n)):
        return None
    entries = (kind.noise != 0).sum(axis=0)
    paired = np.flatnonzero(entries == 2)
    if (entries > 2).any() or kind.noise[:, paired].sum(axis=0).any():
        return None
    own = np.square(kind.noise[:, entries == 1]).sum(axis=1)
    weights = np.zeros((n, n))
    for draw in paired.tolist():
        i, j = np.flatnonzero(kind.noise[:, draw])
        weights[i, j] += kind.noise[i, draw] ** 2
        weights[j, i] = weights[i, j]
    return own, weights


def _alike(kind: Kind) -> Floats | None:
    """Own variances, where every two agents share noise and all pairs share the same amount."""
    parts = _own_and_pairs(kind)
    if parts is None or len(parts[0]) < 2:
        return None
    between = parts[1][~np.eye(len(parts[0]), dtype=bool)]
    return parts[0] if between[0] > 0 and (between == between[0]).all() else None


def _parts(coalitions: int, rows: int) -> Iterator[slice]:
    step = max(1, CHUNK // max(1, rows * rows))
    return (slice(start, start + step) for start in range(0, coalitions, step))

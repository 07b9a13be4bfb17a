"""The residual noise of a plan: how much noise remains in the average of the estimates, and around it.

Residual noise affects utility, not privacy. Noise is added to rows, and rows are mixed, both linearly. The
covariance of all rows therefore follows from the plan alone, and methods can be compared before any data is
read.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from topdp.base.array_types import AnyArray, Floats
from topdp.errors import InputError
from topdp.plan import Capability, Plan, unsupported

MAX_DENSE_ROWS = 100  # the most rows for which matrices are dense
CACHED_MATRICES = 16  # the number of different releases whose matrices are kept


class ResidualNoise(NamedTuple):
    """The variances of one parameter after each release.

    `average` [releases]: the variance of the mean of all estimates. `between` [releases]: the mean variance
    of an estimate around that mean. `estimates` [agents]: the variance of each estimate after the last
    release.
    """

    average: Floats
    between: Floats
    estimates: Floats


def supports(plan: Plan) -> str | None:
    """Return None, or the feature of `plan` that is not linear. Rounding is supported, but not counted."""
    return unsupported(plan, {Capability.ROUNDED_ROWS, Capability.SHARED_DRAWS, Capability.PRUNED_ROWS})


def residual_noise(plan: Plan) -> ResidualNoise:
    """Return the residual noise of `plan`, as if gradients did not react to noise. Rounding is not counted.

    Raise InputError if rows of the plan are not linear.

    >>> import numpy as np
    >>> from topdp import protocols, topology
    >>> from topdp.plan import Schedule
    >>> steps = Schedule(rate=np.ones(2), noise=np.ones(2))
    >>> plan = protocols.Muffliato(gossip=1).plan(topology.complete(4), steps, np.ones(4), seed=0)
    >>> found = residual_noise(plan)
    >>> found.average.round(3).tolist(), found.between.round(3).tolist()
    ([0.25, 0.25, 0.5, 0.5], [0.75, 0.0, 0.75, 0.0])
    """
    if reason := supports(plan):
        raise InputError(f"Expected a plan of linear rows, got {reason}. Its residual noise is unknown.")
    n, m = plan.agents, plan.rows
    cached = lru_cache(maxsize=CACHED_MATRICES)
    mixing, fresh = cached(partial(_mixing, plan)), cached(partial(_fresh, plan))
    C, average, between = np.zeros((m, m)), np.zeros(plan.releases), np.zeros(plan.releases)
    for r in range(plan.releases):
        source = int(plan.source.which[r])
        W = mixing(source, int(plan.weight.which[r]))
        # C ← W C Wᵀ + N Nᵀ; C is symmetric
        C = W @ np.ascontiguousarray((W @ C).T)
        if plan.scale[r]:
            C += plan.scale[r] ** 2 * fresh(source, int(plan.draw.which[r]), int(plan.std.which[r]))
        of_mean = float(C[:n, :n].mean())
        # The difference is a variance; rounding can make a variance of 0 negative.
        average[r], between[r] = of_mean, max(0.0, float(C.diagonal()[:n].mean()) - of_mean)
    return ResidualNoise(average, between, C.diagonal()[:n].copy())


def _mixing(plan: Plan, source: int, weight: int) -> Any:
    """Return W [rows, rows], the weights by which rows mix.

    The arguments are indices of the plan's tables of sources and weights.
    """
    W = _matrix(plan.source.values[source], plan.weight.values[weight], plan.rows)
    # A small dense matrix is as fast as a sparse one.
    return W.toarray() if plan.rows <= MAX_DENSE_ROWS else W


def _fresh(plan: Plan, source: int, draw: int, std: int) -> Floats:
    """Return N Nᵀ [rows, rows], the covariance of the noise that one release adds, at unit scale.

    The arguments are indices of the plan's tables of sources (which rows exist), draws and deviations.
    """
    exists = (plan.source.values[source] >= 0).any(axis=1)
    draws = np.where(exists[:, None], plan.draw.values[draw], -1)
    N = _matrix(draws, plan.std.values[std], plan.draws)
    return np.asarray((N @ N.T).toarray())


def _matrix(columns: AnyArray, values: Floats, width: int) -> sparse.csr_array:
    """Return the sparse matrix [rows, width] with the entry values[r, i] at column columns[r, i] of row r.

    Negative columns are padding.
    """
    used = columns >= 0
    starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    return sparse.csr_array((values[used], columns[used], starts), shape=(len(columns), width))

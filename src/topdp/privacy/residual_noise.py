"""The residual noise of a plan: how much noise remains in the estimates, in their average and between them.

This concerns utility, not privacy. Noise enters rows and rows mix, both linearly, so the covariance of all
rows follows from the plan alone. It compares methods before any data is read.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from topdp.base.array_types import AnyArray, Floats
from topdp.errors import InputError
from topdp.plan import Capability, Plan, unsupported

MAX_DENSE_ROWS = 100  # rows
CACHED_MATRICES = 16  # kinds of rounds


class ResidualNoise(NamedTuple):
    """Variances of one parameter, after each release.

    `average` [releases]: of the mean of all estimates. `between` [releases]: of an estimate around that mean.
    """

    average: Floats
    between: Floats


def supports(plan: Plan) -> str | None:
    """Return None, or the need of `plan` that is not linear. Rounding is supported, but not in the result."""
    return unsupported(plan, {Capability.ROUNDED_ROWS, Capability.SHARED_DRAWS, Capability.PRUNED_ROWS})


def residual_noise(plan: Plan) -> ResidualNoise:
    """Return the residual noise of a plan, as if gradients did not react to noise. Rounding is not included.

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
        raise InputError(f"Expected a plan of linear rows, got {reason}. Its residual noise is not known.")
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
        average[r], between[r] = of_mean, float(C.diagonal()[:n].mean()) - of_mean
    return ResidualNoise(average, between)


def _mixing(plan: Plan, source: int, weight: int) -> Any:
    """Return W [rows, rows] from the indices of the source and weight tables."""
    W = _matrix(plan.source.values[source], plan.weight.values[weight], plan.rows)
    # A small dense matrix is as fast as a sparse one.
    return W.toarray() if plan.rows <= MAX_DENSE_ROWS else W


def _fresh(plan: Plan, source: int, draw: int, std: int) -> Floats:
    """Return N Nᵀ [rows, rows] at unit scale.

    The arguments are the indices of the tables of sources (which rows exist), draws and deviations.
    """
    exists = (plan.source.values[source] >= 0).any(axis=1)
    draws = np.where(exists[:, None], plan.draw.values[draw], -1)
    N = _matrix(draws, plan.std.values[std], plan.draws)
    return np.asarray((N @ N.T).toarray())


def _matrix(columns: AnyArray, values: Floats, width: int) -> sparse.csr_array:
    """Return the sparse matrix [rows, width] with these entries; column -1 is padding."""
    used = columns >= 0
    starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    return sparse.csr_array((values[used], columns[used], starts), shape=(len(columns), width))

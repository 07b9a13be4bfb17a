"""Bounds of μ² from a band of the Gram matrix M, for long plans; `mu_bounds` uses the whole matrix.

**Guarantees.** As in `mu_bounds`; the part of M outside the band is added to `upper` and subtracted from
`lower`.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dpbtrf
from scipy.sparse import csr_array, diags_array

from topdp.base.array_types import Floats
from topdp.privacy.observers.band_matrix import Band
from topdp.privacy.observers.mu_bounds import FLOAT64_EPSILON, Certificate, best_bound, bracket, proves

MAX_DENSE_BAND = 160  # below this size the whole matrix is as fast


def bracket_band(band: Band, period: int = 1, enough: float = 0.0) -> tuple[float, float]:
    """Return the bounds of `bracket` for a matrix that is known near its diagonal only."""
    if band.leaks.any() or not (np.isfinite(band.values).all() and np.isfinite(band.rest).all()):
        return np.inf, np.inf
    R = len(band.values)
    # Row sums of a class hold every entry above the diagonal twice.
    twice = band.values[:, ::period] * np.where(np.arange(0, band.values.shape[1], period) > 0, 2.0, 1.0)
    which = np.arange(R) % period
    rest = np.bincount(which, band.rest)
    lower = np.sqrt(np.maximum(0.0, np.bincount(which, twice.sum(axis=1)))) - rest
    simple = np.sqrt(np.bincount(which, np.abs(twice).sum(axis=1))) + rest
    highest = 0.0
    for s in np.argsort(-simple):
        if simple[s] <= max(highest, np.sqrt(enough)):
            highest = max(highest, float(simple[s]))
            break
        length = np.sqrt(_upper_of_band(band.values[s::period, ::period]))
        highest = max(highest, min(float(simple[s]), float(length) + float(rest[s])))
    rounding = 1 + 4 * R * FLOAT64_EPSILON
    return float(max(0.0, lower.max())) ** 2, max(highest, float(lower.max())) ** 2 * rounding


def _upper_of_band(B: Floats) -> float:
    """Return the best certified bound, as `mu_bounds` does."""
    size, width = B.shape
    if size <= MAX_DENSE_BAND:
        return float(bracket(_whole(B).toarray())[1])
    largest = float(B[:, 0].max())
    if largest == 0:
        return 0.0
    B = B / largest
    M = _whole(B)

    def scaled(d: Floats) -> Certificate:
        root = np.sqrt(d)
        ahead = np.concatenate([root, np.ones(width)])
        below = (B / root[:, None] / ahead[np.arange(size)[:, None] + np.arange(width)]).T

        def holds(value: float) -> bool:
            # [width, size]: entry (k, r) is that of row r + k, column r
            shifted = np.array(-below, order="F")
            shifted[0] += value
            factor, failed = dpbtrf(shifted, lower=1, overwrite_ab=1)
            return proves(failed, factor[0])

        return holds

    upper = best_bound(max(0.0, float(M.sum())), float(abs(M).sum()), B[:, 0], M.__matmul__, scaled)
    return float(largest * upper * (1 + 4 * size * FLOAT64_EPSILON))


def _whole(B: Floats) -> csr_array:
    size, width = B.shape
    width = min(width, size)
    lines = [B[: size - k, k] for k in range(width)]
    return diags_array([*lines, *lines[1:]], offsets=[*range(width), *range(-1, -width, -1)], format="csr")

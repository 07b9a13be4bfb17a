"""From a band of M to μ²: the brackets of `bounds`, for long plans.

**Guarantees.** As in `bounds`, with what the band leaves out on the private side of `upper`, and taken off
`lower`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky_banded
from scipy.sparse import dia_array
from scipy.sparse.linalg import ArpackError, eigsh

from topdp.privacy.banded import Band
from topdp.privacy.bounds import MARGIN, SMALL, ULP, bracket

Floats = NDArray[np.float64]


def bracket_band(band: Band, period: int = 1) -> tuple[float, float]:
    """As `bracket`, for a matrix that is known near its diagonal only."""
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
        if simple[s] <= highest:
            break
        length = np.sqrt(_upper_of_band(band.values[s::period, ::period]))
        highest = max(highest, min(float(simple[s]), float(length) + float(rest[s])))
    rounding = 1 + 4 * R * ULP
    return float(max(0.0, lower.max())) ** 2, max(highest, float(lower.max())) ** 2 * rounding


def _upper_of_band(B: Floats) -> float:
    """The best of the certificates of `_bracket`."""
    size, width = B.shape
    if size <= SMALL:
        return float(bracket(_dense(B))[1])
    active = B[:, 0] > 0
    largest = float(B[:, 0].max())
    if largest == 0:
        return 0.0
    B = B / largest
    sums = _times_ones(B)
    upper = float(np.abs(B[:, 0]).sum() + 2 * np.abs(B[:, 1:]).sum())
    weights = [np.ones(size), B[:, 0]]
    if sums[active].min() > 0:
        weights.append(sums)
    for d in weights:
        root = np.sqrt(np.where(active, d, 1.0))
        ahead = np.concatenate([root, np.ones(width)])
        scaled = B / root[:, None] / ahead[np.arange(size)[:, None] + np.arange(width)]
        upper = min(upper, float(d[active].sum()) * _largest_eigenvalue_of_band(scaled))
    return float(largest * upper * (1 + 4 * size * ULP))


def _largest_eigenvalue_of_band(B: Floats) -> float:
    """Not below the largest eigenvalue; above it by about `MARGIN`, or as far as the largest row sum."""
    size, width = B.shape
    below = B.T.copy()  # [width, size]: entry (k, r) is M[r + k, r]
    above = [np.concatenate([np.zeros(k), B[: size - k, k]]) for k in range(1, width)]
    offsets = [-k for k in range(width)] + list(range(1, width))
    M = dia_array((np.concatenate([below, *(line[None] for line in above)]), offsets), (size, size))
    try:
        value = float(
            eigsh(M, 1, which="LA", tol=MARGIN / 10, v0=np.ones(size), return_eigenvectors=False)[0]
        )
        value *= 1 + MARGIN / 2
        shifted = -below
        shifted[0] += value
        cholesky_banded(shifted, lower=True)  # fails if an eigenvalue lies above
    except (ArpackError, np.linalg.LinAlgError):
        value = float(_times_ones(np.abs(B)).max())
    return float(value * (1 + 4 * size * ULP))


def _times_ones(B: Floats) -> Floats:
    """M 1"""
    size = len(B)
    total = B.sum(axis=1)
    for k in range(1, min(B.shape[1], size)):
        total[k:] += B[: size - k, k]
    return np.asarray(total)


def _dense(B: Floats) -> Floats:
    size = len(B)
    M = np.zeros((size, size))
    for k in range(min(B.shape[1], size)):
        r = np.arange(size - k)
        M[r, r + k] = M[r + k, r] = B[r, k]
    return M

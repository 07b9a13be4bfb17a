"""From M to μ²: how far the best change of a record can go, between a lower and a sound upper value.

The changes u_r of the gradient in the rounds that use the record are vectors with |u_r| <= 1 (times the
sensitivity), and μ² = max Σ M_rs <u_r, u_s>. That maximum is a max-cut problem; the bounds here bracket it.

**Guarantees.** Sound for every choice of u, also for vectors that point different ways. `lower` is reached
by u_r all alike (the aligned record). Upper and lower are equal when aligned is best and a certificate shows
it, and for a single round. Rounding is on the private side in `upper`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, eigsh

Floats = NDArray[np.float64]

SMALL = 160  # below this size all eigenvalues are the fastest way to the largest
MARGIN = 1e-9  # what the certificate of a large eigenvalue may add
ULP = float(np.finfo(np.float64).eps)


def bracket(M: Floats, period: int = 1) -> tuple[float, float]:
    """(lower, upper) of μ² at unit sensitivity: the worst residue class of rounds modulo `period`.

    >>> bracket(np.array([[2.0, 1.0], [1.0, 2.0]]))[0]
    6.0
    >>> bracket(np.array([[2.0, 1.0], [1.0, 2.0]]), period=2)[0]
    2.0
    """
    classes = [_bracket(M[s::period, s::period]) for s in range(min(period, len(M)))]
    return max(low for low, _ in classes), max(high for _, high in classes)


def _bracket(M: Floats) -> tuple[float, float]:
    if not np.isfinite(M).all():
        return np.inf, np.inf
    largest = float(M.diagonal().max(initial=0.0))
    if largest == 0:
        return 0.0, 0.0
    # M is positive semidefinite: a zero on the diagonal is a round that J never learns of.
    active = M.diagonal() > 0
    M = M[np.ix_(active, active)] / largest
    lower = max(0.0, float(M.sum()))
    upper = float(np.abs(M).sum())
    if upper > lower * (1 + 4 * len(M) * ULP):
        # Σ M_rs <u_r, u_s> <= λ Σ d_r |u_r|², λ the largest eigenvalue of D^-½ M D^-½, for every D > 0.
        # D = 1: paper-notes §4. D = diag(M 1): λ = 1 proves that aligned is best.
        weights = [np.ones(len(M)), M.diagonal()]
        if (row_sums := M.sum(axis=1)).min() > 0:
            weights.append(row_sums)
        for d in weights:
            root = np.sqrt(d)
            upper = min(upper, float(d.sum()) * largest_eigenvalue(M / root[:, None] / root))
    return largest * lower, largest * max(upper, lower) * (1 + 4 * len(M) * ULP)


def largest_eigenvalue(M: Floats) -> float:
    """Not below the largest eigenvalue of a symmetric M; above it by at most about `MARGIN` of it."""
    size = len(M)
    if size > SMALL:
        try:
            value = float(
                eigsh(M, 1, which="LA", tol=MARGIN / 10, v0=np.ones(size), return_eigenvectors=False)[0]
            )
            value *= 1 + MARGIN / 2
            # Lanczos comes from below; that no eigenvalue lies above is shown by a Cholesky factor.
            np.linalg.cholesky(value * np.eye(size) - M)
            return value * (1 + 4 * size * ULP)
        except (ArpackError, np.linalg.LinAlgError):
            pass
    return float(np.linalg.eigvalsh(M)[-1]) * (1 + 4 * size * ULP)

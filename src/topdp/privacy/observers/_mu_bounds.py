"""Bounds of μ² from the Gram matrix M or a band of it, over all changes that one record can make.

A record changes the gradients of the rounds that use it. These changes u_r are vectors with |u_r| <= 1 (times
the sensitivity), and μ² = max Σ M_rs <u_r, u_s>. As a function of the inner products <u_r, u_s>, this is a
semidefinite program. Its dual gives sound bounds: for every D > 0, μ² <= λ Σ D_r, where λ is the largest
eigenvalue of D^-½ M D^-½.

**Guarantees.** `upper` is sound for every choice of u, also for vectors in different directions. Equal u_r
(the *aligned record*) reach `lower`. The two are equal for a single round, and if the aligned record is the
worst record and a certificate proves it. Otherwise `upper` exceeds the value of some record by at most a few
thousandths in all cases that we have tried. Rounding in `upper` errs on the private side. The part of M
outside a band is added to `upper` and subtracted from `lower`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg.lapack import dpbtrf, dpotrf
from scipy.sparse import csr_array, diags_array

from topdp.base.array_types import Floats
from topdp.base.rounding import gamma
from topdp.privacy.observers.gram_matrix import Band

BOUND_PRECISION = 1 + 1e-9  # the relative precision of the bisection for the best bound
WEIGHT_STEPS = 120  # the number of iterations towards the best weights D
FLOAT64_EPSILON = float(np.finfo(np.float64).eps)
MAX_DENSE_BAND = 160  # up to this number of releases, computing with the whole matrix is as fast


def bracket(M: Floats, period: int = 1, enough: float = 0.0) -> tuple[float, float]:
    """Return bounds (lower, upper) of μ² at unit sensitivity for the worst residue class modulo `period`.

    A record is used in the rounds of one residue class. An upper bound that is at most `enough` is not
    refined further.

    >>> bracket(np.array([[2.0, 1.0], [1.0, 2.0]]))[0]
    6.0
    >>> bracket(np.array([[2.0, 1.0], [1.0, 2.0]]), period=2)[0]
    2.0
    """
    classes = [_bracket(M[s::period, s::period], enough) for s in range(min(period, len(M)))]
    return max(low for low, _ in classes), max(high for _, high in classes)


def _bracket(M: Floats, enough: float) -> tuple[float, float]:
    """Return the bounds of `bracket` for a record that is used in every round."""
    if not np.isfinite(M).all():
        return np.inf, np.inf
    largest = float(M.diagonal().max(initial=0.0))
    if largest == 0:
        return 0.0, 0.0
    M = M / largest
    lower = max(0.0, float(M.sum()))
    upper = float(np.abs(M).sum())

    def scaled(d: Floats) -> Certificate:
        root = np.sqrt(d)
        return _certificate(M / root[:, None] / root)

    if upper > enough / largest:
        upper = best_bound(lower, upper, M.diagonal(), M.__matmul__, scaled)
    return largest * lower, largest * max(upper, lower) * (1 + 4 * len(M) * FLOAT64_EPSILON)


# A function that returns whether a Cholesky factor proves that no eigenvalue of a matrix exceeds a given
# value.
Certificate = Callable[[float], bool]


def best_bound(
    lower: float,
    upper: float,
    diagonal: Floats,
    times: Callable[[Floats], Floats],
    scaled: Callable[[Floats], Certificate],
) -> float:
    """Return the least of `upper` and the upper bounds on μ² that several choices of D prove.

    `lower`, `upper`: known bounds. `diagonal`: that of M. `times`: multiplies by M. `scaled`: returns the
    certificate of D^-½ M D^-½.
    """
    size = len(diagonal)
    # If a matrix has a Cholesky factor in floating point, it is positive up to γ_(size+1) of its diagonal in
    # each entry (Higham 2002, Theorem 10.3). Forming the matrix takes a few more roundings per entry.
    rounding = 1 + (size + 8) * size * FLOAT64_EPSILON
    close = rounding**4
    row_sums = times(np.ones((size, 1)))[:, 0]
    guesses = [np.ones(size), diagonal]
    if row_sums.min() >= 0 and row_sums.max() > FLOAT64_EPSILON:
        guesses.insert(0, row_sums)
        d = _positive(row_sums)
        if upper > lower * close and scaled(d)(rounding**3 * lower / float(d.sum())):
            upper = lower * close  # the aligned record is the worst record
    if upper > lower * close:
        d, reached = balanced(times, size)
        # The guesses help if M is almost diagonal, or if the aligned record is almost the worst. Otherwise
        # one trial rejects them.
        for weights in (d, *guesses):
            d = _positive(weights)
            total = float(d.sum())
            proved = bisected(scaled(d), max(lower, reached) / total, upper / total / rounding)
            upper = min(upper, proved * total * rounding)
    return upper


def bisected(holds: Certificate, low: float, high: float) -> float:
    """Bisect [low, high] for the threshold above which `holds` is true; return a value just above it.

    `holds` is true for the result, which is at most BOUND_PRECISION times the threshold (or `low`, if that is
    larger). The result is `high` if `holds` is false for high / BOUND_PRECISION.
    """
    if not holds(high / BOUND_PRECISION):
        return high
    while high > low * BOUND_PRECISION:
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _positive(d: Floats) -> Floats:
    """Return `d` with zeros replaced by small weights, which rounds that reveal nothing may have."""
    return np.asarray(np.maximum(d, FLOAT64_EPSILON * d.max()))


def balanced(times: Callable[[Floats], Floats], size: int) -> tuple[Floats, float]:
    """Return weights D [size] that give almost the least bound, and the value of μ² for some u.

    `times` multiplies by M. The value for u is Σ M_rs <u_r, u_s>. The iteration u ← M u / |M u|, round by
    round, never lowers it, because M
    is positive semidefinite. At its limit, D_r = |(M u)_r| solves the dual. The vectors u_r have few
    components (Burer and Monteiro 2003). Momentum makes the iteration faster. Its convergence affects only
    how tight the bound is. The iteration has no branches, so if noise is multiplied by s, the bound of μ is
    divided by s, up to rounding. Calibration relies on this.
    """
    # The start is near the aligned record, and irregular without random numbers, which might change.
    turns = np.outer(np.arange(1, size + 1), np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0]))
    u = before = _unit(1.0 + 0.4 * np.cos(turns))
    for _ in range(WEIGHT_STEPS):
        before, u = u, _unit(times(u + 0.9 * (u - before)))
    moved = times(u)
    return np.asarray(np.linalg.norm(moved, axis=1)), float((u * moved).sum())


def _unit(u: Floats) -> Floats:
    """Return `u` with each row divided by its norm."""
    return np.asarray(u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), np.finfo(np.float64).tiny))


def proves(failed: int, diagonal: Floats) -> bool:
    """Return whether LAPACK computed a Cholesky factor, which proves that the matrix is positive.

    `failed`: LAPACK's status. `diagonal`: that of the factor, which is checked too, because LAPACK does not
    report a division by 0 as a failure.
    """
    return failed == 0 and bool(np.isfinite(diagonal).all())


def _certificate(M: Floats) -> Certificate:
    """Return the certificate of the matrix M."""

    def holds(value: float) -> bool:
        factor, failed = dpotrf((value * np.eye(len(M)) - M).T, lower=1, clean=0, overwrite_a=1)
        return proves(failed, factor.diagonal())

    return holds


def bracket_band(band: Band, period: int = 1, enough: float = 0.0) -> tuple[float, float]:
    """Return the bounds of `bracket` for a matrix that is known only near its diagonal."""
    parts = (band.values, band.rest, band.rounding)
    if band.leaks.any() or not all(np.isfinite(part).all() for part in parts):
        return np.inf, np.inf
    R = len(band.values)
    # The sum over a residue class contains every entry above the diagonal twice.
    twice = band.values[:, ::period] * np.where(np.arange(0, band.values.shape[1], period) > 0, 2.0, 1.0)
    which = np.arange(R) % period
    rest = np.bincount(which, band.rest)
    # Σ |u_r| |u_s| (√M_rr·rounding[s] + rounding[r]·√M_ss), and the rounding of the sums below
    lengths = np.sqrt(np.maximum(band.values[:, 0], 0.0))
    rounding: Floats = np.asarray(band.rounding + gamma(2 * R) * lengths)
    rounding = np.asarray(2.01 * np.bincount(which, lengths + rounding) * np.bincount(which, rounding))
    lower = np.sqrt(np.maximum(0.0, np.bincount(which, twice.sum(axis=1)))) - rest
    simple = np.sqrt(np.bincount(which, np.abs(twice).sum(axis=1)) + rounding) + rest
    highest = 0.0
    for s in np.argsort(-simple):
        if simple[s] <= max(highest, np.sqrt(enough)):
            highest = max(highest, float(simple[s]))
            break
        length = np.sqrt(_upper_of_band(band.values[s::period, ::period]) + rounding[s])
        highest = max(highest, min(float(simple[s]), float(length) + float(rest[s])))
    last_digits = 1 + gamma(8 * R + 16)
    return float(max(0.0, lower.max())) ** 2, max(highest, float(lower.max())) ** 2 * last_digits


def _upper_of_band(B: Floats) -> float:
    """Return the best certified upper bound of μ² for the matrix with the band B [releases, width]."""
    size, width = B.shape
    if size <= MAX_DENSE_BAND or 2 * width > size:
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
            # [width, size]: entry (k, r) is the entry of the matrix in row r + k and column r
            shifted = np.array(-below, order="F")
            shifted[0] += value
            factor, failed = dpbtrf(shifted, lower=1, overwrite_ab=1)
            return proves(failed, factor[0])

        return holds

    upper = best_bound(max(0.0, float(M.sum())), float(abs(M).sum()), B[:, 0], M.__matmul__, scaled)
    return float(largest * upper * (1 + 4 * size * FLOAT64_EPSILON))


def _whole(B: Floats) -> csr_array:
    """Return the symmetric sparse matrix with the band B [releases, width]."""
    size, width = B.shape
    width = min(width, size)
    lines = [B[: size - k, k] for k in range(width)]
    return diags_array([*lines, *lines[1:]], offsets=[*range(width), *range(-1, -width, -1)], format="csr")

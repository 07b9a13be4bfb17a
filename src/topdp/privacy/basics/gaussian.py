"""Exact accounting of Gaussian releases: conversions between noise multipliers, μ and (ε, δ).

A release of noise multiplier z (noise std / sensitivity) is μ-Gaussian differentially private with μ = 1/z;
any number of them, chosen adaptively, with μ² = Σ 1/z_t² (Dong, Roth, Su, arXiv:1905.02383, Corollary 3.3).
The curve of (ε, δ) that belongs to μ is (there Corollary 2.13; Balle, Wang 2018, arXiv:1805.06530, Theorem 8)

    δ(ε) = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2).

`poisson` covers subsampled releases, `view` what an observer sees.

**Guarantees.** Exact for Gaussian noise, not a bound. Adjacency and sensitivity are chosen by the caller, who
divides by the sensitivity to get z. Rounding errs on the private side: `delta_of` is never below the true δ,
`epsilon_of` never below the true ε, `mu_of` never above the largest μ the budget allows, `noise_multiplier`
never below the least z, each by less than 1e-10 of its value for ε from 1e-6 to 1e4 and δ from 1e-15 to 0.5.
(An ε that is all but 0 because δ is all but δ(0) errs by up to 1e-12 of δ instead, whatever its own size.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, log_ndtr

from topdp.base.array_types import Bools, Floats
from topdp.base.number_checks import expect_count
from topdp.privacy.basics.refusals import PrivacyError, expect_delta, expect_epsilon

_ULP = float(np.finfo(np.float64).eps)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
# Below e^-45 of its peak the integrand of `_log_delta_small` is negligible in double precision.
_CUTOFF = 45.0
_PLACES = 32  # evaluated together in a bisection step


@overload
def delta_of(mu: float, epsilon: float) -> float: ...
@overload
def delta_of(mu: Floats, epsilon: ArrayLike) -> Floats: ...
@overload
def delta_of(mu: ArrayLike, epsilon: Floats) -> Floats: ...
def delta_of(mu: ArrayLike, epsilon: ArrayLike) -> float | Floats:
    """Return δ(ε) of μ, rounded up; arrays broadcast. μ = 0 gives 0, μ = infinity gives 1.

    >>> round(delta_of(0.26805, 1.0), 8)
    1e-05
    """
    m, e = np.broadcast_arrays(_mus(mu), _floats("epsilon", epsilon))
    good = (e >= 0) & np.isfinite(e)
    if not np.all(good):
        raise PrivacyError(f"Expected a finite epsilon >= 0, got {_first(e, ~good)}.")
    return _unwrap(np.exp(_log_delta(m, e)))


@overload
def epsilon_of(mu: float, delta: float) -> float: ...
@overload
def epsilon_of(mu: Floats, delta: ArrayLike) -> Floats: ...
@overload
def epsilon_of(mu: ArrayLike, delta: Floats) -> Floats: ...
def epsilon_of(mu: ArrayLike, delta: ArrayLike) -> float | Floats:
    """Return the least ε at which μ is (ε, δ)-private, rounded up; arrays broadcast.

    0 where δ is at least δ(0) (so for μ = 0), infinity for μ = infinity.

    >>> round(epsilon_of(0.26805, 1e-5), 4)
    1.0
    """
    m, d = np.broadcast_arrays(_mus(mu), _deltas(delta))
    shape = m.shape
    m, d = m.ravel(), d.ravel()
    result = np.where(np.isinf(m), np.inf, 0.0)
    log_delta = np.log(d)
    todo = np.isfinite(m) & (_log_delta(m, np.zeros_like(m)) > log_delta)
    m, log_delta = m[todo], log_delta[todo]
    with np.errstate(over="ignore"):
        # Φ(-a) <= e^{-a²/2}/2, so this end of the bracket is private with a factor of two to spare.
        high = m * (m / 2 + np.sqrt(-2 * log_delta))
    result[todo] = _bisect(lambda e: _log_delta(m, e) <= log_delta, private=high, other=np.zeros_like(high))
    return _unwrap(result.reshape(shape))


@overload
def mu_of(epsilon: float, delta: float) -> float: ...
@overload
def mu_of(epsilon: Floats, delta: ArrayLike) -> Floats: ...
@overload
def mu_of(epsilon: ArrayLike, delta: Floats) -> Floats: ...
def mu_of(epsilon: ArrayLike, delta: ArrayLike) -> float | Floats:
    """Return the largest μ that is (ε, δ)-private, rounded down; arrays broadcast.

    >>> round(mu_of(1.0, 1e-5), 5)
    0.26805
    """
    e, d = np.broadcast_arrays(_epsilons(epsilon), _deltas(delta))
    shape = e.shape
    e, log_delta = e.ravel(), np.log(d.ravel())
    # From ε = μ²/2 + μ√(2 ln(1/δ)), which is private with a factor of two in δ to spare.
    root = np.sqrt(-2 * log_delta)
    low = 2 * e / (np.sqrt(2 * e - 2 * log_delta) + root)
    high = 2 * low
    while np.any(private := _log_delta(high, e) <= log_delta):
        high = np.where(private, 2 * high, high)
    result = _bisect(lambda m: _log_delta(m, e) <= log_delta, private=low, other=high)
    # A step back that outweighs the last digits of δ, so that `epsilon_of` of the result never exceeds ε.
    return _unwrap((result * (1 - 64 * _ULP)).reshape(shape))


@overload
def compose(noise_multipliers: ArrayLike) -> float: ...
@overload
def compose(noise_multipliers: ArrayLike, axis: int) -> Floats: ...
def compose(noise_multipliers: ArrayLike, axis: int | None = None) -> float | Floats:
    """Return μ = √(Σ 1/z²) of releases that each carry fresh noise, rounded up; over one `axis` or over all.

    A release without noise (z = 0) makes μ infinite; no release at all leaves μ = 0.

    >>> compose([3.0, 3.0, 3.0, 3.0]) >= 2 / 3
    True
    >>> compose([3.0, 0.0])
    inf
    """
    z = _floats("noise multiplier", noise_multipliers)
    good = (z >= 0) & np.isfinite(z)
    if not np.all(good):
        raise PrivacyError(f"Expected a finite noise multiplier >= 0, got {_first(z, ~good)}.")
    # NumPy sums pairwise, so to about log2(n) ulp, only along a contiguous last axis.
    z = z.ravel() if axis is None else np.ascontiguousarray(np.moveaxis(z, axis, -1))
    if z.shape[-1] == 0:
        return _unwrap(np.zeros(z.shape[:-1]))
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        least = np.min(z, axis=-1, keepdims=True)
        total = np.sqrt(np.sum(np.where(least > 0, least / z, 1.0) ** 2, axis=-1)) / least[..., 0]
    return _unwrap(total * (1 + 64 * _ULP))


def noise_multiplier(epsilon: float, delta: float, releases: SupportsIndex = 1) -> float:
    """Return the least z with which `releases` equal releases together are (ε, δ)-private, rounded up.

    >>> round(noise_multiplier(1.0, 1e-5, 1000) / 2000, 5)
    0.05899
    """
    mu = mu_of(expect_epsilon(epsilon), expect_delta(delta))
    z = math.sqrt(expect_count("releases", releases)) / mu * (1 + 128 * _ULP)
    if not math.isfinite(z):
        raise PrivacyError(f"Expected an epsilon that finite noise meets, got {epsilon}. Use a larger one.")
    return z


def _log_delta(mu: Floats, epsilon: Floats) -> Floats:
    """Return ln δ(ε) plus a bound on its rounding error, at most 0. Shapes broadcast; 0 <= μ <= infinity."""
    mu, epsilon = np.broadcast_arrays(mu, epsilon)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        centre = np.where(epsilon == 0, 0.0, epsilon / mu)
        low = centre - mu / 2
        result = np.empty(low.shape)
        small = mu < 1
        result[small] = _log_delta_small(mu[small], low[small])
        result[~small] = _log_delta_large(mu[~small], centre[~small], low[~small])
        # ln δ moves by at most about (1 + |a|) when a moves by one; a is off by a few ulp of its two parts.
        slack = 16 * _ULP * (1 + (1 + np.abs(low)) * (centre + mu / 2))
        result = np.minimum(result + slack, 0.0)
    # Far out the two terms are both infinite; there δ is 0 in doubles, and 1 only without any noise.
    result = np.where((mu == 0) | np.isinf(centre), -np.inf, result)
    return np.where(np.isinf(mu) | np.isnan(result), 0.0, result)


def _log_delta_small(mu: Floats, low: Floats) -> Floats:
    """Return ln of φ(a) ∫ e^{-at - t²/2} (1 - e^{-μt}) dt over t > 0, with a = ε/μ - μ/2 = `low` > -1/2.

    The two terms of δ(ε) agree in most digits when μ is small; written as this integral (Φ(-x)/φ(x) is
    ∫ e^{-xt - t²/2} dt, and e^ε φ(a + μ) = φ(a)) nothing cancels: every factor is positive.
    """
    end = 2 * _CUTOFF / (low + np.sqrt(low * low + 2 * _CUTOFF))
    t = end[..., None] * (_NODES + 1) / 2
    values = -np.expm1(-mu[..., None] * t) * np.exp(-t * (low[..., None] + t / 2))
    # The missing tail is below e^-40 of the integral.
    integral = np.sum(values * _WEIGHTS, axis=-1) * end / 2
    return np.asarray(np.log(integral) - low * low / 2 - math.log(2 * math.pi) / 2)


def _log_delta_large(mu: Floats, centre: Floats, low: Floats) -> Floats:
    """Return ln Φ(-a) + ln(1 - r) with r = e^ε Φ(-a - μ) / Φ(-a), a = `low`. For μ >= 1: r is far below 1."""
    high = centre + mu / 2
    tail = erfcx(high / math.sqrt(2))
    # e^ε Φ(-b) = φ(a) Φ(-b)/φ(b) needs no e^ε. Left of 0, φ(a) is small and Φ(-a) is not.
    left = np.exp(np.log(tail / 2) - low * low / 2 - log_ndtr(-low))
    right = tail / erfcx(np.maximum(low, 0.0) / math.sqrt(2))
    return np.asarray(log_ndtr(-low) + np.log1p(-np.where(low > 0, right, left)))


def _bisect(is_private: Callable[[Floats], Bools], private: Floats, other: Floats) -> Floats:
    """Return the last private double before the border between `private` and `other`, elementwise.

    For few elements several points are evaluated together: a call costs the same for one point as for many.
    """
    places = max(1, _PLACES // max(1, private.size))
    part = (np.arange(1, places + 1) / (places + 1))[:, None]
    for _ in range(1100):  # enough to halve the whole range of doubles
        with np.errstate(invalid="ignore"):
            between = private + (other - private) * part
        if np.all((between == private) | (between == other) | ~np.isfinite(between)):
            break
        # The first place that is not private, and the one before it, are the new ends.
        ends = np.concatenate([private[None], between, other[None]])
        first = 1 + np.logical_and.accumulate(is_private(between)).sum(axis=0)
        private, other = (np.take_along_axis(ends, at[None], 0)[0] for at in (first - 1, first))
    return private


def _floats(name: str, values: ArrayLike) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise PrivacyError(f"Expected {name} as a number or an array of numbers, got {values!r}.") from None


def _mus(mu: ArrayLike) -> Floats:
    m = _floats("mu", mu)
    if not np.all(m >= 0):
        raise PrivacyError(f"Expected mu >= 0, got {_first(m, ~(m >= 0))}.")
    return m


def _deltas(delta: ArrayLike) -> Floats:
    d = _floats("delta", delta)
    for bad in d[~((d > 0) & (d < 1))].ravel()[:1]:
        expect_delta(float(bad))
    return d


def _epsilons(epsilon: ArrayLike) -> Floats:
    e = _floats("epsilon", epsilon)
    for bad in e[~((e > 0) & np.isfinite(e))].ravel()[:1]:
        expect_epsilon(float(bad))
    return e


def _first(values: Floats, where: Bools) -> float:
    return float(values[where].ravel()[0])


def _unwrap(values: Floats) -> float | Floats:
    return float(values) if np.ndim(values) == 0 else values

"""Exact accounting of Gaussian releases: conversions between noise multipliers, μ and (ε, δ).

A release with noise multiplier z (standard deviation of the noise / sensitivity) is μ-Gaussian differentially
private with μ = 1/z. Any number of releases, chosen adaptively, are so with μ² = Σ 1/z_t² (Dong, Roth, Su,
arXiv:1905.02383, Corollary 3.3). μ means (ε, δ) for every ε, with the following δ (there Corollary 2.13;
Balle, Wang 2018, arXiv:1805.06530, Theorem 8):

    δ(ε) = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2).

`poisson` covers subsampled releases, and `view` what an observer sees.

**Guarantees.** Results are exact for Gaussian noise, and not only bounds. The caller chooses the adjacency
and the sensitivity, and divides by the sensitivity to get z. Rounding errs on the private side: `delta_of` is
never below the true δ, `epsilon_of` never below the true ε, `mu_of` never above the largest μ that the budget
allows, and `noise_multiplier` never below the least z. The error of each is less than 1e-10 of its value, for
ε from 1e-6 to 1e4 and δ from 1e-15 to 0.5. (If δ is almost δ(0), ε is almost 0. Its error is then up to 1e-12
of δ instead, whatever the size of ε.)
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
# Below e^-45 of its peak, the integrand of `_log_delta_small` is negligible in double precision.
_NEGLIGIBLE_EXPONENT = 45.0
_POINTS_PER_BISECTION_STEP = 32  # evaluated together


@overload
def delta_of(mu: float, epsilon: float) -> float: ...
@overload
def delta_of(mu: Floats, epsilon: ArrayLike) -> Floats: ...
@overload
def delta_of(mu: ArrayLike, epsilon: Floats) -> Floats: ...
def delta_of(mu: ArrayLike, epsilon: ArrayLike) -> float | Floats:
    """Return δ(ε) of μ, rounded up; arrays broadcast. For μ = 0 it is 0, and for μ = infinity it is 1.

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

    It is 0 if δ is at least δ(0) (for example, if μ = 0), and infinite if μ is infinite.

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
        # Φ(-a) <= e^{-a²/2}/2, so this end of the bracket is private, with a factor of two in δ to spare.
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
    # `low` solves ε = μ²/2 + μ√(2 ln(1/δ)), which is private, with a factor of two in δ to spare.
    root = np.sqrt(-2 * log_delta)
    low = 2 * e / (np.sqrt(2 * e - 2 * log_delta) + root)
    high = 2 * low
    while np.any(private := _log_delta(high, e) <= log_delta):
        high = np.where(private, 2 * high, high)
    result = _bisect(lambda m: _log_delta(m, e) <= log_delta, private=low, other=high)
    # Lower μ by more than the rounding of δ, so that `epsilon_of` of the result never exceeds ε.
    return _unwrap((result * (1 - 64 * _ULP)).reshape(shape))


@overload
def compose(noise_multipliers: ArrayLike) -> float: ...
@overload
def compose(noise_multipliers: ArrayLike, axis: int) -> Floats: ...
def compose(noise_multipliers: ArrayLike, axis: int | None = None) -> float | Floats:
    """Return μ = √(Σ 1/z²) of releases that each carry fresh noise, rounded up.

    The sum is over `axis`, or over all elements if `axis` is None. A release without noise (z = 0) makes μ
    infinite. Without any release, μ is 0.

    >>> compose([3.0, 3.0, 3.0, 3.0]) >= 2 / 3
    True
    >>> compose([3.0, 0.0])
    inf
    """
    z = _floats("noise multiplier", noise_multipliers)
    good = (z >= 0) & np.isfinite(z)
    if not np.all(good):
        raise PrivacyError(f"Expected a finite noise multiplier >= 0, got {_first(z, ~good)}.")
    # NumPy sums pairwise, with an error of about log2(n) ulp, only along a contiguous last axis.
    z = z.ravel() if axis is None else np.ascontiguousarray(np.moveaxis(z, axis, -1))
    if z.shape[-1] == 0:
        return _unwrap(np.zeros(z.shape[:-1]))
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        least = np.min(z, axis=-1, keepdims=True)
        total = np.sqrt(np.sum(np.where(least > 0, least / z, 1.0) ** 2, axis=-1)) / least[..., 0]
    return _unwrap(total * (1 + 64 * _ULP))


def noise_multiplier(epsilon: float, delta: float, releases: SupportsIndex = 1) -> float:
    """Return the least z with which `releases` equal releases are together (ε, δ)-private, rounded up.

    >>> round(noise_multiplier(1.0, 1e-5, 1000) / 2000, 5)
    0.05899
    """
    mu = mu_of(expect_epsilon(epsilon), expect_delta(delta))
    z = math.sqrt(expect_count("releases", releases)) / mu * (1 + 128 * _ULP)
    if not math.isfinite(z):
        raise PrivacyError(f"Expected an epsilon that finite noise meets, got {epsilon}. Use a larger one.")
    return z


def _log_delta(mu: Floats, epsilon: Floats) -> Floats:
    """Return ln δ(ε) plus a bound on its rounding error, at most 0. Arrays broadcast; 0 <= μ <= infinity."""
    mu, epsilon = np.broadcast_arrays(mu, epsilon)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        centre = np.where(epsilon == 0, 0.0, epsilon / mu)
        low = centre - mu / 2
        result = np.empty(low.shape)
        small = mu < 1
        result[small] = _log_delta_small(mu[small], low[small])
        result[~small] = _log_delta_large(mu[~small], centre[~small], low[~small])
        # A change x of a changes ln δ by at most about (1 + |a|)·x. The error of a is a few ulp of its terms.
        slack = 16 * _ULP * (1 + (1 + np.abs(low)) * (centre + mu / 2))
        result = np.minimum(result + slack, 0.0)
    # For extreme values both terms are infinite. Then δ is 0 in double precision, or 1 if there is no noise.
    result = np.where((mu == 0) | np.isinf(centre), -np.inf, result)
    return np.where(np.isinf(mu) | np.isnan(result), 0.0, result)


def _log_delta_small(mu: Floats, low: Floats) -> Floats:
    """Return ln of φ(a) ∫ e^{-at - t²/2} (1 - e^{-μt}) dt over t > 0, with a = ε/μ - μ/2 = `low` > -1/2.

    This is ln δ(ε) for small μ. The two terms of δ(ε) then agree in most digits, and their difference would
    lose these digits. In the integral nothing cancels, because every factor is positive. It follows from
    Φ(-x)/φ(x) = ∫ e^{-xt - t²/2} dt and e^ε φ(a + μ) = φ(a).
    """
    end = 2 * _NEGLIGIBLE_EXPONENT / (low + np.sqrt(low * low + 2 * _NEGLIGIBLE_EXPONENT))
    t = end[..., None] * (_NODES + 1) / 2
    values = -np.expm1(-mu[..., None] * t) * np.exp(-t * (low[..., None] + t / 2))
    # The tail beyond `end` is less than e^-40 of the integral.
    integral = np.sum(values * _WEIGHTS, axis=-1) * end / 2
    return np.asarray(np.log(integral) - low * low / 2 - math.log(2 * math.pi) / 2)


def _log_delta_large(mu: Floats, centre: Floats, low: Floats) -> Floats:
    """Return ln Φ(-a) + ln(1 - r), with r = e^ε Φ(-a - μ) / Φ(-a) and a = `low`.

    This is ln δ(ε) for μ >= 1, where r is far below 1.
    """
    high = centre + mu / 2
    tail = erfcx(high / math.sqrt(2))
    # e^ε Φ(-b) = φ(a) Φ(-b)/φ(b) does not contain e^ε. For a < 0, φ(a) may be small, but Φ(-a) is not.
    left = np.exp(np.log(tail / 2) - low * low / 2 - log_ndtr(-low))
    right = tail / erfcx(np.maximum(low, 0.0) / math.sqrt(2))
    return np.asarray(log_ndtr(-low) + np.log1p(-np.where(low > 0, right, left)))


def _bisect(is_private: Callable[[Floats], Bools], private: Floats, other: Floats) -> Floats:
    """Return for each element the float64 value next to the limit at which `is_private` becomes false.

    The search is a bisection between `private`, for which `is_private` holds, and `other`, for which it does
    not; `is_private` holds for the result. If there are few elements, each call of `is_private` tests several
    points of each, because a call takes about as long for many points as for one.
    """
    points = max(1, _POINTS_PER_BISECTION_STEP // max(1, private.size))
    part = (np.arange(1, points + 1) / (points + 1))[:, None]
    for _ in range(1100):  # enough to halve the whole range of doubles
        with np.errstate(invalid="ignore"):
            between = private + (other - private) * part
        if np.all((between == private) | (between == other) | ~np.isfinite(between)):
            break
        # The new ends are the first point that is not private, and the point before it.
        ends = np.concatenate([private[None], between, other[None]])
        first = 1 + np.logical_and.accumulate(is_private(between)).sum(axis=0)
        private, other = (np.take_along_axis(ends, at[None], 0)[0] for at in (first - 1, first))
    return private


def _floats(name: str, values: ArrayLike) -> Floats:
    """Return `values` as an array; raise PrivacyError, which mentions `name`, unless they are numbers."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise PrivacyError(f"Expected {name} as a number or an array of numbers, got {values!r}.") from None


def _mus(mu: ArrayLike) -> Floats:
    """Return `mu` as an array; raise PrivacyError unless all values are >= 0."""
    m = _floats("mu", mu)
    if not np.all(m >= 0):
        raise PrivacyError(f"Expected mu >= 0, got {_first(m, ~(m >= 0))}.")
    return m


def _deltas(delta: ArrayLike) -> Floats:
    """Return `delta` as an array; raise PrivacyError unless all values lie strictly between 0 and 1."""
    d = _floats("delta", delta)
    for bad in d[~((d > 0) & (d < 1))].ravel()[:1]:
        expect_delta(float(bad))
    return d


def _epsilons(epsilon: ArrayLike) -> Floats:
    """Return `epsilon` as an array; raise PrivacyError unless all values are finite and above 0."""
    e = _floats("epsilon", epsilon)
    for bad in e[~((e > 0) & np.isfinite(e))].ravel()[:1]:
        expect_epsilon(float(bad))
    return e


def _first(values: Floats, where: Bools) -> float:
    """Return the first of `values` for which `where` is true."""
    return float(values[where].ravel()[0])


def _unwrap(values: Floats) -> float | Floats:
    """Return `values` as a float if they are a single number without axes, and otherwise unchanged."""
    return float(values) if np.ndim(values) == 0 else values

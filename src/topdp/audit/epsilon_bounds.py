"""From scores to lower bounds on ε, each with its confidence. Knows nothing of plans or data.

`gaussian`: scores of canaries that are there and of those that are not are normal with one spread; then the
distance of their means in units of the spread is μ, and ε follows from it exactly. By far the closest where
noise is Gaussian, which it is for all of topdp; a mechanism that is broken may well break this assumption.

`guessing`: no assumption at all. The surest guesses are right too often for a smaller ε (Steinke, Nasr and
Jagielski 2023, arXiv:2305.08846). How many guesses are made must not depend on the scores, or the confidence
would be lost: `guesses_for` takes it from what is expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, expit, ndtr, ndtri

from topdp.base.array_types import Bools, Floats
from topdp.privacy.basics.gaussian import epsilon_of

LARGEST = 60.0
"""No ε above this is looked for: no number of guesses that fits into a run shows more."""


@dataclass(frozen=True)
class Distance:
    """μ as estimated, and what it is at least with the confidence asked for."""

    estimate: float
    lower: float

    def epsilon(self, delta: float) -> float:
        return float(epsilon_of(max(self.lower, 0.0), delta))


def gaussian(scores: Floats, there: Bools, error: float) -> Distance:
    """μ from the scores; `lower` exceeds the true one with probability `error` at most.

    **Guarantees.** Where all scores are independent and normal with one variance, t below is noncentral t
    with n - 2 degrees of freedom and noncentrality μ/√(1/n₁ + 1/n₀). Its quantile is that of Johnson and
    Welch (1940), which is below the exact one where errors are at most 1/8 (tested).

    >>> import numpy as np
    >>> there = np.arange(1000) % 2 == 0
    >>> scores = np.random.default_rng(0).normal(size=1000) + there
    >>> found = gaussian(scores, there, error=0.05)
    >>> round(found.estimate, 2), round(found.lower, 2)
    (1.05, 0.93)
    """
    n1, n0 = int(there.sum()), int((~there).sum())
    if min(n1, n0) < 2:
        return Distance(0.0, 0.0)
    free, width = n1 + n0 - 2, math.sqrt(1 / n1 + 1 / n0)
    spread = math.sqrt((n1 * scores[there].var() + n0 * scores[~there].var()) / free)
    distance = float(scores[there].mean() - scores[~there].mean()) / max(spread, np.finfo(float).tiny)
    t = distance / width
    lower = t * (1 - 1 / (4 * free)) - float(ndtri(1 - error)) * math.sqrt(1 + t**2 / (2 * free))
    return Distance(distance, lower * width)


def guessing(scores: Floats, there: Bools, guesses: int, delta: float, error: float) -> float:
    """ε that is not exceeded by the true one with probability `error` at most, whatever the scores are.

    The highest `guesses`/2 scores are said to be there, the lowest not; the others are passed over.

    >>> import numpy as np
    >>> there = np.arange(1000) % 2 == 0
    >>> round(guessing(there * 1.0, there, 1000, delta=1e-5, error=0.05), 2)
    5.73
    """
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    right = int((~there[order[:half]]).sum() + there[order[len(order) - half :]].sum())
    return shown(len(scores), 2 * half, right, delta, error)


def shown(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest ε that so many right guesses rule out."""

    def ruled_out(epsilon: float) -> bool:
        return chance(canaries, guesses, right, epsilon, delta) <= error

    if not ruled_out(0.0):
        return 0.0
    low, high = 0.0, LARGEST
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ruled_out(middle) else (low, middle)
    return low


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bounds the probability of at least so many right guesses where (ε, δ) holds.

    Theorem 5.2 of arXiv:2305.08846: P[W >= v] <= P[B >= v] + 2mδ·max_i P[v - i <= B < v]/i, with B binomial
    of the guesses and e^ε/(1 + e^ε), m coins in all.
    """
    counts = np.arange(1, right + 1)
    # P[B >= k] is the incomplete beta function; P[B >= 0] = 1.
    tail = np.append(1.0, betainc(counts, guesses - counts + 1, expit(epsilon)))
    most = float(((tail[:-1] - tail[-1])[::-1] / counts).max(initial=0.0))
    return float(min(1.0, tail[-1] + 2 * canaries * delta * most))


@lru_cache(maxsize=64)
def guesses_for(canaries: int, mu: float, delta: float, error: float) -> int:
    """How many guesses show most where scores are as expected: N(0, 1) or N(μ, 1) by fair coins."""

    def expected(half: int) -> float:
        def too_many(edge: float) -> float:
            return float(ndtr(-edge) + ndtr(mu - edge)) - 2 * half / canaries

        edge = brentq(too_many, -40.0, 40.0 + mu)
        share = ndtr(mu - edge) / (ndtr(mu - edge) + ndtr(-edge))
        return shown(canaries, 2 * half, int(2 * half * share), delta, error)

    halves = {max(1, int(canaries / 2**k / 2)) for k in np.arange(0, 6.5, 0.5)}
    return 2 * max(sorted(halves, reverse=True), key=expected)

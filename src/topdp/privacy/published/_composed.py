"""The calibrations that compose releases one by one: tight, optimal, moments.

With full batches, each calibration is a map between ε and μ = √(Σ 1/z_t²). The Rényi divergence of the
composition is then RDP(a) = a μ²/2 (Mironov 2017, Corollary 3). All three are sound for all inputs, and
differ in how tight they are.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import numpy as np
from scipy.optimize import minimize_scalar

from topdp.base.array_types import Floats
from topdp.plan.batches import Batches
from topdp.privacy.basics import gaussian
from topdp.privacy.basics.poisson import loss_distribution_epsilon, renyi_curve
from topdp.privacy.published.calibration import Calibration, worst_mu


class _Composed(Calibration):
    """Base class of calibrations that are a map between ε and μ; subclasses define `_mu` and `_epsilon`."""

    @final
    def _noise(self, epsilon: float, delta: float, releases: int, batches: Batches) -> float:
        root = math.sqrt(batches.participations(releases))
        z, step = root / self._mu(epsilon, delta), 1e-13
        while z < math.inf and self._epsilon(root * gaussian.compose([z]), delta) > epsilon:
            z, step = z * (1 + step), 2 * step
        return z

    @final
    def _claim(self, z: Floats, delta: float, batches: Batches) -> float:
        return self._epsilon(worst_mu(z, batches), delta)

    @abstractmethod
    def _mu(self, epsilon: float, delta: float) -> float:
        """Return the largest μ for which the method claims (ε, δ)."""

    @abstractmethod
    def _epsilon(self, mu: float, delta: float) -> float:
        """Return the ε that the method claims for μ at δ."""


@final
class Tight(_Composed):
    """The exact relation δ = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2), with μ = √(Σ 1/z_t²).

    Source: Balle, Wang 2018 (arXiv:1805.06530), Theorem 8; Dong, Roth, Su 2019 (arXiv:1905.02383).

    **Guarantees.** Exact for full and cyclic batches, for either adjacency (z is in units of that adjacency's
    sensitivity Δ), and for equal and unequal noise. No calibration can require less noise. For Poisson
    batches it uses the privacy loss distribution of dp-accounting (add-remove, Δ = clip / expected batch
    size), an upper bound that is tight up to its grid. Each release must carry fresh noise. The claim is
    never false.
    """

    name: ClassVar[str] = "tight"

    def _mu(self, epsilon: float, delta: float) -> float:
        return gaussian.mu_of(epsilon, delta)

    def _epsilon(self, mu: float, delta: float) -> float:
        return gaussian.epsilon_of(mu, delta)

    def _sampled_claim(self, z: Floats, delta: float, rate: float) -> float:
        return loss_distribution_epsilon(z, delta, rate)


@final
class Moments(_Composed):
    """The moments accountant with its own conversion: ε = min over a > 1 of RDP(a) + ln(1/δ)/(a - 1).

    For full batches, with L = ln(1/δ), this is ε = μ²/2 + μ√(2L), so z = √T / (√(2L + 2ε) - √(2L)).
    Source: Abadi et al. 2016 (arXiv:1607.00133), Theorem 2; Mironov 2017 (arXiv:1702.07476), Proposition 3.

    **Guarantees.** Sound for full and cyclic batches, for either adjacency, and for equal and unequal noise.
    Also sound for Poisson batches (add-remove, Δ = clip / expected batch size), at the Rényi orders listed in
    `basics/poisson.py`, with the conversion above and not with the better one of dp-accounting. It errs on
    the private side: at ε = 1, δ = 1e-5 and full batches, it requires 31% more noise than needed. The claim
    is never false.
    """

    name: ClassVar[str] = "moments"

    def _mu(self, epsilon: float, delta: float) -> float:
        twice = -2 * math.log(delta)
        # √(2L + 2ε) - √(2L), written without cancellation
        return 2 * epsilon / (math.sqrt(twice + 2 * epsilon) + math.sqrt(twice))

    def _epsilon(self, mu: float, delta: float) -> float:
        return mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))

    def _sampled_claim(self, z: Floats, delta: float, rate: float) -> float:
        orders, curve = renyi_curve(z, rate)
        return float(np.min(curve - math.log(delta) / (orders - 1)))


@final
class Optimal(_Composed):
    """Rényi accounting, optimal conversion: ε = min over a > 1 of RDP(a) + ln(1 - 1/a) - ln(aδ)/(a - 1).

    For full batches, RDP(a) = a μ²/2, minimised over real a. Source: Asoodeh et al. 2021 (arXiv:2008.06529).
    The formula in closed form is arXiv:2001.05990, Equation 20, and Canonne, Kamath, Steinke 2020
    (arXiv:2004.00010), Proposition 12.

    **Guarantees.** Sound for full and cyclic batches, for either adjacency, and for equal and unequal noise.
    Also sound for Poisson batches (add-remove, Δ = clip / expected batch size), at the Rényi orders listed in
    `basics/poisson.py`. It errs on the private side: at ε = 1, δ = 1e-5 and full batches, it requires 8% more
    noise than needed. Every order at which the search ends gives a valid ε. The claim is never false.
    """

    name: ClassVar[str] = "optimal"

    def _mu(self, epsilon: float, delta: float) -> float:
        # For one order, ε = aμ²/2 + excess(a). The result uses the order that allows the largest μ.
        return math.sqrt(2 * _largest(lambda x: (epsilon - _excess(x, delta)) / (1 + x)))

    def _epsilon(self, mu: float, delta: float) -> float:
        if math.isinf(mu * mu):
            return math.inf
        return max(0.0, -_largest(lambda x: -((1 + x) * mu * mu / 2 + _excess(x, delta))))

    def _sampled_claim(self, z: Floats, delta: float, rate: float) -> float:
        orders, curve = renyi_curve(z, rate)
        return max(0.0, float(np.min(curve + _excess(orders - 1, delta))))


def _excess(x: Floats, delta: float) -> Floats:
    """Return ln(1 - 1/a) - ln(aδ)/(a - 1) at a = 1 + x."""
    return np.asarray(-np.log1p(1 / x) - (np.log1p(x) + math.log(delta)) / x)


_ORDERS_LESS_ONE = np.logspace(-8, 14, 1001)


def _largest(function: Callable[[Floats], Floats]) -> float:
    """Return the maximum of `function` over x = a - 1 > 0.

    This is the best value on a wide grid, refined between the neighbours of its point.
    """
    values = function(_ORDERS_LESS_ONE)
    best = int(np.argmax(values))
    low, high = _ORDERS_LESS_ONE[max(best - 1, 0)], _ORDERS_LESS_ONE[min(best + 1, len(values) - 1)]
    refined = minimize_scalar(
        lambda s: -float(function(np.exp(s))),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return max(float(values[best]), -float(refined.fun))

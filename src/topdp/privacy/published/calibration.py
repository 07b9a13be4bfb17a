"""The abstract class of published calibrations: the noise for a budget, and the claimed ε for given noise.

Each result is compared with the exact ε of the same releases, and a warning is given if the method's own
claim is smaller. `view` and `worst_case` compute what is learned from a plan.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from topdp.base.array_types import Floats
from topdp.base.number_checks import expect_count
from topdp.plan.batches import Adjacency, Batches, Full, expect_adjacency
from topdp.privacy.basics import gaussian
from topdp.privacy.basics.refusals import (
    NotCovered,
    PrivacyError,
    PrivacyWarning,
    expect_delta,
    expect_epsilon,
    expect_supported,
)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The noise that one method requires for a budget, in several units.

    `noise_multiplier`: the standard deviation of the noise divided by Δ. `sigma`: the same divided by the
    clip, the paper's σ. `sensitivity`: Δ / clip. `exact_epsilon`: the exact ε of the same releases at
    `delta`, or None for sampled batches, for which it is not computed.

    >>> from topdp.plan import Full
    >>> from topdp.privacy import CALIBRATIONS
    >>> found = CALIBRATIONS["moments"].calibrate(1.0, 1e-5, releases=1000, batches=Full(2000))
    >>> round(found.sigma, 4), round(found.exact_epsilon, 2)
    (0.0775, 0.74)
    """

    calibration: str
    epsilon: float
    delta: float
    releases: int
    batches: Batches
    adjacency: Adjacency
    noise_multiplier: float
    sensitivity: float
    sigma: float
    exact_epsilon: float | None


class Calibration(ABC):
    """A published method to convert between noise and ε, for the releases that use one record.

    Subclasses compute z for a budget, and the claimed ε for given noise multipliers.

    >>> from topdp.plan import Full
    >>> from topdp.privacy import CALIBRATIONS
    >>> tight = CALIBRATIONS["tight"]
    >>> z = tight.calibrate(1.0, 1e-5, releases=100, batches=Full(2000)).noise_multiplier
    >>> round(z, 2), round(tight.claim([z] * 100, 1e-5), 6)
    (37.31, 1.0)
    """

    name: ClassVar[str]

    # Whether the analysis counts that the step size λ multiplies the gradient but not noise on the estimate.
    counts_step: ClassVar[bool] = True

    @final
    def calibrate(
        self,
        epsilon: float,
        delta: float,
        releases: SupportsIndex,
        batches: Batches,
        adjacency: Adjacency = "add-remove",
    ) -> Calibrated:
        """Return the noise with which the method's own analysis gives (ε, δ) for releases of equal noise.

        `releases` includes the release before the loop: T rounds of the paper's algorithms are T + 1
        releases. Warn (`PrivacyWarning`) if the claim is false. Raise NotCovered if the method does not cover
        the batches.
        """
        epsilon, delta = expect_epsilon(epsilon), expect_delta(delta)
        count = expect_count("releases", releases)
        sensitivity = batches.sensitivity(adjacency)
        if batches.sampled:
            remark = self._sampling_remark(epsilon, delta, count, batches)
            expect_supported(self.supports(batches, adjacency, remark))
            z, exact = self._sampled_noise(epsilon, delta, count, batches.rate), None
        else:
            # z is rounded up, so that the claim for z never exceeds ε because of rounding.
            z = self._noise(epsilon, delta, count, batches) * (1 + 1e-13)
            if not 0 < z < math.inf:
                remedy = "a larger epsilon or fewer releases" if z else "a smaller epsilon"
                raise PrivacyError(
                    f"Expected an epsilon for which calibration {self.name} needs finite noise > 0, got "
                    f"{epsilon:g} for {count} releases. Use {remedy}."
                )
            exact = gaussian.epsilon_of(
                math.sqrt(batches.participations(count)) * gaussian.compose([z]), delta
            )
            self._compare(epsilon, exact, delta, batches)
        return Calibrated(
            calibration=self.name,
            epsilon=epsilon,
            delta=delta,
            releases=count,
            batches=batches,
            adjacency=adjacency,
            noise_multiplier=z,
            sensitivity=sensitivity,
            sigma=z * sensitivity,
            exact_epsilon=exact,
        )

    @final
    def claim(
        self,
        noise_multipliers: ArrayLike,
        delta: float,
        batches: Batches | None = None,
        adjacency: Adjacency = "add-remove",
        *,
        true_multipliers: ArrayLike | None = None,
    ) -> float:
        """Return the ε that the method claims for releases with these noise multipliers.

        `noise_multipliers`: one number for each release, in order. `batches`: None means full batches.
        `true_multipliers`: those of the same releases with λ counted, if the method does not count it. The
        result is infinite if a release has no noise. Warn (`PrivacyWarning`) if the exact ε is larger.
        """
        z, delta = expect_noise(noise_multipliers), expect_delta(delta)
        exact = z if true_multipliers is None else expect_noise(true_multipliers)
        expect_adjacency(adjacency)
        batches = Full(1) if batches is None else batches
        expect_supported(self.supports(batches, adjacency))
        if np.min(z) == 0:
            return math.inf
        if batches.sampled:
            return self._sampled_claim(z, delta, batches.rate)
        claimed = self._claim(z, delta, batches)
        self._compare(claimed, gaussian.epsilon_of(worst_mu(exact, batches), delta), delta, batches)
        return claimed

    @abstractmethod
    def _noise(self, epsilon: float, delta: float, releases: int, batches: Batches) -> float:
        """Return the noise multiplier that the method requires, for full or cyclic batches."""

    @abstractmethod
    def _claim(self, z: Floats, delta: float, batches: Batches) -> float:
        """Return the claimed ε for full or cyclic batches; all noise multipliers `z` are above 0."""

    def _sampled_claim(self, z: Floats, delta: float, rate: float) -> float:
        """Return the claimed ε for Poisson batches that contain each record with probability `rate`."""
        raise NotCovered(f"Calibration '{self.name}' has no analysis of Poisson batches.")

    def _sampled_noise(self, epsilon: float, delta: float, releases: int, rate: float) -> float:
        """Return the noise multiplier that the method requires for Poisson batches."""
        return least_noise(
            lambda z: self._sampled_claim(np.full(releases, z), delta, rate), epsilon, self.name
        )

    @final
    def supports(self, batches: Batches, adjacency: Adjacency = "add-remove", remark: str = "") -> str | None:
        """Return None, or the reason why the method's analysis does not cover the batches and adjacency.

        `remark`: a sentence about the requested noise, which some reasons include.
        """
        if not batches.sampled:
            return None
        reason = self._sampling_refusal(batches, remark)
        if reason is None and adjacency == "replace-one":
            reason = "amplification by Poisson batches is accounted under add-remove only."
        return reason and f"Calibration '{self.name}' with Poisson batches: {reason}"

    def _sampling_refusal(self, batches: Batches, remark: str) -> str | None:
        """Return None, or the reason why the method's analysis does not cover Poisson batches."""
        return None

    def _sampling_remark(self, epsilon: float, delta: float, releases: int, batches: Batches) -> str:
        """Return a remark for `supports` about the noise that the method would require."""
        return ""

    def _compare(self, claimed: float, exact: float, delta: float, batches: Batches) -> None:
        """Give a PrivacyWarning if the exact ε is larger than the claimed ε."""
        if exact > claimed * (1 + 1e-9):
            where = ""
            if not isinstance(batches, Full):
                where = f" with batches of {batches.size} of {batches.records} records"
            warnings.warn(
                f"Calibration '{self.name}' claims epsilon={claimed:.6g} at delta={delta:g}{where}; "
                f"the same releases are exactly epsilon={exact:.6g}. {self._remedy(delta)}",
                PrivacyWarning,
                stacklevel=3,
            )

    def _remedy(self, delta: float) -> str:
        """Return the end of the warning: what to do if the claim is false."""
        return "Use 'tight'."


def worst_mu(z: Floats, batches: Batches) -> float:
    """Return μ of the record whose releases together have the least noise."""
    return max(gaussian.compose(part) for part in shares(z, batches))


def shares(z: Floats, batches: Batches) -> list[Floats]:
    """Return for each position in the cycle the noise multipliers of the releases that use its record."""
    return [z[start :: batches.period] for start in range(min(batches.period, len(z)))]


def expect_noise(noise_multipliers: ArrayLike) -> Floats:
    """Return the noise multipliers [releases]; raise PrivacyError unless all are finite and >= 0."""
    gaussian.compose(noise_multipliers)
    z = np.asarray(noise_multipliers, dtype=np.float64)
    if z.ndim != 1 or z.size == 0:
        raise PrivacyError(f"Expected at least one noise multiplier, one per release, got shape {z.shape}.")
    return z


def least_noise(claim: Callable[[float], float], epsilon: float, name: str) -> float:
    """Return the least z with claim(z) <= ε, up to a relative error of 1e-9 on the private side.

    `claim`: the claimed ε for z, which must fall as z grows. `name`: the method, for errors. Raise NotCovered
    if no noise, or hardly any noise, meets ε.
    """
    high = 1.0
    while claim(high) > epsilon:
        high *= 2
        if high > 1e15:
            raise NotCovered(f"Calibration '{name}' finds no noise that meets epsilon={epsilon:g}.")
    low = high / 2
    while claim(low) <= epsilon:
        low, high = low / 2, low
        if low < 1e-6:
            raise NotCovered(
                f"Calibration '{name}' meets epsilon={epsilon:g} with hardly any noise. Lower epsilon."
            )

    def gap(log_z: float) -> float:
        return math.log(min(max(claim(math.exp(log_z)), 1e-300), 1e300) / epsilon)

    z = math.exp(brentq(gap, math.log(low), math.log(high), xtol=1e-10, rtol=1e-12)) * (1 + 1e-9)
    step = 1e-9
    while claim(z) > epsilon:
        z, step = z * (1 + step), 2 * step
    return z

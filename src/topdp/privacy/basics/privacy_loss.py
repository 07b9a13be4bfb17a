"""Privacy losses: the results of accountants, which give ε at any δ.

`GaussianLoss` is one number μ. `SampledLoss` is the composition of subsampled Gaussian releases. It has no μ;
its ε comes from dp-accounting's privacy loss distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from topdp.base.array_types import Floats
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.poisson import loss_distribution_epsilon
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, expect_delta

# The most different noise multipliers that are composed one by one; more are rounded down to a grid.
MAX_NOISE_MULTIPLIERS = 64


# The values of δ at which the ε of sampled releases is used to bound an attacker's power.
POWER_DELTAS = (1e-6, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)


class Loss(Protocol):
    """The privacy loss of one owner to one observer: ε at any δ."""

    @property
    def mu(self) -> float:
        """The μ of Gaussian differential privacy; nan if no μ is known."""

    def epsilon(self, delta: float) -> float:
        """Return the least ε that is proved at this δ; infinite if no finite ε holds."""

    def power(self, false_alarms: float) -> float:
        """Return the power of the best attacker: its true-positive rate at this false-positive rate."""


@dataclass(frozen=True)
class GaussianLoss:
    """The loss of μ-Gaussian differential privacy; ε and power are exact."""

    mu: float

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise PrivacyError(f"Expected mu >= 0, got {self.mu}.")

    def epsilon(self, delta: float) -> float:
        return _gaussian_epsilon(float(self.mu), float(delta))

    def power(self, false_alarms: float) -> float:
        # Φ(Φ⁻¹(α) + μ): the test of Neyman and Pearson (arXiv:1905.02383, Definition 2.6)
        return float(ndtr(ndtri(false_alarms) + self.mu))


@dataclass(frozen=True)
class SampledLoss:
    """The loss of independent Gaussian releases, each of a fresh Poisson sample of the records.

    `rate`: the probability that a sample contains a record. `releases`: pairs (noise multiplier, number of
    releases), by ascending noise multiplier.

    **Guarantees.** The adjacency is add-remove, and the samples are secret. Discretisation is pessimistic: ε
    is never below the true ε (Doroshenko et al. 2022, arXiv:2207.04380, through dp-accounting).
    """

    rate: float
    releases: tuple[tuple[float, int], ...]

    @property
    def mu(self) -> float:
        return math.nan

    def epsilon(self, delta: float) -> float:
        expect_delta(delta)
        if not self.releases:
            return 0.0
        if self.releases[0][0] == 0:
            return math.inf
        return _epsilon(self.rate, self.releases, delta)

    def power(self, false_alarms: float) -> float:
        return min(power_of_point(self.epsilon(delta), delta, false_alarms) for delta in POWER_DELTAS)


@dataclass(frozen=True)
class SmallestLoss:
    """The smallest of several upper bounds of one loss, chosen separately at each δ."""

    losses: tuple[Loss, ...]

    @property
    def mu(self) -> float:
        mus = [loss.mu for loss in self.losses if not math.isnan(loss.mu)]
        return min(mus, default=math.nan)

    def epsilon(self, delta: float) -> float:
        return self._smallest(lambda loss: loss.epsilon(delta))

    def power(self, false_alarms: float) -> float:
        return self._smallest(lambda loss: loss.power(false_alarms))

    def _smallest(self, value: Callable[[Loss], float]) -> float:
        """Return the smallest `value` of the losses, without losses for which `value` raises NotCovered.

        Raise NotCovered if it does so for all losses.
        """
        values, refusal = [], NotCovered("Expected a loss, got none.")
        for loss in self.losses:
            try:
                values.append(value(loss))
            except NotCovered as error:
                refusal = error
        if not values:
            raise refusal
        return min(values)


def power_of_point(epsilon: float, delta: float, false_alarms: float) -> float:
    """Return an upper bound on any attacker's power under (ε, δ), for any noise distribution.

    `false_alarms`: the attacker's false positive rate α.
    """
    # power <= e^ε·α + δ and power <= 1 - e^-ε(1 - δ - α): both sides of (ε, δ)-privacy (arXiv:1311.0776)
    if math.isinf(epsilon):
        return 1.0
    upper = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    return min(1.0, upper, 1 - math.exp(-epsilon) * (1 - delta - false_alarms))


def sampled_loss(noise_multipliers: Floats, rate: float) -> SampledLoss:
    """Return the loss of one release for each noise multiplier, with samples of probability `rate`.

    Infinite noise multipliers (nothing is released) are ignored. If there are more than
    `MAX_NOISE_MULTIPLIERS` different values, they are rounded down, towards less noise, to a geometric grid.
    """
    z = noise_multipliers[np.isfinite(noise_multipliers)]
    if (z == 0).any():
        return SampledLoss(rate, ((0.0, 1),))
    values, counts = np.unique(z, return_counts=True)
    if len(values) > MAX_NOISE_MULTIPLIERS:
        grid = np.geomspace(values[0], values[-1], MAX_NOISE_MULTIPLIERS)
        grid[0] = values[0]
        at = np.searchsorted(grid, values, side="right") - 1
        counts = np.bincount(at, weights=counts, minlength=MAX_NOISE_MULTIPLIERS).astype(np.int64)
        values, counts = grid[counts > 0], counts[counts > 0]
    return SampledLoss(rate, tuple(zip(values.tolist(), counts.tolist(), strict=True)))


@lru_cache(maxsize=4096)  # agents compute the cost of the same releases in every round
def _gaussian_epsilon(mu: float, delta: float) -> float:
    return epsilon_of(mu, delta)


@lru_cache(maxsize=256)
def _epsilon(rate: float, releases: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return the ε of `SampledLoss`; all noise multipliers must be above 0."""
    z, counts = np.array(releases).T
    return loss_distribution_epsilon(np.repeat(z, counts.astype(np.int64)), delta, rate)

"""The calibrations stated for equal noise in all releases, with claims that may be false.

None covers Poisson batches. Where the exact value is larger than the claim, `calibrate` and `claim` warn.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
from scipy.optimize import brentq

from topdp.base.array_types import Floats, Ints
from topdp.plan.batches import Batches
from topdp.privacy.basics import gaussian
from topdp.privacy.basics.poisson import loss_distribution_epsilon
from topdp.privacy.basics.refusals import NotCovered, expect_delta
from topdp.privacy.published.calibration import Calibration, least_noise, shares, worst_mu


@final
class Udp(Calibration):
    """User-level DP of Wei et al.: std = Δ √(2qT ln(1/δ)) / ε with q = 1, so z = √(2T ln(1/δ)) / ε.

    Source: Wei et al. 2021, "User-Level Privacy-Preserving Federated Learning" (arXiv:2003.00229), Theorem
    1; there Δ = 2λC/|D_i|, here the Δ of the chosen adjacency. q, the share of agents active in a round, is
    1: who is active is not secret here. Unequal noise: ε = √(2 ln(1/δ) Σ 1/z_t²).

    **Guarantees.** Full and cyclic batches, either adjacency. The formula leaves out the term μ²/2 of the
    Rényi divergence: **not private** for ε above `limit(delta)`, 7.97 at δ = 1e-5, whatever T; there it
    warns with the exact value. Below, it errs on the private side: 29% more noise than needed at ε = 1, δ =
    1e-5. Poisson batches: refused, no such analysis.
    """

    name: ClassVar[str] = "udp"

    def _noise(self, epsilon: float, delta: float, releases: int, batches: Batches) -> float:
        return math.sqrt(-2 * batches.participations(releases) * math.log(delta)) / epsilon

    def _claim(self, z: Floats, delta: float, batches: Batches) -> float:
        return math.sqrt(-2 * math.log(delta)) * worst_mu(z, batches)

    def _sampling_refusal(self, batches: Batches, remark: str) -> str:
        return "its analysis samples agents, not records. Use 'tight', 'optimal' or 'moments'."

    def _remedy(self, delta: float) -> str:
        return f"Its formula holds up to epsilon={self.limit(delta):.4g} at this delta. Use 'tight'."

    def limit(self, delta: float) -> float:
        """Return the largest ε for which the formula is private at δ; 0 if there is none."""
        root = math.sqrt(-2 * math.log(expect_delta(delta)))

        def short(log_epsilon: float) -> float:
            epsilon = math.exp(log_epsilon)
            return gaussian.epsilon_of(epsilon / root, delta) - epsilon

        # For large ε the exact value exceeds the claim by about μ²/2; go down to the first where it does not.
        grid = np.logspace(5, -6, 200)
        private = np.flatnonzero(gaussian.epsilon_of(grid / root, delta) <= grid)
        if len(private) == 0:
            return 0.0
        above, below = math.log(grid[private[0] - 1]), math.log(grid[private[0]])
        return math.exp(brentq(short, below, above, xtol=1e-12)) * (1 - 1e-9)


@final
class Advanced(Calibration):
    """Advanced composition: ε = ε0 √(2T ln(1/δ')) + T ε0 (e^ε0 - 1), δ' = δ/2, δ0 = δ/(2T) a release.

    One release is (ε0, δ0)-private by z = √(2 ln(1.25/δ0)) / ε0. Source: Dwork, Rothblum, Vadhan 2010,
    Theorem III.3; Dwork, Roth 2014, Theorem A.1 for one release. The paper prints no split of δ; halves are
    ours. Unequal noise: ε = √(2 ln(1/δ') Σ ε_t²) + Σ ε_t (e^ε_t - 1), which is implied by Kairouz, Oh,
    Viswanath 2015 (arXiv:1311.0776), Theorem 3.5.

    **Guarantees.** Full and cyclic batches, either adjacency. Theorem A.1 is proved for ε0 < 1 only: beyond,
    the formula is **not proved**, and where the exact value exceeds the claim it warns. Otherwise it errs
    far on the private side: 8 to 9 times the noise needed at ε = 1, δ = 1e-5, T from 1e2 to 1e4. Poisson
    batches: refused, the formula has no amplification.
    """

    name: ClassVar[str] = "advanced"

    def _noise(self, epsilon: float, delta: float, releases: int, batches: Batches) -> float:
        count = np.array([batches.participations(releases)])
        return least_noise(lambda z: self._compose(np.array([z]), count, delta), epsilon, self.name)

    def _claim(self, z: Floats, delta: float, batches: Batches) -> float:
        return max(self._compose(*np.unique(part, return_counts=True), delta) for part in shares(z, batches))

    def _compose(self, z: Floats, counts: Ints, delta: float) -> float:
        each = math.sqrt(2 * math.log(1.25 * 2 * int(np.sum(counts)) / delta)) / z
        with np.errstate(over="ignore"):
            drift = float(np.sum(counts * each * np.expm1(each)))
        return math.sqrt(2 * math.log(2 / delta) * float(np.sum(counts * each * each))) + drift

    def _sampling_refusal(self, batches: Batches, remark: str) -> str:
        return "its formula has no amplification by sampling. Use 'tight', 'optimal' or 'moments'."


@final
class Theorem1(Calibration):
    """Theorem 1 of the paper: σ = 8 √(T ln(1/δ) ln(1.25/δ)) / (ε |D_i|), std = σ C.

    Its sensitivity is C/|D_i| whatever the batch, so z = 8 √(T ln(1/δ) ln(1.25/δ)) / ε with full batches and
    size/|D_i| of that with smaller ones; under replace-one σ doubles. Unequal noise: the paper does not
    charge for decay, so the claim is that of the first release. Noise that grows is refused: the paper does
    not treat it.

    **Guarantees.** Its proof composes a pure-DP bound over (ε', δ) steps, which is invalid. With full
    batches and equal noise the σ is private all the same: at δ = 1e-5 it is 26 to 21 times the noise needed
    for ε from 0.5 to 5, and too little only above ε = 1.6e4. **Not private** with batches smaller than the
    data set (δ = 1e-5, T = 100, Poisson batches of 1 of 2000: claimed 1, 2, 5 are really 1.9, 17.8, 150),
    nor under decay that goes on for long. Cyclic batches and decay warn, with the exact value, where it
    exceeds the claim; Poisson batches are refused, with the number.
    """

    name: ClassVar[str] = "theorem1"

    def _noise(self, epsilon: float, delta: float, releases: int, batches: Batches) -> float:
        return self._scale(delta, releases, batches) / epsilon

    def _claim(self, z: Floats, delta: float, batches: Batches) -> float:
        if np.any(np.diff(z) > 0):
            raise NotCovered(
                "Calibration 'theorem1' covers constant or decaying noise, but this noise grows."
            )
        return self._scale(delta, len(z), batches) / float(z[0])

    def _scale(self, delta: float, releases: int, batches: Batches) -> float:
        return 8 * math.sqrt(releases * math.log(1 / delta) * math.log(1.25 / delta)) * batches.rate

    def _sampling_refusal(self, batches: Batches, remark: str) -> str:
        return (
            f"it takes the sensitivity of all {batches.records} records for a batch of {batches.divisor}."
            f"{remark} Use 'tight', 'optimal' or 'moments'."
        )

    def _sampling_remark(self, epsilon: float, delta: float, releases: int, batches: Batches) -> str:
        z = self._noise(epsilon, delta, releases, batches)
        try:
            exact = loss_distribution_epsilon(np.full(releases, z), delta, batches.rate)
        except NotCovered:
            return ""
        return f" Its epsilon={epsilon:g} is exactly epsilon={exact:.4g} under add-remove."

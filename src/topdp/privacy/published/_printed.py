"""The calibrations that are published for equal noise in all releases; their claims may be false.

None covers Poisson batches. If the exact ε is larger than the claim, `calibrate` and `claim` give a warning.
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

    Source: Wei et al. 2021, "User-Level Privacy-Preserving Federated Learning" (arXiv:2003.00229), Theorem 1.
    There Δ = 2λC/|D_i|; here Δ is that of the chosen adjacency. q is the share of agents that are active in a
    round. Here q = 1, because it is not secret which agents are active. For unequal noise, ε = √(2 ln(1/δ) Σ
    1/z_t²).

    **Guarantees.** Covers full and cyclic batches, with either adjacency. The formula leaves out the term
    μ²/2 of the Rényi divergence. It is therefore **not private** for ε above `limit(delta)`, which is 7.97 at
    δ = 1e-5, whatever T. Above the limit it gives a warning with the exact ε. Below the limit it errs on the
    private side: at ε = 1 and δ = 1e-5, it requires 29% more noise than needed. Poisson batches are refused,
    because there is no such analysis.
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

        def shortfall(log_epsilon: float) -> float:
            epsilon = math.exp(log_epsilon)
            return gaussian.epsilon_of(epsilon / root, delta) - epsilon

        # For large ε the exact ε exceeds the claim by about μ²/2. Find the largest ε for which it does not.
        grid = np.logspace(5, -6, 200)
        private = np.flatnonzero(gaussian.epsilon_of(grid / root, delta) <= grid)
        if len(private) == 0:
            return 0.0
        above, below = math.log(grid[private[0] - 1]), math.log(grid[private[0]])
        return math.exp(brentq(shortfall, below, above, xtol=1e-12)) * (1 - 1e-9)


@final
class Advanced(Calibration):
    """Advanced composition: ε = ε0 √(2T ln(1/δ')) + T ε0 (e^ε0 - 1), with δ' = δ/2 and δ0 = δ/(2T).

    One release is (ε0, δ0)-private with z = √(2 ln(1.25/δ0)) / ε0. Source: Dwork, Rothblum, Vadhan 2010,
    Theorem III.3; Dwork, Roth 2014, Theorem A.1 for one release. The paper does not print how it splits δ;
    the halves are our choice. For unequal noise, ε = √(2 ln(1/δ') Σ ε_t²) + Σ ε_t (e^ε_t - 1), which Kairouz,
    Oh, Viswanath 2015 (arXiv:1311.0776), Theorem 3.5 implies.

    **Guarantees.** Covers full and cyclic batches, with either adjacency. Theorem A.1 is proved only for ε0 <
    1. For larger ε0 the formula is **not proved**; if the exact ε exceeds the claim, it gives a warning.
    Otherwise it errs far on the private side: at ε = 1, δ = 1e-5 and T from 1e2 to 1e4, it requires 8 to 9
    times the noise needed. Poisson batches are refused, because the formula has no amplification.
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

    The theorem uses the sensitivity C/|D_i| whatever the batch. So z = 8 √(T ln(1/δ) ln(1.25/δ)) / ε with
    full batches, and size/|D_i| times this with smaller batches. Under replace-one σ doubles. The paper does
    not account for decay of the noise, so the claim is that of the first release. Noise that grows is
    refused, because the paper does not treat it. The theorem's sensitivity has no λ, wherever the noise
    stands: noise on the estimate has the std σ C, too, and not λ σ C.

    **Guarantees.** The proof is invalid, because it composes a bound for pure DP over (ε', δ) steps. With
    full batches and equal noise, σ is private nevertheless: at δ = 1e-5 it is 26 to 21 times the noise needed
    for ε from 0.5 to 5, and too little only above ε = 1.6e4. σ is **not private** with batches smaller than
    the data set (δ = 1e-5, T = 100, Poisson batches of 1 of 2000: ε claimed to be 1, 2 and 5 is really 1.9,
    17.8 and 150), nor under long decay. For cyclic batches and decay, it gives a warning with the exact ε if
    that exceeds the claim. Poisson batches are refused with an error that states the exact ε.
    """

    name: ClassVar[str] = "theorem1"
    counts_step: ClassVar[bool] = False

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
            f"it takes the sensitivity of all {batches.records} records for a batch of "
            f"{batches.typical_records}.{remark} Use 'tight', 'optimal' or 'moments'."
        )

    def _sampling_remark(self, epsilon: float, delta: float, releases: int, batches: Batches) -> str:
        z = self._noise(epsilon, delta, releases, batches)
        try:
            exact = loss_distribution_epsilon(np.full(releases, z), delta, batches.rate)
        except NotCovered:
            return ""
        return f" Its epsilon={epsilon:g} is exactly epsilon={exact:.4g} under add-remove."

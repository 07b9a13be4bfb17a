"""What changes along the rounds for all agents alike: the step size and the decay of the noise.

Round 0 is the release before the loop; it uses the values of iteration t = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topdp.errors import InputError
from topdp.plan.arrays import Floats


@dataclass(frozen=True)
class Schedule:
    """Step size λ and noise scale of every round; both [T+1]."""

    rate: Floats
    noise: Floats

    @property
    def releases(self) -> int:
        return len(self.rate)


def learning_rates(initial: float, iterations: int, fading: str, rounds_per_epoch: int = 1) -> Floats:
    """λ_t for T+1 rounds.

    `none`: constant. `linear`: falls to 1/T of itself. `sqrt-epoch`: λ/√(1 + epoch), our reading of the
    paper's "fading learning rate", whose law it does not give.
    """
    t = _iteration(iterations)
    if fading == "none":
        return np.full(iterations + 1, float(initial))
    if fading == "linear":
        return initial * (1.0 - t / max(iterations, 1))
    if fading == "sqrt-epoch":
        return initial / np.sqrt(1.0 + t // rounds_per_epoch)
    raise InputError(f"Expected fading to be one of {', '.join(FADINGS)}, got {fading!r}.")


FADINGS = ("none", "linear", "sqrt-epoch")


def step_decay(factor: float, period: int, iterations: int) -> Floats:
    """γ^⌊t/period⌋ for T+1 rounds.

    The paper calls this free; at a fixed clip it is not (docs/paper.md), and the accountant counts it.
    """
    if not 0 < factor <= 1:
        raise InputError(f"Expected 0 < decay factor <= 1, got {factor}.")
    if period < 1:
        raise InputError(f"Expected decay period >= 1 iteration, got {period}.")
    # Eq. (6b): σ_t = σ_0 γ^⌊t/period⌋
    return np.power(float(factor), _iteration(iterations) // period)


def schedule(rate: Floats, decay: Floats, noise_on: str) -> Schedule:
    """Puts the noise inside the step (`gradient`: -λ(ḡ + noise)) or beside it (`estimate`: as printed)."""
    if noise_on == "gradient":
        return Schedule(rate, rate * decay)
    if noise_on == "estimate":
        return Schedule(rate, np.array(decay))
    raise InputError(f"Expected noise_on to be 'gradient' or 'estimate', got {noise_on!r}.")


def _iteration(iterations: int) -> Floats:
    return np.maximum(np.arange(iterations + 1, dtype=np.float64) - 1.0, 0.0)

"""What changes along the rounds for all agents alike: the step size and the decay of the noise.

T rounds make T + 1 releases: round 0 is the release before the loop, and uses the values of t = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topdp.errors import InputError
from topdp.plan.arrays import Floats


@dataclass(frozen=True)
class Schedule:
    """Step size λ and noise scale of every release; both [T+1].

    >>> import numpy as np
    >>> Schedule(rate=np.full(21, 0.5), noise=np.full(21, 0.5)).releases
    21
    """

    rate: Floats
    noise: Floats

    @property
    def releases(self) -> int:
        return len(self.rate)


def learning_rates(initial: float, rounds: int, fading: str, rounds_per_epoch: int = 1) -> Floats:
    """λ_t of the T+1 releases of T `rounds`.

    `none`: constant. `linear`: falls to 1/T of itself. `sqrt-epoch`: λ/√(1 + epoch), our reading of the
    paper's "fading learning rate", whose law it does not give.

    >>> learning_rates(1.0, rounds=4, fading="linear").tolist()
    [1.0, 1.0, 0.75, 0.5, 0.25]
    """
    t = _time(rounds)
    if fading == "none":
        return np.full(rounds + 1, float(initial))
    if fading == "linear":
        return initial * (1.0 - t / max(rounds, 1))
    if fading == "sqrt-epoch":
        return initial / np.sqrt(1.0 + t // rounds_per_epoch)
    raise InputError(f"Expected fading to be one of {', '.join(FADINGS)}, got {fading!r}.")


FADINGS = ("none", "linear", "sqrt-epoch")


def step_decay(factor: float, period: int, rounds: int) -> Floats:
    """γ^⌊t/period⌋ of the T+1 releases of T `rounds`.

    The paper calls this free; at a fixed clip it is not (docs/privacy.md), and the accountant counts it.

    >>> step_decay(0.5, period=2, rounds=4).tolist()
    [1.0, 1.0, 1.0, 0.5, 0.5]
    """
    if not 0 < factor <= 1:
        raise InputError(f"Expected 0 < decay factor <= 1, got {factor}.")
    if period < 1:
        raise InputError(f"Expected decay period >= 1 round, got {period}.")
    # Eq. (6b): σ_t = σ_0 γ^⌊t/period⌋
    return np.power(float(factor), _time(rounds) // period)


def schedule(rate: Floats, decay: Floats, noise_on: str) -> Schedule:
    """Puts the noise inside the step (`gradient`: -λ(ḡ + noise)) or beside it (`estimate`: as printed).

    >>> rates, decay = learning_rates(0.5, 2, "none"), step_decay(1.0, 1, 2)
    >>> schedule(rates, decay, "gradient").noise.tolist(), schedule(rates, decay, "estimate").noise.tolist()
    ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    """
    if noise_on == "gradient":
        return Schedule(rate, rate * decay)
    if noise_on == "estimate":
        return Schedule(rate, np.array(decay))
    raise InputError(f"Expected noise_on to be 'gradient' or 'estimate', got {noise_on!r}.")


def _time(rounds: int) -> Floats:
    """t of each release; the one before the loop counts as the first round's."""
    return np.maximum(np.arange(rounds + 1, dtype=np.float64) - 1.0, 0.0)

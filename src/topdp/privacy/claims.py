"""What a method's own published analysis says of a plan: its full-scale noise, under its calibration.

The noise that Top-DP saves is counted as free here, as the paper counts it; `view` and `worst_case` say what
it costs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topdp.plan import Plan
from topdp.privacy.baselines import CALIBRATIONS, Adjacency, Batches
from topdp.privacy.errors import PrivacyWarning, Refused
from topdp.privacy.participation import Cyclic, EveryRound, Exposure, Participation, PoissonSampling

Floats = NDArray[np.float64]

PROTOCOLS = ("plain-sync", "plain-async", "top-sync", "top-async")
"""Those in which an agent's row of round 0 carries its full-scale noise."""


@dataclass(frozen=True)
class Analysis:
    """A calibration by name, and how the records of each agent enter its batches."""

    calibration: str
    batches: tuple[Batches, ...]
    clip: float
    adjacency: Adjacency = "add-remove"

    def exposure(self) -> Exposure:
        """The same facts as the other accountants want them."""
        sensitivity = np.array([self.clip * batches.sensitivity(self.adjacency) for batches in self.batches])
        return Exposure(sensitivity, tuple(map(_participation, self.batches)), self.adjacency)

    def claim(self, plan: Plan, delta: float) -> tuple[Floats, list[str]]:
        """([agents] the claimed ε, what the calibration itself warns of)."""
        z = noise_multipliers(plan, self.exposure())
        rule = CALIBRATIONS[self.calibration]
        found: dict[tuple[bytes, Batches], float] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            for agent, batches in enumerate(self.batches):
                key = (z[:, agent].tobytes(), batches)
                if key not in found:
                    found[key] = rule.claim(z[:, agent], delta, batches, self.adjacency)
        claims = [found[z[:, agent].tobytes(), batches] for agent, batches in enumerate(self.batches)]
        said = [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]
        return np.array(claims), list(dict.fromkeys(said))


def noise_multipliers(plan: Plan, exposure: Exposure) -> Floats:
    """[rounds, agents]: z = full-scale standard deviation / (λ · sensitivity)."""
    if plan.protocol not in PROTOCOLS:
        raise Refused(f"No published analysis covers plans of protocol {plan.protocol!r}.")
    full_scale = plan.std[0][: plan.agents, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_round = np.where(plan.rate > 0, plan.scale / plan.rate, np.inf)
        z: Floats = per_round[:, None] * (full_scale / exposure.sensitivity)[None, :]
    return z


def _participation(batches: Batches) -> Participation:
    if batches.sampled:
        return PoissonSampling(batches.rate)
    return EveryRound() if batches.period == 1 else Cyclic(batches.period)

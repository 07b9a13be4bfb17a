"""The ε that a method's own published analysis claims for a plan, from full-scale noise and a calibration.

As in the paper, the claim does not account for the noise that Top-DP saves. `view` and `worst_case` do.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from topdp.base.array_types import Floats
from topdp.plan import Capability, Plan, unsupported
from topdp.plan.batches import Adjacency, Batches
from topdp.privacy.basics.exposure import Exposure, check, uncovered_reason
from topdp.privacy.basics.refusals import PrivacyError, PrivacyWarning, expect_deltas, expect_supported
from topdp.protocols import protocol_of

Unit = Literal["record", "person"]
"""What an ε protects: one record of one agent, or one person."""


@dataclass(frozen=True)
class Analysis:
    """The inputs of an account apart from the plan: a calibration, and how each agent uses its records.

    `calibration`: the name of the method whose claim is computed. `batches`: of each agent. `clip`: the bound
    on the norm of one record's gradient. `noise_on_estimate`: whether the noise is added to the estimate, as
    the paper prints it, and not to the gradient, which is multiplied by λ. `unit`: what an ε protects, one
    record or one person. `sites`: the most agents that may hold records of one person.

    >>> from topdp.plan import Cycle
    >>> analysis = Analysis("tight", (Cycle(2000, 20),) * 3, clip=4.0)
    >>> analysis.exposure().sensitivity.tolist()
    [0.2, 0.2, 0.2]
    """

    calibration: str
    batches: tuple[Batches, ...]
    clip: float
    adjacency: Adjacency = "add-remove"
    _: KW_ONLY
    noise_on_estimate: bool = False
    unit: Unit = "record"
    sites: int = 1

    def __post_init__(self) -> None:
        if self.calibration != "tight":  # the default needs no other calibrations
            from topdp.privacy.published.calibrations import CALIBRATIONS

            if self.calibration not in CALIBRATIONS:
                raise PrivacyError(
                    f"Expected calibration to be one of {', '.join(CALIBRATIONS)}, got {self.calibration!r}."
                )
        if not 0 < self.clip < float("inf"):
            raise PrivacyError(f"Expected a finite clip > 0, got {self.clip}.")

    def exposure(self) -> Exposure:
        """Return the sensitivity and batches of each agent, as accountants use them."""
        sensitivity = np.array([self.clip * batches.sensitivity(self.adjacency) for batches in self.batches])
        return Exposure(sensitivity, self.batches, self.adjacency)

    def facts(self) -> dict[str, Any]:
        """Return the inputs of an account apart from the plan, for JSON."""
        exposure = self.exposure()
        return {
            "adjacency": self.adjacency,
            "calibration": self.calibration,
            "clip": self.clip,
            "sensitivity": exposure.sensitivity.tolist(),
            "batches": [
                {"kind": kind, "size": size, **({} if mean is None else {"mean_records": mean})}
                for kind, size, mean in dict.fromkeys(
                    (b.kind, getattr(b, "size", None), b.mean_records) for b in self.batches
                )
            ],
            **({"noise_on": "estimate"} if self.leaves_out_step else {}),
            **({"unit": self.unit, "sites_per_person": self.sites} if self.unit != "record" else {}),
        }

    @property
    def leaves_out_step(self) -> bool:
        """Whether the claim leaves out the step size λ, which multiplies the gradient but not the noise."""
        if not self.noise_on_estimate or self.calibration == "tight":
            return False
        from topdp.privacy.published.calibrations import CALIBRATIONS

        return not CALIBRATIONS[self.calibration].counts_step

    def claim(self, plan: Plan, delta: ArrayLike) -> tuple[Floats, list[str]]:
        """Return the claimed ε [agents] at one δ or each agent's δ, and the calibration's warnings."""
        z = self.multipliers(plan)
        deltas = expect_deltas(delta, len(self.batches))
        keys = [(z[..., i].tobytes(), batches, float(deltas[i])) for i, batches in enumerate(self.batches)]
        claims: dict[tuple[bytes, Batches, float], float] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            for agent, key in enumerate(keys):
                if key not in claims:
                    claims[key] = self.claim_of(agent, z[..., agent], float(deltas[agent]))
        messages = [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]
        return np.array([claims[key] for key in keys]), list(dict.fromkeys(messages))

    def claim_of(self, agent: int, multipliers: Floats, delta: float) -> float:
        """Return the claimed ε of `agent` at `delta` for releases with these multipliers [2, releases]."""
        from topdp.privacy.published.calibrations import CALIBRATIONS

        rule, (stated, true) = CALIBRATIONS[self.calibration], multipliers
        return rule.claim(stated, delta, self.batches[agent], self.adjacency, true_multipliers=true)

    def multipliers(self, plan: Plan) -> Floats:
        """Return the noise multipliers as the calibration takes them, and the true ones.

        The result is [2, releases, agents]. The two are equal unless the claim `leaves_out_step`: then the
        first are full-scale standard deviation / sensitivity. Raise NotCovered if no published analysis
        covers the plan.
        """
        exposure = self.exposure()
        true = noise_multipliers(plan, exposure)
        if not self.leaves_out_step:
            return np.stack([true, true])
        return np.stack([plan.scale[:, None] * (plan.full_scale / exposure.sensitivity), true])


def claim_reason(plan: Plan) -> str | None:
    """Return None, or the reason why no published analysis covers the plan."""
    if need := unsupported(plan, {Capability.SHARED_DRAWS, Capability.PRUNED_ROWS}):
        return (
            f"Not covered: {need}. No published analysis of the method includes it. Use "
            "guarantee='adaptive' or 'worst-case'."
        )
    if not protocol_of(plan).claimed:
        return f"No published analysis covers plans of protocol {plan.protocol!r}."
    if (plan.rate == 0).any():
        return "No published analysis covers rounds with a step of 0."
    return uncovered_reason(plan, {Capability.SHARED_DRAWS})


def noise_multipliers(plan: Plan, exposure: Exposure) -> Floats:
    """Return z = full-scale standard deviation / (λ · sensitivity) of each release and agent.

    The result is [releases, agents]. Raise NotCovered if no published analysis covers the plan.
    """
    check(plan, exposure)
    expect_supported(claim_reason(plan))
    of_rounds = _without_last_digits(plan.scale / plan.rate)
    return np.asarray(of_rounds[:, None] * (plan.full_scale / exposure.sensitivity))


def _without_last_digits(values: Floats) -> Floats:
    """Return `values`, with values that differ only by rounding replaced by the least of them.

    They differ because in floating point λγ/λ is not always γ.
    """
    distinct, where = np.unique(values, return_inverse=True)
    first = np.diff(distinct, prepend=-1.0) > 1e-13 * distinct
    return np.asarray(distinct[first][np.cumsum(first) - 1][where])

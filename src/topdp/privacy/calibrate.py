"""The least noise whose account meets a budget (ε, δ) under the chosen guarantee.

Scaling all noise of a plan by s divides every μ by s, so one account at unit noise and one division calibrate
a common budget. Budgets or sensitivities of one's own need a fixed point, since an agent's noise also hides
its neighbours; it ends with one more common division, so it errs on the private side wherever it stops.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from topdp.plan import Plan
from topdp.plan.arrays import Floats
from topdp.plan.batches import Adjacency, Batches
from topdp.privacy.account import GUARANTEES
from topdp.privacy.basics.checks import NotCovered, PrivacyError, PrivacyWarning, expect_delta, expect_epsilon
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.observers.answers import observed
from topdp.privacy.observers.view import Progress, View
from topdp.privacy.observers.worst_case import worst_case
from topdp.privacy.published.calibration import Calibration, least_noise
from topdp.privacy.published.claims import Analysis, noise_multipliers
from topdp.privacy.published.rules import CALIBRATIONS

Writer = Callable[[Floats], Plan]
"""The plan of a protocol for full-scale standard deviations [agents]; the same random choices every time."""

SWEEPS = 12  # of the fixed point
CLOSE = 1e-3  # relative distance from the budgets at which the fixed point is left
MARGIN = 1 + 1e-7  # covers the rounding of the last product, and of bounds found again at other noise


@dataclass(frozen=True, eq=False)
class CalibratedNoise:
    """Full-scale standard deviations [agents], and the view of the plan they make where one was computed.

    >>> import numpy as np
    >>> CalibratedNoise(np.array([0.1, 0.2])).seen is None
    True
    """

    deviation: Floats
    seen: View | None = None


def calibrate(
    write: Writer,
    analysis: Analysis,
    guarantee: str,
    epsilon: Floats,
    delta: float,
    progress: Progress | None = None,
    patient: bool = False,
    colluders: int = 1,
) -> CalibratedNoise:
    """The full-scale noise with which `write`'s plan keeps every agent's ε.

    **Guarantees.** The account of the plan under `guarantee` is at most ε for every agent, and at least
    (1 - 1e-6)·ε for the agent that binds. A plan that no amount of noise can make private is refused.

    >>> from topdp.privacy import Analysis, account
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> def write(deviation):
    ...     return TopSynchronous(0.5).plan(topology.ring(6), steps, deviation, seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> found = calibrate(write, analysis, "view", epsilon=np.ones(6), delta=1e-5)
    >>> found.deviation.round(2).tolist()
    [13.65, 13.65, 13.65, 13.65, 13.65, 13.65]
    >>> round(account(write(found.deviation), analysis, delta=1e-5, answers=["view"]).view.largest, 4)
    1.0
    """
    delta = expect_delta(delta)
    epsilon = np.array([expect_epsilon(float(e)) for e in epsilon])
    if guarantee not in GUARANTEES:
        raise PrivacyError(f"Expected guarantee to be one of {', '.join(GUARANTEES)}, got {guarantee!r}.")
    exposure = analysis.exposure()
    if len(epsilon) != exposure.agents:
        raise PrivacyError(f"Expected one epsilon for each of {exposure.agents} agents, got {len(epsilon)}.")
    if guarantee == "claimed":
        return CalibratedNoise(_claimed(write, analysis, epsilon, delta))
    if exposure.sampled:
        return CalibratedNoise(_sampled(write, analysis, guarantee, epsilon, delta, patient, colluders))

    target = np.asarray(mu_of(epsilon, delta))
    seen: dict[bytes, View] = {}

    def excess(deviation: Floats) -> Floats:
        plan = write(deviation)
        if guarantee == "worst-case":
            return worst_case(plan, exposure).mu / target
        found = observed(guarantee, plan, exposure, colluders, patient, progress)
        seen[deviation.tobytes()] = found
        return found.worst() / target

    deviation, factor = _balanced(excess, exposure.sensitivity / target, guarantee)
    factor *= MARGIN
    kept = seen.get(deviation.tobytes())
    if kept is not None and kept.upper is not None:
        # Scaling all noise by s scales every μ by 1/s: no need to look again.
        kept = replace(kept, lower=kept.lower / factor, upper=kept.upper / factor)
    return CalibratedNoise(deviation * factor, kept)


def _balanced(
    excess_of: Callable[[Floats], Floats], deviation: Floats, guarantee: str
) -> tuple[Floats, float]:
    """Noise with which no agent's loss exceeds its budget, and all come near to it where the sweeps can.

    Returns the noise and the common factor it still has to be multiplied by. `excess_of` gives each agent's
    loss over its budget. It falls as 1/s when all noise grows by s, so that factor is exact; before it, an
    agent above the others is given more of the noise.
    """
    alike = np.ptp(deviation) <= 1e-12 * deviation.max()
    excess = excess_of(deviation)
    if not np.isfinite(excess).all() and not alike:
        # Agents with large budgets may leave all noise to their neighbours, which hides nothing from those.
        deviation = np.full_like(deviation, deviation.max())
        excess = excess_of(deviation)
    if not np.isfinite(excess).all():
        who = ", ".join(map(str, np.flatnonzero(~np.isfinite(excess))[:5]))
        raise NotCovered(
            f"No amount of noise gives an epsilon by {guarantee}: agents {who} send rows without noise."
        )
    if excess.max() == 0:
        raise NotCovered(
            f"Nobody reads what others make in this plan: no epsilon by {guarantee} to calibrate to."
        )
    step = 1.0
    for _ in range(0 if alike else SWEEPS):
        if _spread(excess) <= CLOSE or step < 1 / 8:
            break
        proposal = deviation * _kept_pace(excess) ** step
        proposed = excess_of(proposal)
        if _spread(proposed) < _spread(excess):
            deviation, excess = proposal, proposed
        else:
            step /= 2
    return deviation, float(excess.max())


def _kept_pace(excess: Floats) -> Floats:
    """Agents of whom nobody learns anything are moved with the worst: their noise still hides others."""
    return np.where(excess > 0, excess, excess.max())


def _spread(excess: Floats) -> float:
    if not np.isfinite(excess).all():
        return np.inf
    return float(excess.max() / _kept_pace(excess).min() - 1)


def _claimed(write: Writer, analysis: Analysis, epsilon: Floats, delta: float) -> Floats:
    """By the method's own analysis, each agent for itself."""
    exposure = analysis.exposure()
    shape = noise_multipliers(write(exposure.sensitivity), exposure)  # z per round at unit noise
    rule = CALIBRATIONS[analysis.calibration]
    found: dict[tuple[float, object, bytes], float] = {}
    result = np.empty(exposure.agents)
    for agent, batches in enumerate(analysis.batches):
        z = shape[:, agent]
        key = (float(epsilon[agent]), batches, z.tobytes())
        if key not in found:
            if np.ptp(z) == 0:
                adjacency = analysis.adjacency
                equal = rule.calibrate(float(epsilon[agent]), delta, len(z), batches, adjacency)
                found[key] = equal.noise_multiplier / float(z[0])
            else:
                claim = partial(_claim_at, rule, z, delta, batches, analysis.adjacency)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PrivacyWarning)  # of noise that is only tried
                    found[key] = least_noise(claim, float(epsilon[agent]), rule.name)
                claim(found[key])
        result[agent] = exposure.sensitivity[agent] * found[key]
    return result


def _claim_at(
    rule: Calibration, z: Floats, delta: float, batches: Batches, adjacency: Adjacency, scale: float
) -> float:
    return rule.claim(scale * z, delta, batches, adjacency)


def _sampled(
    write: Writer,
    analysis: Analysis,
    guarantee: str,
    epsilon: Floats,
    delta: float,
    patient: bool,
    colluders: int,
) -> Floats:
    """Amplified samples have no μ: one common factor, found by bisection on the account itself."""
    exposure = analysis.exposure()
    plan = write(exposure.sensitivity)
    # Scaling all noise by s scales every μ by 1/s: observers are looked at once.
    seen = None if guarantee == "worst-case" else observed(guarantee, plan, exposure, colluders, patient)

    def worst(scale: float) -> float:
        found = worst_case(plan.noise_scaled(scale), exposure).epsilon(delta)
        if seen is not None:
            found = np.minimum(found, epsilon_of(seen.worst() / scale, delta))
        return float((found / epsilon).max())

    return exposure.sensitivity * least_noise(worst, 1.0, guarantee)

"""The search for noise with which every agent just meets its own budget, if agents differ.

The noise of an agent also hides its neighbours, so the search treats all agents together. Accounts are slow.
A quick model therefore shows how agents depend on each other, and accounts only correct the model.

**Guarantees.** None of its own: the caller scales the result until its account meets the budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Floats

# A function of noise [agents] that returns each agent's loss divided by its budget [agents]. If the noise is
# multiplied by s, the result must be divided by s.
Excess = Callable[[Floats], Floats]

# A function that is called with the result of each account.
Report = Callable[[Floats], None]

MAX_ACCOUNTS = 10  # the most calls of each account
BUDGET_TOLERANCE = 5e-4  # the relative distance below its budget at which an agent may end
INTERIM_TOLERANCE = 1e-2  # the same distance, if a more precise account follows
FIRST_TOLERANCE = 0.5  # the same distance, before the first account
MAX_MODEL_CALLS = 40  # the most calls of the model between two calls of an account
MIXED_STEPS = 8  # the number of earlier steps from which the next step is computed
# Mixing changes an agent's noise by at most a factor of e, compared with the noise that its excess proposes.
MAX_MIXING_STEP = 1.0


class Balance(NamedTuple):
    """The noise of each agent [agents], and each agent's excess by the account of this noise [agents]."""

    noise: Floats
    excess: Floats


def balance(accounts: Sequence[Excess], least: Floats, report: Report | None = None) -> Balance:
    """Return noise [agents] at which all agents have the same excess, except agents with their `least` noise.

    The excess is that of the last account. If the noise is multiplied by this excess, every agent meets its
    budget, and no agent's noise can be lowered, because that agent would then exceed its budget.

    `accounts`: in order of precision. The first is the model, which is called often. Each of the others
    corrects the model. If the search does not converge, the result with the smallest distance from the
    budgets is returned. `report` is called with the excess of each account.

    >>> import numpy as np
    >>> def account(noise):  # a neighbour's noise hides half as well as an agent's own
    ...     return np.array([4.0, 3.0]) / (noise + 0.5 * noise[::-1])
    >>> found = balance([account], least=np.full(2, 0.1))
    >>> (found.noise * found.excess.max()).round(2).tolist()
    [3.33, 1.33]
    """
    model, floor = accounts[0], np.log(least)
    equal = np.full_like(floor, floor.max())
    # Agents with large budgets may rely on noise of their neighbours. If all noise is equal, no agent does.
    start = floor if np.isfinite(model(least)).all() else equal
    best = Balance(np.exp(start), np.full_like(floor, np.inf))
    # `correction`: ln(account / model) [agents]. `distance`: of the agents from their budgets.
    correction, distance, mixing = np.zeros_like(floor), FIRST_TOLERANCE, _AndersonMixing()
    for account in accounts[1:] or accounts:
        tolerance = BUDGET_TOLERANCE if account is accounts[-1] else INTERIM_TOLERANCE
        noise, least_distance, best_correction = np.log(best.noise), np.inf, correction
        for number in range(MAX_ACCOUNTS):
            precision = max(distance / 50, BUDGET_TOLERANCE / 4)
            proposed = _model_optimum(model, correction, noise, floor, precision)
            noise = np.maximum(mixing.next_point(noise, proposed), floor) if number else proposed
            result = Balance(np.exp(noise), account(np.exp(noise)))
            if report is not None:
                report(result.excess)
            log_excess = _logarithm(result.excess)
            distance = _distance(noise, log_excess, floor)
            log_model = _logarithm(model(result.noise))
            with np.errstate(invalid="ignore"):
                correction = log_excess - log_model
            correction = np.where(np.isfinite(correction), correction, 0.0)  # 0 if either is infinite
            if number == 0 or distance < least_distance:
                best, least_distance, best_correction = result, distance, correction
            if distance <= tolerance or not np.isfinite(distance):
                break
        correction, distance = best_correction, least_distance
        mixing.forget_point()
    if not np.isfinite(best.excess).all():
        best = Balance(np.exp(equal), accounts[-1](np.exp(equal)))
    return best


class _AndersonMixing:
    """Anderson mixing (1965): computes the next step towards a fixed point from the last few steps."""

    def __init__(self) -> None:
        self._last: tuple[Floats, Floats] | None = None
        self._steps: list[tuple[Floats, Floats]] = []  # (change of the point, change of the move)

    def next_point(self, point: Floats, proposal: Floats) -> Floats:
        """Return the next point after `point`, for which the fixed-point map gives `proposal`."""
        move = proposal - point
        if self._last is not None:
            self._steps = [*self._steps, (point - self._last[0], move - self._last[1])][-MIXED_STEPS:]
        self._last = point, move
        if not self._steps:
            return proposal
        # The combination of earlier changes that is nearest to the present move, by least squares.
        steps, changes = (np.stack(parts, axis=1) for parts in zip(*self._steps, strict=True))
        back = (steps + changes) @ np.linalg.lstsq(changes, move, rcond=1e-8)[0]
        return np.asarray(proposal - np.clip(back, -MAX_MIXING_STEP, MAX_MIXING_STEP))

    def forget_point(self) -> None:
        """Forget the last point, because another account follows. Keep the steps, which stay similar."""
        self._last = None


def _model_optimum(
    model: Excess, correction: Floats, noise: Floats, floor: Floats, tolerance: float
) -> Floats:
    """Return ln of the noise [agents] at which the corrected model states that every agent meets its budget.

    That is, model times exp(`correction`) is 1 for every agent whose noise is above its `floor`. `noise`: ln
    of the noise at which the search starts. `tolerance`: the distance, in logarithms, at which it ends.
    """
    mixing, best, least_distance = _AndersonMixing(), noise, np.inf
    for _ in range(MAX_MODEL_CALLS):
        # If only an agent's own noise hid it, this noise would have to grow by the agent's excess.
        proposal = np.maximum(noise + _logarithm(model(np.exp(noise))) + correction, floor)
        if not np.isfinite(proposal).all():
            noise = (noise + best) / 2  # at this noise some agent relies on its neighbours' noise alone
            continue
        distance = float(np.abs(proposal - noise).max())
        if distance < least_distance:
            best, least_distance = noise, distance
        if distance <= tolerance:
            break
        noise = np.maximum(mixing.next_point(noise, proposal), floor)
    return best


def _distance(noise: Floats, log_excess: Floats, floor: Floats) -> float:
    """Return the largest distance of an agent from its budget or from its floor, whichever is nearer.

    Distances are in logarithms of noise, after all noise was scaled so that the largest excess is 1. `noise`:
    ln of the noise. `log_excess`: ln of the excess.
    """
    largest = log_excess.max()
    if not np.isfinite(largest):
        return np.inf
    return float(np.minimum(largest - log_excess, noise + largest - floor).max())


def _logarithm(excess: Floats) -> Floats:
    """Return ln of `excess`. It is -inf for agents about which no observer learns; these end at the floor."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(excess))

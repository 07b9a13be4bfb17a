"""The search for noise with which every agent just meets its own budget, where agents differ.

An agent's noise also hides its neighbours, so the search treats all agents together. Accounts are slow. A
quick model shows how agents depend on each other, and accounts only correct the model.

**Guarantees.** None of its own: the caller divides the result by its account.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Floats

# A function from noise [agents] to each agent's loss over its budget [agents]. Multiplying the noise by s
# must divide the result by s.
Excess = Callable[[Floats], Floats]

# Called with the result of each account.
Report = Callable[[Floats], None]

MAX_ACCOUNTS = 10  # of each kind
BUDGET_TOLERANCE = 5e-4  # relative distance below its budget at which an agent may end
INTERIM_TOLERANCE = 1e-2  # the same where a better account follows
FIRST_TOLERANCE = 0.5  # the same before the first account
MAX_MODEL_CALLS = 40  # between two accounts
MIXED_STEPS = 8  # earlier steps from which the next one is mixed
# Mixing moves an agent's noise by at most a factor of e from where its own excess would.
MAX_MIXING_STEP = 1.0


class Balance(NamedTuple):
    """Noise [agents], and the excess by its account."""

    noise: Floats
    excess: Floats


def balance(accounts: Sequence[Excess], least: Floats, report: Report | None = None) -> Balance:
    """Return noise at which all agents have the same excess by the last account, except those at `least`.

    Divided by the common excess, no agent's noise can be lowered: that agent would exceed its budget.
    `accounts`: in order of precision. The first is the model, which is called often; each of the others
    corrects it. Where the search does not converge, the nearest result is returned.

    >>> import numpy as np
    >>> def account(noise):  # a neighbour's noise hides half as well as an agent's own
    ...     return np.array([4.0, 3.0]) / (noise + 0.5 * noise[::-1])
    >>> found = balance([account], least=np.full(2, 0.1))
    >>> (found.noise * found.excess.max()).round(2).tolist()
    [3.33, 1.33]
    """
    model, floor = accounts[0], np.log(least)
    alike = np.full_like(floor, floor.max())
    # Agents with large budgets may rely on noise of their neighbours; with equal noise none does.
    noise = floor if np.isfinite(model(least)).all() else alike
    result = Balance(np.exp(noise), np.full_like(floor, np.inf))
    off, left, walk = np.zeros_like(floor), FIRST_TOLERANCE, _AndersonMixing()
    for account in accounts[1:] or accounts:
        close = BUDGET_TOLERANCE if account is accounts[-1] else INTERIM_TOLERANCE
        result, off, left = _corrected(account, model, result.noise, off, left, close, floor, walk, report)
        walk.rest()
    if not np.isfinite(result.excess).all():
        result = Balance(np.exp(alike), accounts[-1](np.exp(alike)))
    return result


def _corrected(
    account: Excess,
    model: Excess,
    start: Floats,
    off: Floats,
    left: float,
    close: float,
    floor: Floats,
    walk: _AndersonMixing,
    report: Report | None,
) -> tuple[Balance, Floats, float]:
    """Correct the model by `account` until every agent is within `close` of its budget.

    `start`: the first noise [agents]. `off`: the current correction [agents], ln(account / model). `left`:
    the current distance (`_left`); the model is solved to a fiftieth of it. `floor`: ln of the least noise
    [agents]. `walk`: the mixing of earlier steps.

    Return the balance with the smallest distance, the correction at that noise, and the distance.
    """
    best, nearest, off_there = None, np.inf, off
    noise = np.log(start)
    for number in range(MAX_ACCOUNTS):
        proposed = _model_optimum(model, off, noise, floor, max(left / 50, BUDGET_TOLERANCE / 4))
        noise = np.maximum(walk.onward(noise, proposed), floor) if number else proposed
        result = Balance(np.exp(noise), account(np.exp(noise)))
        if report is not None:
            report(result.excess)
        logs = _logarithm(result.excess)
        left = _left(noise, logs, floor)
        off = _difference(logs, _logarithm(model(result.noise)))
        if best is None or left < nearest:
            best, nearest, off_there = result, left, off
        if left <= close or not np.isfinite(left):
            break
    assert best is not None
    return best, off_there, nearest


class _AndersonMixing:
    """Anderson mixing (1965): the next step towards a fixed point, computed from the last few steps."""

    def __init__(self) -> None:
        self._last: tuple[Floats, Floats] | None = None
        self._steps: list[tuple[Floats, Floats]] = []  # (change of the point, change of the move)

    def onward(self, place: Floats, proposal: Floats) -> Floats:
        """Return the next point after `place`, for which the fixed-point map gives `proposal`."""
        move = proposal - place
        if self._last is not None:
            self._steps = [*self._steps, (place - self._last[0], move - self._last[1])][-MIXED_STEPS:]
        self._last = place, move
        if not self._steps:
            return proposal
        # The least-squares mixture of the moves at the last points.
        steps, changes = (np.stack(these, axis=1) for these in zip(*self._steps, strict=True))
        back = (steps + changes) @ np.linalg.lstsq(changes, move, rcond=1e-8)[0]
        return np.asarray(proposal - np.clip(back, -MAX_MIXING_STEP, MAX_MIXING_STEP))

    def rest(self) -> None:
        """Forget the last point, because another account follows. Keep the steps, which remain similar."""
        self._last = None


def _model_optimum(model: Excess, off: Floats, noise: Floats, floor: Floats, close: float) -> Floats:
    """Return ln of the noise [agents] at which model times exp(`off`) is 1 for every agent above its `floor`.

    `noise`: ln of the noise at which the search starts. `close`: the distance at which it ends, in
    logarithms.
    """
    walk, best, nearest = _AndersonMixing(), noise, np.inf
    for _ in range(MAX_MODEL_CALLS):
        # If only its own noise counted, an agent's noise would have to grow by its excess.
        proposal = np.maximum(noise + _logarithm(model(np.exp(noise))) + off, floor)
        if not np.isfinite(proposal).all():
            noise = (noise + best) / 2  # here some agent relies on its neighbours' noise alone
            continue
        left = float(np.abs(proposal - noise).max())
        if left < nearest:
            best, nearest = noise, left
        if left <= close:
            break
        noise = np.maximum(walk.onward(noise, proposal), floor)
    return best


def _left(noise: Floats, logs: Floats, floor: Floats) -> float:
    """Return the largest distance of an agent from its budget or floor, in logarithms of noise."""
    largest = logs.max()
    if not np.isfinite(largest):
        return np.inf
    return float(np.minimum(largest - logs, noise + largest - floor).max())


def _logarithm(excess: Floats) -> Floats:
    """Return ln of `excess`; -inf for agents about which no observer learns: they end at the floor."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(excess))


def _difference(account: Floats, model: Floats) -> Floats:
    """Return account minus model; 0 where either is infinite."""
    with np.errstate(invalid="ignore"):
        difference = account - model
    return np.where(np.isfinite(difference), difference, 0.0)

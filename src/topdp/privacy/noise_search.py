"""Noise for agents that differ: a search in which each comes to its own budget, and none beyond.

An agent's noise hides its neighbours too, so the noise of all is sought together. Accounts are slow: a quick
model says how agents depend on each other, and accounts say only how far it is off. Not for what an account
is, nor for plans that no noise makes private: `calibrate` knows.

**Guarantees.** None of its own: whatever is found here is divided by what the account says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Floats

Excess = Callable[[Floats], Floats]
"""Each agent's loss over its budget [agents], at noise [agents]. Noise times s must divide it by s."""

Tell = Callable[[Floats], None]
"""Called after each account with what it said."""

MAX_ACCOUNTS = 10  # of a kind, at most
BUDGET_TOLERANCE = 5e-4  # an agent may end so far below its budget, relative
INTERIM_TOLERANCE = 1e-2  # so far where a better account follows
FIRST_TOLERANCE = 0.5  # how far below it some agent may be before the first account
MAX_MODEL_CALLS = 40  # at the model between two accounts, at most
MIXED_STEPS = 8  # looks, or accounts, that the next one is mixed from
MAX_MIXING_STEP = (
    1.0  # mixing moves an agent's noise by at most a factor of e from where its own excess would
)


class Balance(NamedTuple):
    """Noise [agents], and what the account says of it."""

    noise: Floats
    excess: Floats


def balance(accounts: Sequence[Excess], least: Floats, tell: Tell | None = None) -> Balance:
    """Noise at which all agents are alike by the last of `accounts`, but for those whose noise is `least`.

    Divided by what they have in common, nobody's noise can be lowered: the agent itself would exceed its
    budget. `accounts`: ever better ones. The first is the model, asked often; each of the others says how far
    it is off. Where the search does not come so far, what came nearest is returned.

    >>> import numpy as np
    >>> def account(noise):  # a neighbour's noise hides half as well as one's own
    ...     return np.array([4.0, 3.0]) / (noise + 0.5 * noise[::-1])
    >>> found = balance([account], least=np.full(2, 0.1))
    >>> (found.noise * found.excess.max()).round(2).tolist()
    [3.33, 1.33]
    """
    model, floor = accounts[0], np.log(least)
    alike = np.full_like(floor, floor.max())
    # Agents with large budgets may leave all noise to their neighbours; where noise is equal none can.
    noise = floor if np.isfinite(model(least)).all() else alike
    found = Balance(np.exp(noise), np.full_like(floor, np.inf))
    off, left, walk = np.zeros_like(floor), FIRST_TOLERANCE, _AndersonMixing()
    for account in accounts[1:] or accounts:
        close = BUDGET_TOLERANCE if account is accounts[-1] else INTERIM_TOLERANCE
        found, off, left = _corrected(account, model, found.noise, off, left, close, floor, walk, tell)
        walk.rest()
    if not np.isfinite(found.excess).all():
        found = Balance(np.exp(alike), accounts[-1](np.exp(alike)))
    return found


def _corrected(
    account: Excess,
    model: Excess,
    start: Floats,
    off: Floats,
    left: float,
    close: float,
    floor: Floats,
    walk: _AndersonMixing,
    tell: Tell | None,
) -> tuple[Balance, Floats, float]:
    """The nearest that was found by this account, how far the model is off there, and what is left to do."""
    best, nearest, off_there = None, np.inf, off
    noise = np.log(start)
    for number in range(MAX_ACCOUNTS):
        settled = _settled(model, off, noise, floor, max(left / 50, BUDGET_TOLERANCE / 4))
        noise = np.maximum(walk.onward(noise, settled), floor) if number else settled
        found = Balance(np.exp(noise), account(np.exp(noise)))
        if tell is not None:
            tell(found.excess)
        said = _logarithm(found.excess)
        left = _left(noise, said, floor)
        off = _difference(said, _logarithm(model(found.noise)))
        if best is None or left < nearest:
            best, nearest, off_there = found, left, off
        if left <= close or not np.isfinite(left):
            break
    assert best is not None
    return best, off_there, nearest


class _AndersonMixing:
    """Anderson's mixing (1965): where a fixed point is sought, the next place follows from the last few."""

    def __init__(self) -> None:
        self._last: tuple[Floats, Floats] | None = None
        self._steps: list[tuple[Floats, Floats]] = []  # from one place to the next, and how the move changed

    def onward(self, place: Floats, proposal: Floats) -> Floats:
        """Where to go from `place`, which by itself leads to `proposal`."""
        move = proposal - place
        if self._last is not None:
            self._steps = [*self._steps, (place - self._last[0], move - self._last[1])][-MIXED_STEPS:]
        self._last = place, move
        if not self._steps:
            return proposal
        # The mixture of the moves of the last places that is least in squares.
        steps, changes = (np.stack(these, axis=1) for these in zip(*self._steps, strict=True))
        back = (steps + changes) @ np.linalg.lstsq(changes, move, rcond=1e-8)[0]
        return np.asarray(proposal - np.clip(back, -MAX_MIXING_STEP, MAX_MIXING_STEP))

    def rest(self) -> None:
        """What comes next is said by another account; how moves change with places is much the same."""
        self._last = None


def _settled(model: Excess, off: Floats, noise: Floats, floor: Floats, close: float) -> Floats:
    """The logarithm of noise at which model times exp(off) is 1 for all agents, or its noise at the floor."""
    walk, best, nearest = _AndersonMixing(), noise, np.inf
    for _ in range(MAX_MODEL_CALLS):
        # One's own noise, if nobody else's counted, would have to grow as the loss exceeds the budget.
        proposal = np.maximum(noise + _logarithm(model(np.exp(noise))) + off, floor)
        if not np.isfinite(proposal).all():
            noise = (noise + best) / 2  # here some agent leaves all noise to its neighbours
            continue
        left = float(np.abs(proposal - noise).max())
        if left < nearest:
            best, nearest = noise, left
        if left <= close:
            break
        noise = np.maximum(walk.onward(noise, proposal), floor)
    return best


def _left(noise: Floats, said: Floats, floor: Floats) -> float:
    """By how much, in logarithms, some agent's noise could be lowered: to its budget, or to the floor."""
    most = said.max()
    return float(np.minimum(most - said, noise + most - floor).max()) if np.isfinite(most) else np.inf


def _logarithm(excess: Floats) -> Floats:
    """-inf for agents of whom nobody learns anything: they come to the floor."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(excess))


def _difference(said: Floats, thought: Floats) -> Floats:
    """Of account and model; none where nobody learns anything by one of them."""
    with np.errstate(invalid="ignore"):
        difference = said - thought
    return np.where(np.isfinite(difference), difference, 0.0)

"""What an observer makes of what it saw: one score for each canary, by the best linear statistic.

Every number that the observer sees is, given all it saw before, Gaussian with a variance that no data
changes. What is new in a round, whitened (`privacy.observers.filtering`), is noise plus what the canary
would have added to it; their products, summed over the rounds, are the score. In units of its standard
deviation it is N(μ, 1) if the canary is there and N(0, 1) if not, with the μ that the plan says.

Not for what follows from the scores: `bounds`.

**Guarantees.** Reads rows that the observer receives or makes, draws that it knows, and gradients of
everybody without the canaries: an observer of differential privacy knows all other records, and who sees the
estimates knows at which points their gradients were taken. Who does not see the estimates is told these
gradients too, which is the assumption of the view: gradients are fixed inputs. Coins are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topdp.audit.audit_observer import Observer
from topdp.base.array_types import Floats, Ints
from topdp.privacy.observers.gram_matrix import SHIFT_ROUNDING
from topdp.privacy.observers.observer_filter import ObservedRound, observed_rounds, seen_rows, unknown_draws

NOISELESS = 1e-4
"""A change that no noise hides counts as seen this exactly: coarser than rounding, finer than any noise."""


class Seen(NamedTuple):
    """One round at the canaries' coordinates. `scores` reads of `rows` those that the observer sees only."""

    rows: Floats  # [rows of the plan, canaries]; nan where none was made
    gradients: Floats  # [agents, canaries]: mean gradients of the round, canaries left out
    draws: Callable[[int], Floats]  # a draw of the round [canaries]; asked for those the observer knows


@dataclass(frozen=True)
class Shift:
    """A round in the eyes of the observer, and what each column of signs adds to it, whitened."""

    sight: ObservedRound
    fresh: Floats  # [fresh rows, columns]
    leaks: Ints  # which null rows show a change that no noise hides
    bare: Floats  # [leaks, columns]
    exactly: Floats  # [leaks]: in which unit


def shifts(observer: Observer, owner: int, sensitivity: float, signs: Floats) -> Iterator[Shift]:
    """Round by round; `signs` [releases, columns]: the owner's change in units of `sensitivity`."""
    S = np.zeros((0, signs.shape[1]))
    rounds = observed_rounds(observer.plan, observer.coalition, observer.public)
    for sight, sign in zip(rounds, signs, strict=True):
        step = np.where(sight.owner == owner, sight.step, 0.0) * sensitivity
        # S ← W S + step; the part of it that J sees; S ← S - K D (Kalman 1960)
        S = np.asarray(sight.mix @ S) + step[:, None] * sign
        D = sight.inverse @ S[sight.fresh]
        rest = S[sight.null] - sight.null_weights @ S[sight.fresh]
        most = sight.null_size[:, None] * sensitivity + np.abs(sight.null_weights) @ np.abs(S[sight.fresh])
        rest[np.abs(rest) <= SHIFT_ROUNDING * most] = 0.0
        leaks = np.flatnonzero(rest.any(axis=1))
        exactly = NOISELESS * np.abs(rest[leaks]).max(axis=1, initial=0.0)
        yield Shift(sight, D, leaks, rest[leaks] / exactly[:, None], exactly)
        S = S[: sight.kept] - sight.gain.T @ D


def information(observer: Observer, owner: int, sensitivity: float, signs: Floats) -> Floats:
    """[columns]: μ² of a canary with these signs."""
    total = np.zeros(signs.shape[1])
    for shift in shifts(observer, owner, sensitivity, signs):
        total += (shift.fresh**2).sum(axis=0) + (shift.bare**2).sum(axis=0)
    return total


class Scores:
    """Takes the rounds one after the other; `result` in the end."""

    def __init__(
        self, observer: Observer, owner: int, sensitivity: float, signs: Floats, column: Ints, start: Floats
    ) -> None:
        """`column` [canaries] of `signs`; `start` [canaries]: the public start of all rows."""
        plan, self.column = observer.plan, column
        self.plan = plan
        self._sees = seen_rows(plan, observer.coalition, observer.public)
        self._knows = ~unknown_draws(plan, observer.coalition)
        self._shifts = shifts(observer, owner, sensitivity, signs)
        self._before = np.broadcast_to(start, (plan.rows, len(column)))
        self._sum = np.zeros(len(column))
        self._variance = np.zeros(signs.shape[1])
        self._round = 0

    def see(self, seen: Seen) -> None:
        """The next round."""
        r, shift = self._round, next(self._shifts)
        sight = shift.sight
        expected = self._expected(r, sight, seen)
        new = seen.rows[sight.rows] - expected
        said = sight.inverse @ new[sight.fresh]
        self._add(shift.fresh, said)
        exact = new[sight.null[shift.leaks]] - sight.null_weights[shift.leaks] @ new[sight.fresh]
        self._add(shift.bare, exact / shift.exactly[:, None])
        self._before = np.full(seen.rows.shape, np.nan)
        kept = sight.rows[: sight.kept]
        self._before[kept] = expected[: sight.kept] + sight.gain.T @ said
        self._before[self._sees[r]] = seen.rows[self._sees[r]]
        self._round += 1

    def result(self) -> Floats:
        """[canaries], in units of the standard deviation that the plan promises."""
        if self._round != self.plan.releases:
            raise AssertionError(f"{self._round} of {self.plan.releases} rounds were seen.")
        spread = np.sqrt(self._variance)[self.column]
        return np.asarray(np.divide(self._sum, spread, out=np.zeros_like(spread), where=spread > 0))

    def _expected(self, round: int, sight: ObservedRound, seen: Seen) -> Floats:
        """[live, canaries]: what the rows would be on average, by what was seen before."""
        this, rows = self.plan[round], sight.rows
        expected = sight.step[:, None] * seen.gradients[sight.owner]
        for source, weight in zip(this.source[rows].T, this.weight[rows].T, strict=True):
            used = (source >= 0) & (weight != 0)
            expected[used] += weight[used, None] * self._before[source[used]]
        # Draws that it shares with whoever made the row.
        draw, std = this.draw[rows], this.std[rows]
        for live, entry in np.argwhere((draw >= 0) & (std != 0) & self._knows[draw]):
            expected[live] += std[live, entry] * seen.draws(int(draw[live, entry]))
        return np.asarray(expected)

    def _add(self, shift: Floats, said: Floats) -> None:
        self._variance += (shift**2).sum(axis=0)
        self._sum += (shift[:, self.column] * said).sum(axis=0)

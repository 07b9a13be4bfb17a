"""What releases add up to, one after the other: the same work for every release, however many were made.

Adds exactly, so the sum does not depend on the order or on how it is grouped; rounded once, upwards. Not for
Poisson samples, whose composition is no sum.

**Guarantees.** Never below Σ 1/z² over the releases of the class of rounds that adds up to most: a record is
in one of `period` such classes.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import final

GUARD = 1 + 1e-14  # on the root


@final
class ReleaseTally:
    """Releases of one owner, each in one of `period` classes of rounds.

    >>> tally = Tally(period=2)
    >>> for r, information in [(0, 0.5), (1, 2.0), (2, 1.75)]:
    ...     tally.add(r, information)
    >>> [round(tally.mu(*how), 9) for how in [(), ((3, 7.0),), ((3, 7.0), 1)]]  # of 2.25, 9 and 16
    [1.5, 3.0, 4.0]
    """

    def __init__(self, period: int = 1) -> None:
        self.count, self._period = 0, period
        self._sums: dict[int, Fraction] = {}
        self._most, self._largest, self._bare = Fraction(0), 0.0, False  # bare: without noise

    def add(self, round: int, information: float) -> None:
        self.count += 1
        if math.isinf(information):
            self._bare = True
            return
        total = self._with(round, information)
        self._sums[round % self._period] = total
        self._most, self._largest = max(self._most, total), max(self._largest, information)

    def mu(self, one_more: tuple[int, float] | None = None, reserved: int = 0) -> float:
        """μ at the sensitivity that 1/z² is given for; with one more release, or so many of the largest."""
        round, information = one_more or (0, 0.0)
        if self._bare or math.isinf(information):
            return math.inf
        most = max(self._most, self._with(round, information))
        # μ² = Σ_r 1/z_r² over the rounds that use the record; arXiv:1905.02383, Corollary 3.3
        return math.sqrt(_up(most + reserved * Fraction(max(self._largest, information)))) * GUARD

    def _with(self, round: int, information: float) -> Fraction:
        return self._sums.get(round % self._period, Fraction(0)) + Fraction(information)


def _up(value: Fraction) -> float:
    """The nearest number that is not below; infinite where there is none."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)

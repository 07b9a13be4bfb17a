"""Robust rules: mixing rules that limit the influence of a few hostile received rows.

A plan states which rows are mixed by which weights. If it also states `robust`, the owner's own rows enter
by their weights, and the rows received from others enter together, as one term:

    clipped   Σ_j w_j (x + clip(x_j - x, τ))   self-centred clipping (He, Karimireddy and Jaggi 2022, Eq. 4)
    trimmed   (Σ_j w_j) · trimmed mean         of x and all x_j, coordinate by coordinate (Yin et al. 2018)
    nearest   (Σ_j w_j) · mean                 of x and the x_j nearest to it (Farhadkhani et al. 2023, NNA)

Here x is the owner's estimate of the round before, and j runs over the received rows. The arithmetic is in
simulator/robust_mixing.py, for runs and for agents. Noise and gradients enter as in any plan.

**Guarantees.** The weight of each row depends on all rows that are mixed: the rule is not linear, and
accounts of hidden rows do not cover it. The term is a function of rows only and reads no data. So where every
row counts as seen, the account is the same as without the rule (docs/privacy.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topdp.base.number_checks import expect_count
from topdp.errors import InputError

ROBUST_RULES = ("clipped", "trimmed", "nearest")


@dataclass(frozen=True)
class Robust:
    """The rule by which received rows enter a mix.

    `hostile`: the number of rows in one agent's mix that may come from hostile neighbours. `radius`: τ of
    `clipped`; None: the distance within which all but `hostile` of the received rows lie.

    >>> Robust("trimmed", hostile=2).spared(received=6), Robust("trimmed", hostile=2).spared(received=2)
    (2, 1)
    >>> Robust("median")
    Traceback (most recent call last):
        ...
    topdp.errors.InputError: Expected a robust rule out of clipped, trimmed, nearest, got 'median'.
    """

    rule: str
    hostile: int = 1
    radius: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in ROBUST_RULES:
            raise InputError(f"Expected a robust rule out of {', '.join(ROBUST_RULES)}, got {self.rule!r}.")
        expect_count("hostile", self.hostile)
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise InputError(f"Expected a finite radius > 0, got {self.radius}.")
        if self.radius is not None and self.rule != "clipped":
            raise InputError(
                f"Expected a radius only with the rule clipped, got one with {self.rule}. Remove it."
            )

    @property
    def compares(self) -> bool:
        """Whether the rule compares received rows with each other, and so needs several."""
        return self.radius is None

    def spared(self, received: int) -> int:
        """Return the number of hostile rows among `received` ones against which the rule protects.

        The number is smaller if few rows are received: of the own row and two others, the trimmed mean drops
        one at each end.
        """
        if self.rule == "trimmed":
            return min(self.hostile, received // 2)
        return min(self.hostile, max(received - 1, 0) if self.rule == "clipped" else received)

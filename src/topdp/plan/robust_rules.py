"""Robust rules: mixing rules that limit the influence of a few hostile received rows.

A plan states which rows are mixed, and by which weights. If `Plan.robust` is set, the owner's own rows still
enter the mix by their weights. The rows that the owner received enter together, as one term:

    clipped   Σ_j w_j (x + clip(x_j - x, τ))   self-centred clipping (He, Karimireddy and Jaggi 2022, Eq. 4)
    trimmed   (Σ_j w_j) · trimmed mean         of x and all x_j, coordinate by coordinate (Yin et al. 2018)
    nearest   (Σ_j w_j) · mean                 of x and the x_j nearest to it (Farhadkhani et al. 2023, NNA)

Here x is the owner's estimate of the previous round, and j runs over the received rows.
`simulator/robust_mixing.py` contains the arithmetic, which simulated runs and real agents share. Noise and
gradients enter as in any plan.

**Guarantees.** The influence of each row depends on all rows that are mixed. The rule is therefore not
linear, and accounts of hidden rows do not cover it. The term is a function of rows only and reads no data.
So an account that counts every row as seen is the same with the rule as without it (docs/privacy.md).
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
    `clipped`; None: τ is the distance from x within which all but `hostile` of the received rows lie.

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
                f"Expected a radius only with the rule clipped, got one with {self.rule}. Remove the radius."
            )

    @property
    def compares(self) -> bool:
        """Whether the rule compares received rows with each other, and therefore needs several of them."""
        return self.radius is None

    def spared(self, received: int) -> int:
        """Return the number of hostile rows among `received` rows against which the rule protects.

        The number is smaller than `hostile` if few rows are received. For example, if an agent mixes its own
        row with two received rows, the trimmed mean drops only one row at each end.
        """
        if self.rule == "trimmed":
            return min(self.hostile, received // 2)
        return min(self.hostile, max(received - 1, 0) if self.rule == "clipped" else received)

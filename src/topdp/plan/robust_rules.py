"""Robust mixing: what stands in a row for rows that came from others, so that a few cannot spoil it.

A plan says which rows are mixed by which weights. Where it also says `robust`, rows of the owner's own enter
by their weights as ever, and those that came from others enter together, as one thing:

    clipped   Σ_j w_j (x + clip(x_j - x, τ))   self-centred clipping (He, Karimireddy and Jaggi 2022, Eq. 4)
    trimmed   (Σ_j w_j) · trimmed mean         of x and all x_j, coordinate by coordinate (Yin et al. 2018)
    nearest   (Σ_j w_j) · mean                 of x and the x_j nearest to it (Farhadkhani et al. 2023, NNA)

Here x is the owner's estimate of the round before and j goes over the received rows. The arithmetic is in
simulator/robust_mixing.py, for runs and for agents. Not for noise or gradients, which enter as ever.

**Guarantees.** Which rows enter, and how strongly, depends on all that are mixed: this is not linear, and
accounts of hidden rows do not hold for it. What is put in is a function of rows, and reads no data. So where
every row counts as seen the account is the one without it, whatever the rule (docs/privacy.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topdp.base.number_checks import expect_count
from topdp.errors import InputError

RULES = ("clipped", "trimmed", "nearest")


@dataclass(frozen=True)
class Robust:
    """By which rule received rows enter a mix.

    `hostile`: how many of the rows that one agent mixes may come from hostile neighbours. `radius`: τ of
    `clipped`; None: the distance within which all received rows lie but for `hostile` of them.

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
        if self.rule not in RULES:
            raise InputError(f"Expected a robust rule out of {', '.join(RULES)}, got {self.rule!r}.")
        expect_count("hostile", self.hostile)
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise InputError(f"Expected a finite radius > 0, got {self.radius}.")
        if self.radius is not None and self.rule != "clipped":
            raise InputError(f"Expected a radius with the rule clipped alone, got one with {self.rule}.")

    @property
    def compares(self) -> bool:
        """Whether received rows are judged by each other: then one alone cannot be judged."""
        return self.radius is None

    def spared(self, received: int) -> int:
        """How many of so many received rows can be hostile at most, and are guarded against.

        Of few rows fewer are: from the own row and two more the trimmed mean can drop one at each end.
        """
        if self.rule == "trimmed":
            return min(self.hostile, received // 2)
        return min(self.hostile, max(received - 1, 0) if self.rule == "clipped" else received)

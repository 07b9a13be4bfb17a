"""Guarantees that count on hidden rows: what keeps those rows sums to the last digit, or refuses the run.

Under `adaptive` and `view` a row that some do not see hides what it was made of, because it is a sum of rows,
steps and noise (docs/privacy.md, step 2 of the proof). Rounding it to float32 on its way, or making it
shorter because it is too long, is no sum. Not for guarantees under which every row counts as seen: there any
function of a row that has its noise is free.

**Guarantees.** Where a guarantee hides rows, one with noise is an exact multiple of its step when it leaves
(`expect_exact`), and no honest row gets too long, whatever neighbours send (`limits`): except with a
probability below 10⁻²⁰ a row. Mixing rounds in float64; `mixing_share` bounds what all of that adds to μ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from topdp.agents.agreement.hidden_rows import expect_steps_below_noise, max_exact_norm, smallest_noise_std
from topdp.agents.runtime.row_sums import ROUNDED
from topdp.base.array_types import Bools, Floats
from topdp.errors import InputError
from topdp.plan import Plan
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.observer_filter import Public

TAIL = 10.0
"""Deviations by which a draw of d numbers is longer than √d: with a probability below 10⁻²¹."""

ALIKE = 1e-9
"""Of a norm: by so much two ways to compute it may differ, and who sends and who reads take two."""


@final
@dataclass(frozen=True)
class RowNormLimits:
    """[releases] how long rows may be in a round: estimates, and all others."""

    estimates: Floats
    others: Floats
    agents: int

    def of(self, round: int, row: int) -> float:
        return float((self.estimates if row < self.agents else self.others)[round])

    def taken(self, round: int, row: int) -> float:
        """How long a row may be that comes in: nobody is refused for how its sender has added up squares."""
        return self.of(round, row) * (1 + ALIKE)


def uniform_norm_limits(plan: Plan, largest_norm: float) -> RowNormLimits:
    """Where rows may be made shorter: one limit for all."""
    every = np.full(plan.releases, largest_norm)
    return RowNormLimits(every, every, plan.agents)


def hidden_norm_limits(
    plan: Plan, guarantee: str, gradient: float, d: int, largest_norm: float, start: float
) -> RowNormLimits:
    """Limits that no row of an honest agent passes if those that it was sent did not.

    `gradient`: how long a mean gradient is at most, of any agent; `start`: the length of the public start.

    Under `adaptive` estimates count as seen, and are made shorter where they are too long: E. A hidden row is
    H_r <= Σ|weights of seen rows|·E + Σ|weights of hidden ones|·H_{r-1} + step + noise = A_r·E + B_r, and E
    is chosen so that none is above `largest_norm`. Under `view` all are hidden, and E is that of the start.
    H_r is larger by twice `ALIKE` in every round: a row without noise, of rows as long as they are taken, has
    no other room.
    """
    seen = np.zeros(plan.rows, bool)
    if guarantee_kind(guarantee).public is not Public.NOTHING:
        seen = (np.arange(plan.rows) < plan.agents) | plan.memories
    lengths, a, b = np.ones(plan.rows), 1.0, 0.0
    A, B = np.ones(plan.releases), np.zeros(plan.releases)
    for r in range(plan.releases):
        weight, known, unknown = _weights(plan, r, seen)
        reach = (weight * lengths[plan.source[r]] * known).sum(axis=1)
        hidden = plan.exists[r] & ~seen
        if hidden.any():
            more = (weight * unknown).sum(axis=1)
            this = plan[r]
            grows = np.abs(this.step) * gradient + np.abs(this.std).sum(axis=1) * (math.sqrt(d) + TAIL)
            room = 1 + 2 * ALIKE
            a, b = (
                room * max(1.0, float((reach + more * a)[hidden].max())),
                room * float((more * b + grows)[hidden].max()),
            )
        A[r], B[r] = a, b
        lengths = np.where(plan.memories, reach, 1.0)
    longest = float(((largest_norm - B) / A).min())
    if not longest >= start:
        raise InputError(
            f"rules.largest_norm: expected at least {float((A * max(start, 1.0) + B).max()):.3g}, which "
            f"honest rows may reach in {plan.releases} releases, got {largest_norm:g}: hidden rows that are "
            'made shorter are no sums, and privacy.guarantee counts on sums. Take that, or "worst-case".'
        )
    others = np.minimum(A * longest + B, largest_norm)
    return RowNormLimits(np.full(plan.releases, longest) if seen.any() else others, others, plan.agents)


def expect_exact(plan: Plan, largest_norm: float) -> None:
    """Refuses rows that float64 could not carry as multiples of their steps, and steps like others' noise."""
    expect_steps_below_noise(plan)
    most = max_exact_norm(plan)
    if not largest_norm <= most:
        raise InputError(
            f"rules.largest_norm: expected at most {most:.3g}, so that float64 holds rows of that length to "
            f"2⁻²⁰ of their noise, of deviation {smallest_noise_std(plan):.3g}, got {largest_norm:g}: "
            "privacy.guarantee counts on rows that some do not see, and these must not be rounded. Make the "
            'manifest anew with `topdp federation create`, which takes that, or take "worst-case".'
        )


def mixing_share(plan: Plan, largest_norm: float, mu: float) -> float:
    """By what share of itself μ may be too low, because mixing hidden rows rounds in float64.

    Each of k sources adds a product and a sum, off by a unit each of what was summed, in either of two
    worlds; next to a row's own noise, that counts as if the row were seen. Without noise it is handed on.
    """
    off, total = np.zeros(plan.rows), 0.0
    for r in range(plan.releases):
        weight = _weights(plan, r, np.zeros(plan.rows, bool))[0]
        sources = (weight > 0).sum(axis=1)
        longest = np.maximum(weight.sum(axis=1), 1.0) * largest_norm
        off = (weight * off[plan.source[r]]).sum(axis=1) + 4 * ROUNDED * (sources + 1) * longest
        off = np.where(plan.memories | ~plan.exists[r], 0.0, off)
        noise = np.sqrt(np.square(plan[r].std).sum(axis=1))
        total += float(np.square(off[noise > 0] / noise[noise > 0]).sum())
        off = np.where(noise > 0, 0.0, off)
    return math.sqrt(total) / mu if mu else 0.0


def _weights(plan: Plan, r: int, seen: Bools) -> tuple[Floats, Bools, Bools]:
    """[rows, sources]: |weight|, and which sources are seen and which are not."""
    source = plan.source[r]
    there = source >= 0
    known = there & seen[source]
    return np.where(there, np.abs(plan.weight[r]), 0.0), known, there & ~known

"""Limits on rounding and on the norm of rows, so that neither weakens a guarantee; other runs are refused.

Rounding before noise adds to μ under every guarantee (`rounded_share`). The guarantees `adaptive` and `view`
need more: a hidden row protects the rows that it was made of because it is a sum of rows, steps and noise
(docs/privacy.md, step 2 of the proof). A row that is rounded to float32 before it is sent, or shortened
because it is too long, is no sum. If every row counts as seen, any function of a row that has its noise costs
nothing.

**Guarantees.** Rounding in float64 adds at most `MAX_ROUNDED_SHARE` to an agent's μ, or the agent does not
start. If a guarantee relies on hidden rows, a row with noise is an exact multiple of its step when it is sent
(`expect_exact`). No honest row then becomes too long, whatever neighbours send (`hidden_norm_limits`), except
with a probability below 10⁻²⁰ per row. Mixing rounds in float64; `mixing_share` bounds what that adds to μ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from topdp.agents.agreement.hidden_rows import expect_steps_below_noise, max_exact_norm, smallest_noise_std
from topdp.base.array_types import Bools, Floats
from topdp.errors import InputError
from topdp.plan import Plan
from topdp.privacy.answers import guarantee_kind
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.spending_curve import Spending

FLOAT64_UNIT = 2.0**-53  # relative error of one operation in float64, at most
MAX_ROUNDED_SHARE = 1e-3  # what rounding before noise may add, as a share of an agent's μ

TAIL_DEVIATIONS = 10.0
"""The norm of a draw of d numbers exceeds √d by more deviations than this with a probability below 10⁻²¹."""

NORM_TOLERANCE = 1e-9
"""Relative difference between the norms that a sender and a reader compute in different ways."""


@final
@dataclass(frozen=True)
class RowNormLimits:
    """[releases] the largest norm of estimates, and of all other rows, in each round."""

    estimates: Floats
    others: Floats
    agents: int

    def limit_of(self, round: int, row: int) -> float:
        return float((self.estimates if row < self.agents else self.others)[round])

    def accepted_norm(self, round: int, row: int) -> float:
        """Return the largest norm of a received row. The tolerance covers other orders of summing squares."""
        return self.limit_of(round, row) * (1 + NORM_TOLERANCE)


def uniform_norm_limits(plan: Plan, largest_norm: float) -> RowNormLimits:
    """Return one limit for all rows, for federations in which rows may be shortened."""
    every = np.full(plan.releases, largest_norm)
    return RowNormLimits(every, every, plan.agents)


def hidden_norm_limits(
    plan: Plan, guarantee: str, gradient: float, d: int, largest_norm: float, start: float
) -> RowNormLimits:
    """Return limits that no row of an honest agent exceeds if the rows that it received did not.

    `gradient`: the largest norm of a mean gradient of any agent; `start`: the norm of the public start.

    Under `adaptive`, estimates count as seen, and are shortened to norm E if they are longer. The norm of a
    hidden row is H_r <= Σ|weights of seen rows|·E + Σ|weights of hidden rows|·H_{r-1} + step + noise = A_r·E
    + B_r, and E is chosen so that no row exceeds `largest_norm`. Under `view`, all rows are hidden, and E is
    the norm of the start. H_r grows by twice `NORM_TOLERANCE` in every round, because a row without noise
    that is made of rows of the largest accepted norm has no other margin.
    """
    seen = np.zeros(plan.rows, bool)
    if guarantee_kind(guarantee).public is not Public.NOTHING:
        seen = (np.arange(plan.rows) < plan.agents) | plan.memories
    lengths, a, b = np.ones(plan.rows), 1.0, 0.0
    A, B = np.ones(plan.releases), np.zeros(plan.releases)
    for r in range(plan.releases):
        weight, known, unknown = _weights(plan, r, seen)
        seen_part = (weight * lengths[plan.source[r]] * known).sum(axis=1)
        hidden = plan.exists[r] & ~seen
        if hidden.any():
            hidden_part, release, margin = (weight * unknown).sum(axis=1), plan[r], 1 + 2 * NORM_TOLERANCE
            noise = np.abs(release.std).sum(axis=1) * (math.sqrt(d) + TAIL_DEVIATIONS)
            growth = np.abs(release.step) * gradient + noise
            a = margin * max(1.0, float((seen_part + hidden_part * a)[hidden].max()))
            b = margin * float((hidden_part * b + growth)[hidden].max())
        A[r], B[r] = a, b
        lengths = np.where(plan.memories, seen_part, 1.0)
    longest = float(((largest_norm - B) / A).min())
    if not longest >= start:
        raise InputError(
            f"rules.largest_norm: expected at least {float((A * max(start, 1.0) + B).max()):.3g}, which "
            f"honest rows may reach in {plan.releases} releases, got {largest_norm:g}: hidden rows that are "
            'shortened are no sums, and privacy.guarantee relies on sums. Use that value, or "worst-case".'
        )
    others = np.minimum(A * longest + B, largest_norm)
    return RowNormLimits(np.full(plan.releases, longest) if seen.any() else others, others, plan.agents)


def expect_exact(plan: Plan, largest_norm: float) -> None:
    """Raise InputError unless float64 can hold rows as multiples of their steps, below all noise."""
    expect_steps_below_noise(plan)
    largest_exact = max_exact_norm(plan)
    if not largest_norm <= largest_exact:
        raise InputError(
            f"rules.largest_norm: expected at most {largest_exact:.3g}, so that float64 holds rows of that "
            f"norm to 2⁻²⁰ of their noise, of deviation {smallest_noise_std(plan):.3g}, got "
            f"{largest_norm:g}: privacy.guarantee relies on hidden rows, and these must not be rounded. "
            'Make a new manifest with `topdp federation create`, which uses that value, or use "worst-case".'
        )


def mixing_share(plan: Plan, largest_norm: float, mu: float) -> float:
    """Return the relative error by which μ may be too low because mixing hidden rows rounds in float64.

    Each of k sources adds a product and a sum, each with an error of one unit of what was summed, in both
    neighbouring data sets. If a row has noise, its error counts as if the row were seen. Without noise, the
    error is passed on.
    """
    off, total = np.zeros(plan.rows), 0.0
    for r in range(plan.releases):
        weight = _weights(plan, r, np.zeros(plan.rows, bool))[0]
        sources = (weight > 0).sum(axis=1)
        longest = np.maximum(weight.sum(axis=1), 1.0) * largest_norm
        off = (weight * off[plan.source[r]]).sum(axis=1) + 4 * FLOAT64_UNIT * (sources + 1) * longest
        off = np.where(plan.memories | ~plan.exists[r], 0.0, off)
        noise = np.sqrt(np.square(plan[r].std).sum(axis=1))
        total += float(np.square(off[noise > 0] / noise[noise > 0]).sum())
        off = np.where(noise > 0, 0.0, off)
    return math.sqrt(total) / mu if mu else 0.0


def _weights(plan: Plan, r: int, seen: Bools) -> tuple[Floats, Bools, Bools]:
    """Return [rows, sources]: |weight|, and which sources are seen and which are not."""
    source = plan.source[r]
    exists = source >= 0
    known = exists & seen[source]
    return np.where(exists, np.abs(plan.weight[r]), 0.0), known, exists & ~known


def rounded_share(
    spending: Spending, information: Floats, gradient: float, largest_norm: float, off: float, together: bool
) -> float:
    """Return the relative error by which the owner's μ may be too low because of rounding before noise.

    `spending` states Δ, how far one record moves the owner's mean gradient, and the number of classes of
    rounds, of which a record is in one. `information` [releases]: 1/z² of the owner's releases. `gradient`:
    the largest norm of the mean gradient; `off`: what rounding inside it adds to Δ. `largest_norm`: of rows
    that are sent, or of estimates.

    The relative error of a quotient, product or sum is `FLOAT64_UNIT` in each number, and so in the norm.
    This applies to the mean, its product with the step, and the sum with the mix, in both neighbouring data
    sets. Relative to step · Δ, the result is the share of one release. In the worst case, shifts of releases
    add up like the sides of a right triangle, and so do their roundings. Without `together`, the largest
    share counts, however shifts combine. A robust rule that selects numbers from k rows may return a row that
    is √k times as long as these.
    """
    plan, moved, period = spending.plan, spending.sensitivity, spending.batches.period
    owned = plan.owner == spending.owner
    norms, shares = np.ones(plan.rows), np.zeros(plan.releases)
    for r in range(plan.releases):
        source, weight = plan.source[r], np.abs(plan.weight[r])
        mixes = np.where(source >= 0, weight * norms[source], 0.0).sum(axis=1)
        if plan.robust is not None:
            mixes *= np.sqrt(np.maximum((source >= 0).sum(axis=1), 1))
        carries = owned & (plan[r].step != 0)
        if carries.any():
            step, largest = abs(plan.rate[r]), float(mixes[carries].max()) * largest_norm
            shares[r] = (2 * FLOAT64_UNIT * (largest + 3 * step * gradient) + step * off) / (step * moved)
        # Nobody checks the norm of rows that an agent does not send.
        norms = np.where(plan.memories, mixes, 1.0)
    if not together:
        return float(shares.max())
    squares = information * shares[: len(information)] ** 2
    largest_sums = [max(float(x[k::period].sum()) for k in range(period)) for x in (squares, information)]
    return math.sqrt(largest_sums[0] / largest_sums[1])


def expect_small_rounding(share: float, largest_norm: float) -> None:
    """Raise InputError if a `rounded_share` is too large for any account."""
    if not share <= MAX_ROUNDED_SHARE:
        raise InputError(
            f"Expected one record to move a row by far more than float64 rounds rows of norm {largest_norm:g}"
            f" (rules.largest_norm) and sums of gradients, got rounding of {share:.1g} of that, above "
            f"{MAX_ROUNDED_SHARE:g}: noise does not cover it. Use a norm below "
            f"{largest_norm * MAX_ROUNDED_SHARE / share:.1g}, a larger clip, larger steps or smaller batches."
        )

"""What keeps rounding and long rows from weakening a guarantee, or refuses the run.

Rounding before noise adds to μ (`rounded_share`), under every guarantee. Under `adaptive` and `view` there is
more: a row that some do not see hides what it was made of, because it is a sum of rows, steps and noise
(docs/privacy.md, step 2 of the proof). A row that is rounded to float32 on its way, or shortened because it
is too long, is no sum. Where every row counts as seen, any function of a row that has its noise is free.

**Guarantees.** Rounding in float64 adds at most `MAX_ROUNDED_SHARE` to an agent's μ, or the agent does not
start. Where a guarantee hides rows, one with noise is an exact multiple of its step when it leaves
(`expect_exact`), and no honest row gets too long, whatever neighbours send (`hidden_norm_limits`): except
with a probability below 10⁻²⁰ a row. Mixing rounds in float64; `mixing_share` bounds what that adds to μ.
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

FLOAT64_UNIT = 2.0**-53  # relative error of one operation in float64, at most
MAX_ROUNDED_SHARE = 1e-3  # of an agent's μ: what rounding before noise may add

TAIL_DEVIATIONS = 10.0
"""A draw of d numbers is longer than √d by more deviations than this with a probability below 10⁻²¹."""

NORM_TOLERANCE = 1e-9
"""Relative difference between two ways to compute a norm: sender and reader use different ones."""


@final
@dataclass(frozen=True)
class RowNormLimits:
    """[releases] the largest norm of rows in each round: of estimates, and of all others."""

    estimates: Floats
    others: Floats
    agents: int

    def of(self, round: int, row: int) -> float:
        return float((self.estimates if row < self.agents else self.others)[round])

    def taken(self, round: int, row: int) -> float:
        """The largest norm of a row that comes in. The tolerance covers how its sender added up squares."""
        return self.of(round, row) * (1 + NORM_TOLERANCE)


def uniform_norm_limits(plan: Plan, largest_norm: float) -> RowNormLimits:
    """Return one limit for all rows, for federations in which rows may be shortened."""
    every = np.full(plan.releases, largest_norm)
    return RowNormLimits(every, every, plan.agents)


def hidden_norm_limits(
    plan: Plan, guarantee: str, gradient: float, d: int, largest_norm: float, start: float
) -> RowNormLimits:
    """Return limits that no row of an honest agent exceeds if the rows sent to it did not.

    `gradient`: the largest norm of a mean gradient, of any agent; `start`: the norm of the public start.

    Under `adaptive` estimates count as seen, and are shortened to E where they are longer. A hidden row is
    H_r <= Σ|weights of seen rows|·E + Σ|weights of hidden ones|·H_{r-1} + step + noise = A_r·E + B_r, and E
    is chosen so that none exceeds `largest_norm`. Under `view` all rows are hidden, and E is that of the
    start. H_r grows by twice `NORM_TOLERANCE` in every round: a row without noise, made of rows as long as
    are accepted, has no other room.
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
            grows = np.abs(this.step) * gradient + np.abs(this.std).sum(axis=1) * (
                math.sqrt(d) + TAIL_DEVIATIONS
            )
            room = 1 + 2 * NORM_TOLERANCE
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
    """Refuse rows that float64 cannot hold as multiples of their steps, and steps as large as others'
    noise.
    """
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
    """The share of itself by which μ may be too low because mixing hidden rows rounds in float64.

    Each of k sources adds a product and a sum, each off by a unit of what was summed, in either of two
    worlds. Next to a row's own noise, that counts as if the row were seen. Without noise it is passed on.
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
    """[rows, sources]: |weight|, and which sources are seen and which are not."""
    source = plan.source[r]
    there = source >= 0
    known = there & seen[source]
    return np.where(there, np.abs(plan.weight[r]), 0.0), known, there & ~known


def rounded_share(
    plan: Plan,
    agent: int,
    information: Floats,
    moved: float,
    gradient: float,
    largest_norm: float,
    off: float = 0.0,
    together: bool = True,
    period: int = 1,
) -> float:
    """The share of itself by which the agent's μ may be too low because of rounding before noise.

    `information` [releases]: 1/z² of the agent's releases. `moved`: Δ, how far one record moves its mean
    gradient; `gradient`: the largest norm of that mean; `off`: what rounding inside it adds to Δ.
    `largest_norm`: of rows that are sent, or estimates. `period`: a record is in one of so many classes of
    rounds.

    A quotient, product or sum is off by `FLOAT64_UNIT` of itself, number by number, so in norm too: the mean,
    its product with the step, and the sum with the mix, in either of two worlds. Relative to step · Δ that is
    the share of one release. In the worst case shifts of releases add up like the sides of a right triangle,
    and so do their roundings; without `together` the largest share counts, whatever is made of shifts. What a
    robust rule takes of k rows, number by number, may be √k times as long as they are.
    """
    mine = plan.owner == agent
    norms, shares = np.ones(plan.rows), np.zeros(plan.releases)
    for r in range(plan.releases):
        source, weight = plan.source[r], np.abs(plan.weight[r])
        mixes = np.where(source >= 0, weight * norms[source], 0.0).sum(axis=1)
        if plan.robust is not None:
            mixes *= np.sqrt(np.maximum((source >= 0).sum(axis=1), 1))
        carries = mine & (plan[r].step != 0)
        if carries.any():
            step, largest = abs(plan.rate[r]), float(mixes[carries].max()) * largest_norm
            shares[r] = (2 * FLOAT64_UNIT * (largest + 3 * step * gradient) + step * off) / (step * moved)
        norms = np.where(plan.memories, mixes, 1.0)  # what an agent keeps for itself nobody has measured
    if not together:
        return float(shares.max())
    off_by = information * shares[: len(information)] ** 2
    most = [max(float(what[k::period].sum()) for k in range(period)) for what in (off_by, information)]
    return math.sqrt(most[0] / most[1])


def expect_fine(share: float, largest_norm: float) -> None:
    """Refuse a run whose `rounded_share` is too large for any account."""
    if not share <= MAX_ROUNDED_SHARE:
        raise InputError(
            f"Expected one record to move a row by far more than float64 rounds rows of norm {largest_norm:g}"
            f" (rules.largest_norm) and sums of gradients, got rounding of {share:.1g} of that, above "
            f"{MAX_ROUNDED_SHARE:g}: noise does not cover it. Take a norm below "
            f"{largest_norm * MAX_ROUNDED_SHARE / share:.1g}, a larger clip, larger steps or smaller batches."
        )

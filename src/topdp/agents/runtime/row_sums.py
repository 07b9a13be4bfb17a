"""How a row of an agent is added up: rows, gradient and noise in float64, put on a grid, and rounded once.

Which rows, steps and draws belong to a row is the business of `rows` and `meetings`; this is the arithmetic
between data and noise, in one place because privacy hangs on its last digits. The simulator adds up in the
type of the model: its rows are shown to nobody.

**Guarantees.** Nothing that depends on data is rounded to the type of the model before it has its noise: one
unit in the last place of a large row would else be more than a record may move it. What is left is rounding
in float64: it adds at most `LARGEST_SHARE` to the agent's μ, or the agent does not start. All numbers of a
row with noise are multiples of a public step far below its deviation: so none shows single digits of a draw,
whatever cancels (docs/privacy.md, "Noise has finitely many digits").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from topdp.agents.agreement.hidden_rows import grid_step as grid_of
from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.plan import Plan

SLACK = 1e-6  # of the largest norm: so far below it rows are that would be above
ROUNDED = 2.0**-53  # of a number: what one operation in float64 is off, at most
LARGEST_SHARE = 1e-3  # of an agent's μ: so much may rounding before noise add, and no more

Adds = Callable[[Tensor], None]
"""Adds noise to a row of float64."""


def mixed(parts: Iterable[tuple[int, float]], before: Mapping[int, Tensor], instead: Tensor) -> Tensor:
    """Σ weight · row in float64, in the simulator's order; a row that is not there is `instead`."""
    target = torch.zeros_like(instead, dtype=torch.float64)
    for source, weight in parts:
        target.add_(before.get(source, instead).double(), alpha=weight)
    return target


def stepped(mix: Tensor, gradient: Tensor, step: float) -> Tensor:
    """`mix` and the step of a gradient, both float64: the one sum of them that is rounded before noise."""
    return mix.add_(gradient, alpha=step)


def noised(row: Tensor, add: Adds, deviations: Sequence[float], dtype: torch.dtype) -> Tensor:
    """`row` with its noise, on the grid of the least of its `deviations`, in the type that leaves.

    Noise is summed first: then rounding the whole is a function of the exact sum, however many draws it has.
    """
    least = min((abs(one) for one in deviations if one), default=0.0)
    if not least:
        return row.to(dtype)
    noise = torch.zeros_like(row)
    add(noise)
    grid = grid_of(least)
    return row.add_(noise).div_(grid).round_().mul_(grid).to(dtype)


def within(row: Tensor, largest_norm: float) -> Tensor:
    """`row`, made shorter where others would refuse it; itself where they would not.

    A function of a row that has its noise. Rounding it again must not bring it back above the bound.

    >>> within(torch.tensor([3.0, 4.0]), 5.1).tolist(), within(torch.tensor([30.0, 40.0]), 5.0).norm() < 5
    ([3.0, 4.0], tensor(True))
    """
    norm = float(torch.linalg.vector_norm(row.double()))
    if not norm > largest_norm:
        return row
    return (row.double() * ((1 - SLACK) * largest_norm / norm)).to(row.dtype)


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
    """By what share of itself the agent's μ may be too low, for what is rounded before noise.

    `information` [releases]: 1/z² of the agent's releases. `moved`: Δ, how far one record moves its mean
    gradient, `gradient` how long that is at most, and `off` what rounding inside of it adds to Δ.
    `largest_norm`: of rows that are sent or estimates. `period`: a record is in one of so many classes of
    rounds.

    A quotient, product or sum is off by `ROUNDED` of itself, number by number, so in norm too: the mean, its
    product with the step, and the sum with the mix, in either of two worlds. Relative to step · Δ that is the
    share of one release. In the worst case shifts of releases add up like the sides of a right triangle, so
    do their roundings; not `together`: the largest share counts, whatever is made of shifts. What a robust
    rule takes of k rows number by number may be √k times as long as they are.
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
            shares[r] = (2 * ROUNDED * (largest + 3 * step * gradient) + step * off) / (step * moved)
        norms = np.where(plan.memories, mixes, 1.0)  # what an agent keeps for itself nobody has measured
    if not together:
        return float(shares.max())
    off_by = information * shares[: len(information)] ** 2
    most = [max(float(what[k::period].sum()) for k in range(period)) for what in (off_by, information)]
    return math.sqrt(most[0] / most[1])


def expect_fine(share: float, largest_norm: float) -> None:
    """Refuses a run whose `rounded_share` no account would bear."""
    if not share <= LARGEST_SHARE:
        raise InputError(
            f"Expected one record to move a row by far more than float64 rounds rows of norm {largest_norm:g}"
            f" (rules.largest_norm) and sums of gradients, got rounding of {share:.1g} of that, above "
            f"{LARGEST_SHARE:g}: noise does not cover it. Take a norm below "
            f"{largest_norm * LARGEST_SHARE / share:.1g}, a larger clip, larger steps or smaller batches."
        )

"""Adam's step at the end of a round, by the numbers in a plan: for the simulator and for agents alike.

What it reads was released, or follows from what was; so it costs nothing where every row counts as seen. The
other rows of a plan are sums, and are made in `mixing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from topdp.plan import Plan


def adam_step(plan: Plan, round: int, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Estimate, begin of the round, averages of changes and of their squares: as they are after `round`.

    `rows`: the same four before it; one row each, or [agents, d].
    """
    assert plan.adjusts is not None and plan.adam is not None
    estimate, begin, first, second = rows
    beta, gamma, floor, weight_decay = plan.adam.tolist()
    rate, t = float(plan.adjusts[round]), int(np.count_nonzero(plan.adjusts[: round + 1]))
    change = begin - estimate
    # Kingma and Ba 2015, Algorithm 1, with the decay of Loshchilov and Hutter 2019
    first = beta * first + (1 - beta) * change
    second = gamma * second + (1 - gamma) * change * change
    root = torch.sqrt(second / (1 - gamma**t)) + floor
    return begin * (1 - rate * weight_decay) - rate * (first / (1 - beta**t)) / root, begin, first, second

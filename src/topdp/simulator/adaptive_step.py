"""The step of a non-linear optimiser at the end of a round, for the simulator and for agents.

The step reads released rows, and rows that are functions of released rows. So it costs no privacy in an
answer for which the observer sees every row. All other rows of a plan are sums, which `row_mixing` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topdp.plan import AdamSettings, AdaptiveSteps, Plan


def adaptive_step(plan: Plan, round: int, rows: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the estimate and the rows of the optimiser's state after `round`, in the order of
    `AdaptiveSteps`.

    `rows`: the same rows before `round`, in the same order; each is one row [d], or [agents, d].
    """
    assert plan.adaptive is not None
    t = int(np.count_nonzero(plan.adaptive.rate[: round + 1]))
    return STEPS[type(plan.adaptive)](plan.adaptive, float(plan.adaptive.rate[round]), t, rows)


def _adam(settings: AdamSettings, rate: float, t: int, rows: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the rows after Adam's step number `t`, counted from 1."""
    estimate, begin, first, second = rows
    beta, gamma = settings.momentum, settings.second_moment
    change = begin - estimate
    # Kingma and Ba 2015, Algorithm 1, with the decay of Loshchilov and Hutter 2019
    first = beta * first + (1 - beta) * change
    second = gamma * second + (1 - gamma) * change * change
    root = torch.sqrt(second / (1 - gamma**t)) + settings.floor
    shrunk = begin * (1 - rate * settings.weight_decay)
    return shrunk - rate * (first / (1 - beta**t)) / root, begin, first, second


STEPS: dict[type[AdaptiveSteps], Callable[[Any, float, int, Sequence[Tensor]], Sequence[Tensor]]] = {
    AdamSettings: _adam
}

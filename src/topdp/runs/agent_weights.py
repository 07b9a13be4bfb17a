"""The weight of each agent's gradient if agents have different budgets. No data, no torch.

An agent with a smaller ε needs more noise. If its gradient had the weight of the others, its noise would
reach the average of all agents in full. A smaller weight w reduces the agent's sensitivity to w·C/b, and so
its noise. `privacy.weights = "auto"` chooses the weights that minimise (noise variance of the average) /
(total weight)² among agents with equal records. It looks at the budgets, the public record counts and the
graph only.

- If noise of each agent is independent, the variance is the sum of (w_i·s_i)², where s_i is the noise that
  agent i needs alone at weight 1. The minimum has w_i in proportion to 1/s_i².
- Pair noise hides all agents together, and its sum cancels. Own noise must then hide the agent that needs
  most: the variance is close to the largest (w_i·s_i)². The minimum has w_i in proportion to 1/s_i.

The largest weight is 1, so equal budgets give equal weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from topdp.base.array_types import Floats
from topdp.privacy.answers import guarantee_kind
from topdp.runs.auto_values import noise_alone, with_keys
from topdp.runs.resolved_run import records_of
from topdp.runs.run_outline import RunOutline

AnyOutline = TypeVar("AnyOutline", bound=RunOutline)

EQUAL = "equal"
WEIGHT_DIGITS = 6  # significant digits of a chosen weight


def with_agent_weights(outline: AnyOutline, counts: tuple[int, ...]) -> AnyOutline:
    """Return the outline with a number for each weight, or with "equal", in place of "auto"."""
    config = outline.config
    if config.privacy.weights != "auto":
        return outline
    weights: str | list[float] = EQUAL
    if outline.epsilon is not None and outline.method.mixes and _differ(outline):
        analysis, schedule = records_of(outline, counts)
        # Per unit of sensitivity, so that weights follow from budgets and not from numbers of records.
        needs = noise_alone(outline, analysis, schedule) / analysis.exposure().sensitivity
        if np.ptp(needs) > 1e-9 * needs.max():
            hidden_together = (
                outline.method.shares_noise and guarantee_kind(config.privacy.guarantee).relies_on_others
            )
            exact = best_weights(needs, hidden_together)
            weights = [float(f"{weight:.{WEIGHT_DIGITS}g}") for weight in exact]
    return replace(outline, config=with_keys(config, privacy={"weights": weights}))


def best_weights(needs: Floats, hidden_together: bool) -> Floats:
    """Return the weights [agents] for agents that need the noise `needs` alone at weight 1.

    `hidden_together`: whether pair noise hides all agents together.

    >>> best_weights(np.array([1.0, 2.0]), hidden_together=False).tolist()
    [1.0, 0.25]
    """
    return np.asarray((needs.min() / needs) ** (1 if hidden_together else 2))


def _differ(outline: RunOutline) -> bool:
    assert outline.epsilon is not None
    return bool(np.ptp(outline.epsilon) > 0 or np.ptp(outline.delta) > 0)

"""Weights on a user's links: no protocol mixes by given weights, so they are refused, or left out by choice.

Agents mix by α (the paper) or by Metropolis weights, which follow from degrees; the proofs and the noise are
of those. A weight that was dropped in silence would be a run other than the one asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from topdp.topology.graph import TopologyError

Weights = Literal["refuse", "ignore"]


def expect_no_weights(found: Iterable[tuple[str, Any]], weights: str) -> None:
    """Refuse weights other than 1, unless they are to be ignored. `found`: where each stands, and it."""
    if weights not in get_args(Weights):
        raise TopologyError(f"weights: expected 'refuse' or 'ignore', got {weights!r}.")
    others = [(where, weight) for where, weight in found if weight != 1]
    if others and weights == "refuse":
        where, weight = others[0]
        raise TopologyError(
            f"{where}: expected a link without a weight, got {weight!r:.40} ({len(others)} such in all): no "
            "protocol mixes by given weights. Leave them out by choice: weights='ignore', in a configuration "
            'topology.weights = "ignore".'
        )

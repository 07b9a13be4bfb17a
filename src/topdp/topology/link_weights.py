"""The check of weights on a user's edges: no protocol uses them, so they are refused or ignored.

Agents mix by α (the paper) or by Metropolis weights, which follow from degrees; proofs and noise assume these
weights. Dropping a weight silently would execute another run than the user described.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from topdp.topology.graph import TopologyError

Weights = Literal["refuse", "ignore"]


def expect_no_weights(placed: Iterable[tuple[str, Any]], weights: str) -> None:
    """Raise TopologyError for weights other than 1 unless `weights` is "ignore".

    `placed`: for each edge, its position for the message, and its weight.
    """
    if weights not in get_args(Weights):
        raise TopologyError(f"weights: expected 'refuse' or 'ignore', got {weights!r}.")
    others = [(where, weight) for where, weight in placed if weight != 1]
    if others and weights == "refuse":
        where, weight = others[0]
        raise TopologyError(
            f"{where}: expected an edge without a weight, got {weight!r:.40} ({len(others)} such in all). No "
            "protocol mixes by given weights. Use weights='ignore' to drop them; in a configuration "
            'topology.weights = "ignore".'
        )

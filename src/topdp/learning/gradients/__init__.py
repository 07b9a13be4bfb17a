"""Clipped per-example gradients of all agents at once; `ClippedGradients` is the whole interface.

`layer_rules` runs a module with every agent's own weights on one folded batch. Known layers and `isolation`
ensure that the examples of the batch do not influence each other. `ghost_norms` computes norms and clipped
sums from what the layer rules recorded. For any other module, `per_example_path` computes them from
per-example gradients. `kept_state` refuses models that keep state between calls. `path_check` compares the
fast path with the slow path before the first result is returned.
"""

from topdp.learning.gradients.clipped_gradients import ClippedGradients, Statistics
from topdp.learning.gradients.gradient_checks import DivergedError

__all__ = ["ClippedGradients", "DivergedError", "Statistics"]

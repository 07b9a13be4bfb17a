"""Clipped per-example gradients of all agents at once; `ClippedGradients` is the whole interface.

`layer_rules` runs a module with every agent's own weights on one folded batch; known layers and `isolation`
keep its examples apart. `ghost_norms` turns what the layer rules recorded into norms and clipped sums.
`per_example_path` does the same for any module from per-example gradients. `kept_state` refuses models that
keep state between calls, and `path_check` compares the two paths before the first result is returned.
"""

from topdp.learning.gradients.clipped_gradients import ClippedGradients, Statistics
from topdp.learning.gradients.gradient_checks import DivergedError

__all__ = ["ClippedGradients", "DivergedError", "Statistics"]

"""Per-example clipped gradients of all agents at once.

`ClippedGradients` is the whole interface. Behind it, `twins` runs a module with every agent's own weights on
one folded batch, in which `known` and `apart` keep examples from meeting; `ghost` turns what the twins
recorded into norms and clipped sums; `plain` does the same for any module by per-example gradients; `memory`
refuses models that are no functions; and `check` compares the two paths before the first result leaves.
"""

from topdp.learning.gradients.clipped_gradients import ClippedGradients, Statistics
from topdp.learning.gradients.gradient_inputs import DivergedError

__all__ = ["ClippedGradients", "DivergedError", "Statistics"]

"""Per-example clipped gradients of all agents at once.

`ClippedGradients` is the whole interface. Behind it, `twins` runs a module with every agent's own weights on
one folded batch, `ghost` turns what the twins recorded into norms and clipped sums, `plain` does the same for
any module by per-example gradients, and `check` compares the two before the first result leaves.
"""

from topdp.learning.gradients.clipped import ClippedGradients, DivergedError, Statistics

__all__ = ["ClippedGradients", "DivergedError", "Statistics"]

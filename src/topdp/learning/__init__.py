"""Models as flat rows, losses, and per-example clipped gradients of all agents at once. Needs torch."""

"""Clipping rules: by one factor, layer by layer, or to one norm.

**Guarantees.** Under every rule, an example's clipped gradient has an l2 norm of at most `clip`, whatever the
gradient is. So accountants read the clip and need not know the rule. The bound holds up to
floating-point rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from topdp.learning.gradients.ghost_norms import SlotContributions, total_norms, total_squared_norms
from topdp.learning.gradients.safe_norms import takes_cuda_kernels
from topdp.learning.models import Slot

CLIPPING_KINDS = ("flat", "per-layer", "normalised")

NORMALISATION_GAMMA = 0.01
"""γ of normalised gradients; prevents division by zero (Bu et al. 2022, arXiv:2206.07136)."""


ClipFactors = tuple[list[Tensor], Tensor, Tensor]
"""Clip factors of n agents with b examples each: for each contribution, the factors [n, b] of its gradients;
whether a gradient was longer than the clip, [n, b]; and whether its norm is not finite, [n, b]. In that case,
the factors are those of a zero gradient.
"""


def layer_of(slot: Slot) -> str:
    """Return the name of the layer to which the parameter belongs."""
    return slot.name.rpartition(".")[0]


def clip_factors(kind: str, contributions: SlotContributions, clip: float, layers: int) -> ClipFactors:
    """Return the factors for each example's gradient of each parameter under the clipping rule `kind`.

    `layers` is the number of layers of the model.
    """
    if kind == "per-layer":
        return _per_layer_factors(contributions, clip / math.sqrt(layers))
    squares = total_squared_norms([contribution for _, contribution in contributions])
    if kind == "flat" and takes_cuda_kernels(squares):
        from topdp.learning.gradients.clipping_cuda import flat_clip_factors

        factor, longer, not_finite = flat_clip_factors(squares, clip)
        return [factor] * len(contributions), longer, not_finite
    norms = squares.sqrt_()
    not_finite = ~torch.isfinite(norms)
    norms = norms.masked_fill(not_finite, 0)
    if kind == "normalised":
        # Bu et al. 2022, Eq. (4.1), times the clip: C g / (|g| + γ)
        factor = clip / (norms + NORMALISATION_GAMMA)
    else:
        # Algorithm 1 of the paper, line "clip": g / max(1, |g| / C).
        factor = clip / norms.clamp_min(clip)
    return [factor] * len(contributions), norms > clip, not_finite


def _per_layer_factors(contributions: SlotContributions, share: float) -> ClipFactors:
    """Return factors that clip each of L layers to `share` = C/√L (McMahan et al. 2018).

    The gradient of all layers together then has a norm of at most C.
    """
    layers: dict[str, list[int]] = {}
    for index, (slot, _) in enumerate(contributions):
        layers.setdefault(layer_of(slot), []).append(index)
    norms = [total_norms([contributions[index][1] for index in indices]) for indices in layers.values()]
    not_finite = ~torch.isfinite(torch.stack(norms).square().sum(0).sqrt())
    coefficients: list[Tensor] = [norms[0]] * len(contributions)
    shortened = torch.zeros_like(not_finite)
    for indices, length in zip(layers.values(), norms, strict=True):
        length = length.masked_fill(not_finite, 0)
        shortened |= length > share
        for index in indices:
            coefficients[index] = share / length.clamp_min(share)
    return coefficients, shortened, not_finite

"""How long gradients are made short: by one factor, layer by layer, or all to one length.

**Guarantees.** Whatever an example's gradient is, what is left of it is at most `clip` long in l2 norm, under
every kind: so accounts read the clip and need not know the kind. No slack is taken off for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from topdp.learning.gradients.ghost_norms import Contribution, total_norms, total_squared_norms
from topdp.learning.gradients.safe_norms import takes_cuda_kernels
from topdp.learning.models import Slot

CLIPPING_KINDS = ("flat", "per-layer", "normalised")

NORMALISATION_GAMMA = 0.01
"""γ of normalised gradients, against division by nothing (Bu et al. 2022, arXiv:2206.07136)."""

SlotContributions = Sequence[tuple[Slot, Contribution]]


class ClipFactors(NamedTuple):
    """Of n agents with b examples each."""

    coefficients: list[Tensor]  # [n, b] for each contribution: what its gradients are multiplied by
    shortened: Tensor  # [n, b]: whether the gradient was longer than allowed
    bad: Tensor  # [n, b]: whether its norm is no number; its coefficients are those of a gradient of 0


def layer_of(slot: Slot) -> str:
    return slot.name.rpartition(".")[0]


def clip_factors(kind: str, found: SlotContributions, clip: float, layers: int) -> ClipFactors:
    """By how much each example's gradient of each parameter is to be multiplied; `layers`: of the model."""
    if kind == "per-layer":
        return _per_layer_factors(found, clip / math.sqrt(layers))
    squares = total_squared_norms([contribution for _, contribution in found])
    if kind == "flat" and takes_cuda_kernels(squares):
        from topdp.learning.gradients.clipping_cuda import flat_clip_factors

        factor, longer, bad = flat_clip_factors(squares, clip)
        return ClipFactors([factor] * len(found), longer, bad)
    norms = squares.sqrt_()
    bad = ~torch.isfinite(norms)
    norms = norms.masked_fill(bad, 0)
    if kind == "normalised":
        # Bu et al. 2022, Eq. (4.1), times the clip: C g / (|g| + γ)
        factor = clip / (norms + NORMALISATION_GAMMA)
    else:
        # Algorithm 1 of the paper, line "clip": g / max(1, |g| / C).
        factor = clip / norms.clamp_min(clip)
    return ClipFactors([factor] * len(found), norms > clip, bad)


def _per_layer_factors(found: SlotContributions, share: float) -> ClipFactors:
    """Each of L layers to C/√L, so that all together are at most C long (McMahan et al. 2018)."""
    layers: dict[str, list[int]] = {}
    for at, (slot, _) in enumerate(found):
        layers.setdefault(layer_of(slot), []).append(at)
    norms = [total_norms([found[at][1] for at in which]) for which in layers.values()]
    bad = ~torch.isfinite(torch.stack(norms).square().sum(0).sqrt())
    coefficients: list[Tensor] = [norms[0]] * len(found)
    shortened = torch.zeros_like(bad)
    for which, length in zip(layers.values(), norms, strict=True):
        length = length.masked_fill(bad, 0)
        shortened |= length > share
        for at in which:
            coefficients[at] = share / length.clamp_min(share)
    return ClipFactors(coefficients, shortened, bad)

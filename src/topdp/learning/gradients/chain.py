"""Chains of linear layers with nothing but ReLU between them: forwards and back without autograd.

For small batches autograd's own work takes as long as the products. What comes out is what `folded` would
find by it. The loss is differentiated by torch, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from topdp.learning.gradients import products
from topdp.learning.gradients.ghost import Contribution, Dense, Outer
from topdp.learning.gradients.linear import LinearTwin
from topdp.learning.losses import Loss
from topdp.learning.models import Slot


@final
@dataclass
class _Link:
    weight: Slot
    bias: Slot | None
    bent: bool = False  # by a ReLU


@final
class Chain:
    """What `of` found in a module of twins."""

    def __init__(self, links: list[_Link], flattens: bool) -> None:
        self._links = links
        self._flattens = flattens

    @staticmethod
    def of(skeleton: nn.Module) -> Chain | None:
        """The chain that this is, if it is one; it consists of known layers."""
        links: list[_Link] = []
        layers = [layer for layer in _called(skeleton) if not isinstance(layer, nn.Identity)]
        flattens = bool(layers) and isinstance(layers[0], nn.Flatten)
        for layer in layers[1:] if flattens else layers:
            if isinstance(layer, LinearTwin):
                links.append(_Link(layer.weight_slot, layer.bias_slot))
            elif isinstance(layer, nn.ReLU) and links:
                links[-1].bent = True
            else:
                return None
        slots = [slot for link in links for slot in (link.weight, link.bias) if slot is not None]
        tied = len(slots) > len(set(slots))
        return Chain(links, flattens) if links and not tied else None

    def takes(self, inputs: Tensor) -> bool:
        """Whether examples of inputs [n, b, ...] come to the first layer as one row each, on a processor."""
        return inputs.device.type == "cpu" and (inputs.dim() == 3 or (self._flattens and inputs.dim() > 3))

    @torch.no_grad()
    def contributions(
        self, rows: Tensor, inputs: Tensor, targets: Tensor, loss: Loss
    ) -> tuple[Tensor, list[tuple[Slot, Contribution]], int]:
        """Losses [n, b], a contribution for each parameter, and about how many elements were kept for it."""
        n, b = inputs.shape[:2]
        a = inputs.reshape(n, b, -1)
        came = []  # to each layer
        for link in self._links:
            came.append(a)
            bias = None if link.bias is None else _own(rows, link.bias)
            a = products.linear(a, _own(rows, link.weight), bias)
            a = a.relu_() if link.bent else a
        losses, delta = _differentiated(loss, a, targets)
        kept = inputs.numel() + sum(4 * part.numel() for part in (*came[1:], a))
        found: list[tuple[Slot, Contribution]] = []  # from the last layer to the first
        above = a
        for link, below in zip(reversed(self._links), reversed(came), strict=True):
            delta = torch.ops.aten.threshold_backward(delta, above, 0) if link.bent else delta
            if link.bias is not None:
                found.append((link.bias, Dense(delta)))
            found.append((link.weight, Outer(below.unsqueeze(2), delta.unsqueeze(2))))
            if below is not came[0]:
                delta, above = products.linear(delta, _own(rows, link.weight).mT, None), below
        return losses, found[::-1], kept


def _called(skeleton: nn.Module) -> Iterator[nn.Module]:
    """Layers in the order of their calls: one that is called twice comes twice, unlike in `modules`."""
    if isinstance(skeleton, nn.Sequential):
        for part in skeleton:
            yield from _called(part)
    else:
        yield skeleton


def _own(rows: Tensor, slot: Slot) -> Tensor:
    """[n, *shape], a view."""
    return rows[:, slot.start : slot.stop].view(-1, *slot.shape)


def _differentiated(loss: Loss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [n, b] of outputs [n, b, ...], and their derivatives by those."""
    with torch.enable_grad():
        folded = outputs.flatten(0, 1).requires_grad_()
        losses = loss(folded, targets.flatten(0, 1))
        (delta,) = torch.autograd.grad(losses.sum(), folded)
    return losses.detach().view(outputs.shape[:2]), delta.view_as(outputs).contiguous()

"""Per-example gradients of any module, one example as a batch of one. Correct for anything, and slow.

`vmap` over examples and agents where torch can, a Python loop where it cannot (control flow that depends on
data). The caller bounds memory: a block of m examples makes m·d numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from topdp.learning.gradients.ghost import Contribution, Dense
from topdp.learning.losses import Loss
from topdp.learning.models import FlatModel, Slot


@final
class PlainGradients:
    """Any model; `announce` hears why vmap could not be used."""

    def __init__(self, flat: FlatModel, loss: Loss, announce: Callable[[str], None]) -> None:
        self._flat = flat
        self._module = copy.deepcopy(flat.module)
        self._loss = loss
        self._announce = announce
        self._loop = False

    def _example_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(self._module, parameters, (x.unsqueeze(0),))
        return self._loss(outputs, y.unsqueeze(0)).sum()

    def contributions(
        self, rows: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[tuple[Slot, Contribution]]]:
        """Losses [n, b] and one contribution for whole rows; rows [n, d], inputs and targets [n, b, ...]."""
        self._module.to(device=rows.device, dtype=rows.dtype)
        if not self._loop:
            try:
                losses, gradients = self._by_vmap(rows, inputs, targets)
            except Exception as error:  # vmap refuses in many types; the loop repeats what is the user's
                result = self._by_loop(rows, inputs, targets)
                self._loop = True
                self._announce(
                    f"vmap refuses this model ({first_line(error)}); each example is run by itself"
                )
                losses, gradients = result
        else:
            losses, gradients = self._by_loop(rows, inputs, targets)
        size = self._flat.dimension
        return losses, [(Slot("all", 0, size, torch.Size([size])), Dense(gradients))]

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """[n, b, ...]: all agents in evaluation mode on one batch [b, ...], one agent after the other."""
        module = self._flat.load(rows[0]).eval()
        return torch.stack([functional_call(module, self._flat.named(row), (inputs,)) for row in rows])

    def _by_vmap(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        one = grad_and_value(self._example_loss)
        examples = vmap(one, (None, 0, 0), randomness="different")
        # By parameter: the gradient of a slice of a row would be as long as the row.
        parameters = {
            slot.name: rows[:, slot.start : slot.stop].view(-1, *slot.shape) for slot in self._flat.slots
        }
        by_name, losses = vmap(examples, (0, 0, 0), randomness="different")(parameters, inputs, targets)
        return losses, torch.cat([by_name[slot.name].flatten(2) for slot in self._flat.slots], 2)

    def _by_loop(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        losses = rows.new_empty(inputs.shape[:2])
        gradients = rows.new_zeros(*inputs.shape[:2], rows.shape[1])
        for i, row in enumerate(rows):
            leaves = {name: view.detach().requires_grad_() for name, view in self._flat.named(row).items()}
            for j in range(inputs.shape[1]):
                with torch.enable_grad():
                    loss = self._example_loss(leaves, inputs[i, j], targets[i, j])
                losses[i, j] = loss.detach()
                found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                for slot, gradient in zip(self._flat.slots, found, strict=True):
                    if gradient is not None:
                        gradients[i, j, slot.start : slot.stop] = gradient.reshape(-1)
        return losses, gradients


def first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__

"""The fast path: one forward and one backward pass for all agents, no second backward.

Runs the skeleton of `twins` and hands out `ghost` contributions. Clipping and blocks belong to `clipped`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from topdp.learning.gradients.ghost import Contribution
from topdp.learning.gradients.twins import Tape, skeleton
from topdp.learning.losses import Loss
from topdp.learning.models import FlatModel, Slot


@final
class FoldedGradients:
    """A model with agents folded into its batch; raises `NotFoldedError` for layers without a twin."""

    def __init__(self, flat: FlatModel, loss: Loss) -> None:
        self._loss = loss
        self._tape = Tape()
        self._skeleton = skeleton(flat, self._tape)
        self._evaluator = skeleton(flat, self._tape).eval()
        self.elements = 0  # kept alive by the last call of `contributions`, roughly

    def contributions(
        self, rows: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[tuple[Slot, Contribution]]]:
        """Losses [n, b] and one contribution per parameter; rows [n, d], inputs and targets [n, b, ...]."""
        self._skeleton.to(device=rows.device, dtype=rows.dtype)
        tape = self._tape
        try:
            tape.begin(rows, inputs.shape[1], recording=True)
            with torch.enable_grad():
                outputs = self._skeleton(inputs.flatten(0, 1))
                losses = self._loss(outputs, targets.flatten(0, 1))
                # An output, its gradient and what the functions after it save.
                self.elements = inputs.numel() + sum(4 * output.numel() for output, _ in tape.records)
                found = tape.contributions(losses.sum())
            return losses.detach().view(inputs.shape[:2]), found
        finally:
            tape.clear()

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """[n, b, ...]: all agents in evaluation mode on one batch [b, ...], which is never copied."""
        self._evaluator.to(device=rows.device, dtype=rows.dtype)
        try:
            self._tape.begin(rows, inputs.shape[0], recording=False, shared=True)
            outputs: Tensor = self._evaluator(inputs)
            return outputs.reshape(rows.shape[0], inputs.shape[0], *outputs.shape[1:])
        finally:
            self._tape.clear()

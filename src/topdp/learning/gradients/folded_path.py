"""The fast path: one forward and one backward pass for all agents, without a second backward pass.

This module runs the model of `layer_rules` and returns contributions (`ghost_norms`). A sequence of known
layers with a known loss runs directly on the folded batch; all other code runs in `isolated_vmap`.
`clipped_gradients` clips and cuts the work into blocks.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from topdp.learning.gradients.ghost_norms import LossesAndContributions
from topdp.learning.gradients.isolation import forbid_batch_access, isolated_vmap
from topdp.learning.gradients.kept_state import StateSnapshot
from topdp.learning.gradients.layer_rules import FoldedModule, consists_of_known_layers, has_no_global_hooks
from topdp.learning.gradients.linear_layers import LinearRule
from topdp.learning.gradients.tape import LayerRule, NotFoldedError, Tape
from topdp.learning.losses import Loss, is_named_loss
from topdp.learning.models import FlatModel


@final
class FoldedPath:
    """A model that runs on the folded batch of all agents. Raises `NotFoldedError` for layers without a rule.

    **Guarantees.** For all values, the result for an example is a function of that example and of its agent's
    row. The reason is that each layer and function between input and loss is on the list of known layers, is
    a layer rule of topdp, or runs in `isolated_vmap`, and that a model or loss that keeps state between calls
    is refused (`kept_state`).
    """

    def __init__(self, flat: FlatModel, loss: Loss) -> None:
        self._loss = loss
        self._tape = Tape()
        folded = FoldedModule(flat, self._tape)
        self._folded, self._read = folded.module, tuple(folded.read)
        self._evaluator = FoldedModule(flat, self._tape).module.eval()
        self.known = is_named_loss(loss) and not self._read and consists_of_known_layers(flat.module)
        self._one_first_layer = self.known and _starts_with_linear_layer(self._folded)
        self._where: dict[int, tuple[torch.device, torch.dtype]] = {}
        self.elements = 0  # how many numbers the last call of `contributions` kept in memory, roughly

    @property
    def shares(self) -> bool:
        """Whether several rows can be computed with one copy of their records (`linear_layers`)."""
        return self._one_first_layer and has_no_global_hooks()

    def contributions(
        self, rows: Tensor, inputs: Tensor, targets: Tensor, copies: int = 1
    ) -> LossesAndContributions:
        """Return losses [n, b] and one contribution per parameter.

        rows [n, d], inputs and targets [n, b, ...]. If the model `shares`, several `copies` of rows may share
        their records. Inputs and targets are then those of n/copies agents.
        """
        self._move(self._folded, rows)
        tape = self._tape
        try:
            tape.begin(rows, inputs.shape[1], recording=True, copies=copies)
            targets = targets.expand(copies, *targets.shape).flatten(0, 2)
            with torch.enable_grad():
                losses = self._losses(inputs.flatten(0, 1), targets)
                # Four times: an output, its gradient, and what the following functions save.
                recorded = sum(4 * output.numel() for output, _ in tape.records)
                self.elements = inputs.numel() + recorded + tape.unrecorded * len(losses)
                contributions = tape.contributions(losses.sum())
            return losses.detach().view(len(rows), -1), contributions
        finally:
            tape.clear()

    def _move(self, module: nn.Module, rows: Tensor) -> None:
        """Move the buffers of `module` to the device and the number type of the rows.

        The last device and type are stored, because this is faster than checking every buffer.
        """
        where = (rows.device, rows.dtype)
        if self._where.get(id(module)) != where:
            module.to(device=rows.device, dtype=rows.dtype)
            self._where[id(module)] = where

    def _losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [n·b]."""
        if self.known and inputs.dim() > 1 and has_no_global_hooks():
            return self._loss(self._folded(inputs), targets)
        # A loss that is known to treat examples one by one may get all examples at once.
        loss_is_known = is_named_loss(self._loss)

        def example(x: Tensor, y: Tensor, read: dict[str, Tensor]) -> Tensor:
            self._tape.anchor = x
            with forbid_batch_access():
                outputs: Tensor = functional_call(self._folded, read, (x.unsqueeze(0),))
                return outputs.squeeze(0) if loss_is_known else self._loss(outputs, y.unsqueeze(0)).sum()

        memory = StateSnapshot({"model": self._folded, "loss": self._loss}, inputs, targets, contents=False)
        read = self._tape.copy_per_example(self._read)
        results: Tensor = isolated_vmap(example, (0, 0, 0))(inputs, targets, read)
        losses = self._loss(results, targets) if loss_is_known else results
        memory.expect_unchanged()
        return losses

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs [n, b, ...] of all agents in evaluation mode for one batch [b, ...].

        The batch is never copied.
        """
        if self._read:
            raise NotFoldedError("agents share one batch here, but the model reads parameters itself")
        self._move(self._evaluator, rows)
        try:
            self._tape.begin(rows, inputs.shape[0], recording=False, shared=True)
            outputs: Tensor = self._evaluator(inputs)
            return outputs.reshape(rows.shape[0], inputs.shape[0], *outputs.shape[1:])
        finally:
            self._tape.clear()


def _starts_with_linear_layer(model: nn.Module) -> bool:
    """Return whether the first layer with weights is linear and no layer before it draws random numbers."""
    layers = [layer for layer in model.modules() if not isinstance(layer, nn.Sequential)]
    first = next((at for at, layer in enumerate(layers) if isinstance(layer, LayerRule)), None)
    if first is None or not isinstance(layers[first], LinearRule):
        return False
    return not any(isinstance(layer, nn.Dropout) for layer in layers[:first])

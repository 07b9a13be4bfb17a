"""The fast path: one forward and one backward pass for all agents, no second backward.

Runs the skeleton of `twins` and hands out `ghost` contributions. A chain of known layers under a known loss
runs on the folded batch as it is; all other code runs in `isolated_vmap`.
Clipping and blocks belong to `clipped`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from topdp.learning.gradients.ghost_norms import Contribution
from topdp.learning.gradients.isolation import forbid_batch_access, isolated_vmap
from topdp.learning.gradients.kept_state import StateSnapshot
from topdp.learning.gradients.known_layers import consists_of_known_layers, has_no_global_hooks
from topdp.learning.gradients.layer_rules import FoldedModule
from topdp.learning.gradients.linear_layers import LinearRule
from topdp.learning.gradients.tape import LayerRule, NotFoldedError, Tape
from topdp.learning.losses import Loss, is_named_loss
from topdp.learning.models import FlatModel, Slot


@final
class FoldedPath:
    """A model with agents folded into its batch; raises `NotFoldedError` for layers without a twin.

    **Guarantees.** What comes out for an example is a function of that example and of its agent's row, for
    all values: each layer and function between input and loss is either on the list of `known`, or our own
    twin, or runs in `isolated_vmap`, and a model or loss that keeps something between calls is refused
    (`kept_state`).
    """

    def __init__(self, flat: FlatModel, loss: Loss) -> None:
        self._loss = loss
        self._tape = Tape()
        made = FoldedModule(flat, self._tape)
        self._skeleton, self._read = made.module, tuple(made.read)
        self._evaluator = FoldedModule(flat, self._tape).module.eval()
        self.known = is_named_loss(loss) and not self._read and consists_of_known_layers(flat.module)
        self._one_first_layer = self.known and _starts_with_linear_layer(self._skeleton)
        self._where: dict[int, tuple[torch.device, torch.dtype]] = {}
        self.elements = 0  # kept alive by the last call of `contributions`, roughly

    @property
    def shares(self) -> bool:
        """Whether rows may have their records in common (`sharing`)."""
        return self._one_first_layer and has_no_global_hooks()

    def contributions(
        self, rows: Tensor, inputs: Tensor, targets: Tensor, copies: int = 1
    ) -> tuple[Tensor, list[tuple[Slot, Contribution]]]:
        """Losses [n, b] and one contribution per parameter; rows [n, d], inputs and targets [n, b, ...].

        Where the model `shares`, several `copies` of rows may have the same records: then there are n/copies.
        """
        self._placed(self._skeleton, rows)
        tape = self._tape
        try:
            tape.begin(rows, inputs.shape[1], recording=True, copies=copies)
            targets = targets.expand(copies, *targets.shape).flatten(0, 2)
            with torch.enable_grad():
                losses = self._losses(inputs.flatten(0, 1), targets)
                # An output, its gradient and what the functions after it save.
                recorded = sum(4 * output.numel() for output, _ in tape.records)
                self.elements = inputs.numel() + recorded + tape.kept * len(losses)
                found = tape.contributions(losses.sum())
            return losses.detach().view(len(rows), -1), found
        finally:
            tape.clear()

    def _placed(self, skeleton: nn.Module, rows: Tensor) -> None:
        """Buffers of the model stand where the rows are; to look at each takes longer than to remember."""
        where = (rows.device, rows.dtype)
        if self._where.get(id(skeleton)) != where:
            skeleton.to(device=rows.device, dtype=rows.dtype)
            self._where[id(skeleton)] = where

    def _losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """[n·b]"""
        if self.known and inputs.dim() > 1 and has_no_global_hooks():
            return self._loss(self._skeleton(inputs), targets)
        # A loss that treats examples one by one may see them all.
        together = is_named_loss(self._loss)

        def example(x: Tensor, y: Tensor, read: dict[str, Tensor]) -> Tensor:
            self._tape.anchored(x)
            with forbid_batch_access():
                outputs: Tensor = functional_call(self._skeleton, read, (x.unsqueeze(0),))
                return outputs.squeeze(0) if together else self._loss(outputs, y.unsqueeze(0)).sum()

        memory = StateSnapshot({"model": self._skeleton, "loss": self._loss}, inputs, targets, contents=False)
        read = self._tape.spread(self._read)
        found: Tensor = isolated_vmap(example, (0, 0, 0))(inputs, targets, read)
        losses = self._loss(found, targets) if together else found
        memory.expect_unchanged()
        return losses

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """[n, b, ...]: all agents in evaluation mode on one batch [b, ...], which is never copied."""
        if self._read:
            raise NotFoldedError("agents share one batch here, and the model reads parameters itself")
        self._placed(self._evaluator, rows)
        try:
            self._tape.begin(rows, inputs.shape[0], recording=False, shared=True)
            outputs: Tensor = self._evaluator(inputs)
            return outputs.reshape(rows.shape[0], inputs.shape[0], *outputs.shape[1:])
        finally:
            self._tape.clear()


def _starts_with_linear_layer(skeleton: nn.Module) -> bool:
    """Of a chain of known layers: whether the first with weights is linear, and nothing random is before."""
    layers = [layer for layer in skeleton.modules() if not isinstance(layer, nn.Sequential)]
    first = next((at for at, layer in enumerate(layers) if isinstance(layer, LayerRule)), None)
    if first is None or not isinstance(layers[first], LinearRule):
        return False
    return not any(isinstance(layer, nn.Dropout) for layer in layers[:first])

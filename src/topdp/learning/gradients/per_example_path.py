"""The slow path: per-example gradients of any module, each example as a batch of one.

The module runs in `isolated_vmap` over examples and agents if torch supports this, and otherwise in a Python
loop, for example if its control flow depends on data. The caller must bound the memory: the gradients of a
block of m examples are m·d numbers.
"""

from __future__ import annotations

import copy
import math
from typing import final

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from topdp.errors import InputError
from topdp.learning.gradients.ghost_norms import Dense, LossesAndContributions, SlotContributions
from topdp.learning.gradients.isolation import forbid_batch_access, isolated_vmap
from topdp.learning.gradients.kept_state import StateSnapshot
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.gradients.record_streams import RecordStreams
from topdp.learning.losses import Loss
from topdp.learning.models import FlatModel


@final
class PerExamplePath:
    """The computation of per-example gradients of any model.

    **Guarantees.** Each example runs in a separate call or in `isolated_vmap`, and a model or loss that keeps
    state from one call to the next is refused (`kept_state`). So the result for an example is a function of
    that example and of its agent's row. An example on which the model fails has a gradient of NaN.
    """

    def __init__(self, flat: FlatModel, loss: Loss) -> None:
        self._flat = flat
        self._module = disable_inference_kernels(copy.deepcopy(flat.module))
        self._loss = loss
        self._loop = False

    def try_isolated(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> str | None:
        """Return None if the model runs on these examples in `isolated_vmap`, and otherwise the reason.

        If it does not, all later examples run in a Python loop.
        """
        self._module.to(device=rows.device, dtype=rows.dtype)
        try:
            self._isolated(rows, inputs, targets)
        except Exception as error:  # vmap raises many types of errors
            self._loop = True
            return first_line(error)
        return None

    def contributions(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        streams: RecordStreams | None = None,
        first: tuple[int, int] = (0, 0),
    ) -> LossesAndContributions:
        """Return losses [n, b] and the contributions of all parameters.

        rows [n, d], inputs and targets [n, b, ...]. `streams`, `first`: as in `one_by_one`.
        """
        if self._loop:
            return self.one_by_one(rows, inputs, targets, streams, first)
        self._module.to(device=rows.device, dtype=rows.dtype)
        memory = StateSnapshot({"model": self._module, "loss": self._loss}, inputs, targets, contents=False)
        losses, gradients = self._isolated(rows, inputs, targets)
        memory.expect_unchanged()
        return losses, self._dense(gradients)

    def one_by_one(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        streams: RecordStreams | None = None,
        first: tuple[int, int] = (0, 0),
    ) -> LossesAndContributions:
        """Return the result of `contributions`, computed in a Python loop.

        Each example draws random numbers from its own stream of `streams`. `first`: the positions of the
        first agent and example of this block. Raise InputError if the model changes its parameters or seeds
        generators.
        """
        streams = streams or RecordStreams(None, rows.device)
        self._module.to(device=rows.device, dtype=rows.dtype)
        memory = StateSnapshot({"model": self._module, "loss": self._loss}, inputs, targets, contents=True)
        losses = rows.new_full(inputs.shape[:2], math.nan)
        gradients = rows.new_zeros(*inputs.shape[:2], rows.shape[1])
        for i, row in enumerate(rows):
            row_copy = row.clone()
            leaves = {
                name: view.detach().requires_grad_() for name, view in self._flat.named(row_copy).items()
            }
            for j in range(inputs.shape[1]):
                streams.begin(first[0] + i, first[1] + j)
                try:
                    with torch.enable_grad():
                        loss = self._example_loss(leaves, inputs[i, j], targets[i, j])
                    parts = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                    for slot, part in zip(self._flat.slots, parts, strict=True):
                        if part is not None:
                            gradients[i, j, slot.start : slot.stop] = part.reshape(-1)
                    losses[i, j] = loss.detach()
                except (MemoryError, torch.OutOfMemoryError):
                    raise
                except Exception:  # the record is the cause, because the model ran on others (`path_check`)
                    gradients[i, j] = math.nan
                streams.expect_unseeded()
            # The model must not set attributes or gradients of its parameters either.
            written = any(vars(leaf) or leaf.grad is not None for leaf in leaves.values())
            frozen = not all(leaf.requires_grad for leaf in leaves.values())
            if (
                written
                or frozen
                or not torch.equal(row_copy.view(torch.uint8), row.contiguous().view(torch.uint8))
            ):
                raise InputError(
                    "Expected a model that does not change its parameters, got a model that does. Let its "
                    "forward compute with copies: weight.clone()."
                )
        memory.expect_unchanged()
        return losses, self._dense(gradients)

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs [n, b, ...] of all agents in evaluation mode for one batch [b, ...].

        The agents run one after the other.
        """
        module = disable_inference_kernels(self._flat.load(rows[0]).eval())
        return torch.stack([call_model(module, self._flat.named(row), inputs) for row in rows])

    def _dense(self, gradients: Tensor) -> SlotContributions:
        return [(slot, Dense(gradients[:, :, slot.start : slot.stop])) for slot in self._flat.slots]

    def _example_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(self._module, parameters, (x.unsqueeze(0),))
        return self._loss(outputs, y.unsqueeze(0)).sum()

    def _isolated(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        def example(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with forbid_batch_access():
                return self._example_loss(parameters, x, y)

        # Gradients are computed inside `isolated_vmap`: outside, torch ignores an embedding's padding_idx.
        examples = isolated_vmap(grad_and_value(example), (None, 0, 0))
        # Each parameter is a separate tensor: the gradient of a slice of a row would be as long as the row.
        parameters = {
            slot.name: rows[:, slot.start : slot.stop].view(-1, *slot.shape) for slot in self._flat.slots
        }
        by_name, losses = isolated_vmap(examples, (0, 0, 0))(parameters, inputs, targets)
        return losses, torch.cat([by_name[slot.name].flatten(2) for slot in self._flat.slots], 2)


def first_line(error: Exception) -> str:
    """Return the type of `error` and the first line of its message, shortened."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__

"""Losses, one value for each example. A new one is a function here and its name in `LOSSES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor
from torch.nn import functional

from topdp.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [b, ...], targets [b, ...]) -> losses [b]"""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of class scores and labels; over several positions of an example, their mean.

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy}
"""Each treats examples one by one, whatever the values: gradients rely on it."""


def named_loss(loss: str | Loss) -> Loss:
    """A loss by name, or the caller's own; one that does not give one value per example is refused."""
    if not callable(loss) and loss not in LOSSES:
        raise InputError(
            f"Expected loss {' or '.join(map(repr, LOSSES))} or a function with one loss per example, "
            f"got {loss!r}."
        )
    return PerExample(loss if callable(loss) else LOSSES[loss])


def is_known(loss: Loss) -> bool:
    """Whether it is one of `LOSSES`, as `named_loss` gives them."""
    return isinstance(loss, PerExample) and loss.loss in LOSSES.values()


def is_cross_entropy(loss: Loss) -> bool:
    """Whether it takes the softmax of outputs."""
    return isinstance(loss, PerExample) and loss.loss is cross_entropy


@final
@dataclass(frozen=True)
class PerExample:
    """A loss whose shape is checked."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = self.loss(outputs, targets)
        if losses.shape != targets.shape[:1]:
            raise InputError(
                f"Expected one loss per example {tuple(targets.shape[:1])}, got shape {tuple(losses.shape)}. "
                "Use reduction='none' and reduce over all axes but the first."
            )
        return losses

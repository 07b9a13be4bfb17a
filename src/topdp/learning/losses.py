"""Losses with one value per example. To add one, write a function here and register its name in `LOSSES`.

`tasks` states what a named loss requires of targets and outputs. `metrics` contains the metrics that are
reported together with a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor
from torch.nn import functional

from topdp.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [b, ...], targets [b, ...]) -> losses [b]"""

CUSTOM_LOSS = "own"
"""The name of a loss that is a user's own function."""

MAX_TRANSPOSED_CLASSES = 32
"""Up to this many classes, scores are transposed before the softmax. For ten classes, this is four to seven
times as fast."""

VECTOR_WIDTH = 16  # numbers in one vector register of a CPU; some process two at a time


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example's class scores [b, classes, ...] and labels [b, ...].

    If an example has several positions, return their mean.

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    if (
        outputs.dim() == 2
        and targets.dim() == 1
        and outputs.shape[1] <= MAX_TRANSPOSED_CLASSES
        and outputs.device.type == "cpu"
    ):
        # Examples lie next to each other in memory, so the CPU processes many at once. Without padding, the
        # last examples would not fill a vector register and would be rounded differently. With padding, an
        # example has the same bits at any position.
        padded = functional.pad(outputs.mT, (0, -len(outputs) % VECTOR_WIDTH))
        scores = functional.log_softmax(padded, 0).mT[: len(outputs)]
        return functional.nll_loss(scores, targets, reduction="none")
    return _mean_per_example(functional.cross_entropy(outputs, targets, reduction="none"))


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared difference for each example; if an example has several numbers, their mean.

    >>> import torch
    >>> mse(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]))
    tensor([0., 4.])
    """
    return _mean_per_example(functional.mse_loss(*match_target_shape(outputs, targets), reduction="none"))


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Huber loss for each example; if an example has several numbers, their mean.

    It is half the squared difference where the difference is at most 1, and linear beyond.

    >>> import torch
    >>> huber(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))
    tensor([0.5000, 2.5000])
    """
    return _mean_per_example(functional.huber_loss(*match_target_shape(outputs, targets), reduction="none"))


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of each example's logits and targets from 0 to 1.

    If an example has several labels, return their mean.

    >>> import torch
    >>> bce(torch.zeros(2, 3), torch.tensor([[0, 1, 1], [0, 0, 1]]))
    tensor([0.6931, 0.6931])
    """
    pair = match_target_shape(outputs, targets)
    count = pair[0].numel()
    # Padded as in `cross_entropy`, so that a number has the same bits at any position.
    scores, labels = (functional.pad(part.reshape(-1), (0, -count % (2 * VECTOR_WIDTH))) for part in pair)
    losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")[:count]
    return _mean_per_example(losses.view(pair[0].shape))


def linear(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negated product of output and target for each example; of several numbers, their mean.

    This loss has no minimum. The gradient of a linear model is a fixed vector per example, so one release of
    size 1 that begins at 0 is the mean of these vectors (`runs/statistics/aggregate`).

    >>> import torch
    >>> linear(torch.tensor([1.0, 3.0]), torch.tensor([1.0, -2.0]))
    tensor([-1., 6.])
    """
    outputs, targets = match_target_shape(outputs, targets)
    return _mean_per_example(-outputs * targets)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "mse": mse,
    "huber": huber,
    "bce": bce,
    "linear": linear,
}
"""Each loss treats the examples one by one, for any values. The computation of gradients relies on this."""


def match_target_shape(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and targets, both in the shape of the targets and with the number type of the outputs.

    Raise InputError if the shapes differ, except in axes of length 1 after the first: one number per example
    may be [b] or [b, 1]. Nothing is ever broadcast.

    >>> import torch
    >>> [part.shape for part in match_target_shape(torch.zeros(5, 1), torch.zeros(5))]
    [torch.Size([5]), torch.Size([5])]
    """
    if outputs.shape != targets.shape:
        axes = [
            (*values.shape[:1], *(size for size in values.shape[1:] if size != 1))
            for values in (outputs, targets)
        ]
        squeezed = outputs.dim() == 0 and targets.numel() == 1  # the model removed the axis of a batch of one
        if axes[0] != axes[1] and not squeezed:
            raise InputError(
                f"Expected outputs in the shape of the targets, got outputs of shape {tuple(outputs.shape)} "
                f"for targets of shape {tuple(targets.shape)}. Make the model return "
                f"[batch{''.join(f', {length}' for length in targets.shape[1:])}]."
            )
        outputs = outputs.reshape(targets.shape)
    return outputs, targets.to(outputs.dtype)


def named_loss(loss: str | Loss) -> PerExampleLoss:
    """Return the loss that `loss` names, or the user's own function, as a `PerExampleLoss`.

    Raise InputError if no loss has this name.
    """
    if isinstance(loss, PerExampleLoss):
        return loss
    if callable(loss):
        name = next((name for name, function in LOSSES.items() if function is loss), CUSTOM_LOSS)
        return PerExampleLoss(loss, name)
    if loss not in LOSSES:
        raise InputError(
            f"Expected loss {' or '.join(map(repr, LOSSES))} or a function of (outputs, targets) that "
            f"returns one loss per example, got {loss!r}."
        )
    return PerExampleLoss(LOSSES[loss], loss)


def is_named_loss(loss: Loss) -> bool:
    """Return whether `loss` is one of `LOSSES`, as returned by `named_loss`."""
    return isinstance(loss, PerExampleLoss) and loss.loss in LOSSES.values()


def is_cross_entropy(loss: Loss) -> bool:
    """Return whether `loss` is `cross_entropy`, which takes the softmax of the outputs."""
    return isinstance(loss, PerExampleLoss) and loss.loss is cross_entropy


@final
@dataclass(frozen=True)
class PerExampleLoss:
    """A loss that raises InputError unless it returns one value per example."""

    loss: Loss
    name: str = CUSTOM_LOSS

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = self.loss(outputs, targets)
        if not isinstance(losses, Tensor) or losses.shape != targets.shape[:1]:
            result = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise InputError(
                f"Expected one loss per example {tuple(targets.shape[:1])}, got {result}. "
                "Use reduction='none', and then reduce over all axes except the first."
            )
        return losses


def _mean_per_example(losses: Tensor) -> Tensor:
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)

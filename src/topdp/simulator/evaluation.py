"""What all agents' models say about the common test records: loss and metrics of each. Decides nothing.

Means over records are added up chunk by chunk. A metric that needs all outputs at once gets those of as many
agents at a time as fit into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.losses import Loss, is_named_loss
from topdp.learning.metrics import Metric

CHUNK = 1000  # test records at once
KEPT = 1 << 24  # outputs kept at once, where a metric needs those of all records
AGENTS = 256  # at once: more of them only take more memory


@dataclass(frozen=True)
class Evaluation:
    """Test loss and metrics of every agent's estimate."""

    loss: Floats
    metrics: Mapping[str, Floats]
    """By name: [agents], or [agents, k] of a metric with a value for each class. NaN: not defined."""

    @property
    def accuracy(self) -> Floats:
        return self.metrics["accuracy"]


def evaluate(
    gradients: ClippedGradients,
    metrics: Sequence[Metric],
    rows: Tensor,
    inputs: Tensor,
    targets: Tensor,
    widened: Callable[[Tensor], Tensor] = lambda some: some,
    most: int | None = None,
) -> Evaluation:
    """Of the models with parameters `rows` [n, d] on the records `inputs` and `targets` [M, ...].

    `widened`: makes numbers to compute with of some rows, where those are kept in fewer bits; of at most so
    many at once.
    """
    whole = [metric for metric in metrics if metric.each is None]
    at_once = min(AGENTS, len(rows), most or AGENTS)
    if whole:
        with torch.no_grad():
            one = gradients.outputs(widened(rows[:1]), inputs[:1])
        at_once = max(1, min(at_once, KEPT // (len(targets) * max(1, one.numel()))))
    parts = []
    for start in range(0, len(rows), at_once):
        # Products of one agent alone are rounded otherwise: a last one is computed with the one before it.
        first = min(start, len(rows) - 2) if at_once > 1 else start
        totals, others = _some(gradients, metrics, widened(rows[first : start + at_once]), inputs, targets)
        others = {name: values[start - first :] for name, values in others.items()}
        parts.append((totals[:, start - first :], others))
    added = [metric.name for metric in metrics if metric.each is not None]
    # Nobody waits for a GPU before all is there.
    sums = torch.cat([totals for totals, _ in parts], 1).cpu().numpy() / len(targets)
    found = dict(zip(dict.fromkeys(("loss", *added)), sums, strict=True))
    found |= {metric.name: np.concatenate([others[metric.name] for _, others in parts]) for metric in whole}
    return Evaluation(found["loss"], {metric.name: found[metric.name] for metric in metrics})


def _some(
    gradients: ClippedGradients, metrics: Sequence[Metric], rows: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, dict[str, Floats]]:
    """Sums over records [loss and metrics, n]; and by name, metrics of all records at once."""
    loss = _by_example(gradients.loss)
    each = {"loss": loss, **{metric.name: metric.each for metric in metrics if metric.each is not None}}
    totals = {name: torch.zeros(len(rows), dtype=torch.float64, device=rows.device) for name in each}
    whole = [metric for metric in metrics if metric.each is None]
    kept = []
    with torch.no_grad():
        for x, y in zip(torch.split(inputs, CHUNK), torch.split(targets, CHUNK), strict=True):
            outputs = gradients.outputs(rows, x)
            if whole:
                kept.append(outputs)
            repeated = y.expand(len(rows), *y.shape).flatten(0, 1)
            for name, function in each.items():
                values = function(outputs.flatten(0, 1), repeated)
                totals[name] += values.view(len(rows), -1).double().sum(1)
        found = {}
        if whole:
            outputs = torch.cat(kept, 1)
            for metric in whole:
                found[metric.name] = np.array([_value(metric, own, targets) for own in outputs], float)
    return torch.stack(list(totals.values())), found


def _value(metric: Metric, outputs: Tensor, targets: Tensor) -> Floats:
    """A user's function gets tensors on the processor, of which NumPy makes arrays."""
    if metric.about is None:
        outputs, targets = outputs.cpu(), targets.cpu()
    try:
        value = metric(outputs, targets)
        value = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, float)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"metric {metric.name}: failed on outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}: {type(error).__name__}: {error}"
        ) from error
    if value.ndim > 1:
        raise InputError(
            f"metric {metric.name}: expected one number, or a list of them, got shape {value.shape}."
        )
    return value


def _by_example(loss: Loss) -> Loss:
    """A loss of our own as it is; a user's sees one example at a time, as in training, where that differs."""
    if is_named_loss(loss):
        return loss

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        few = range(min(3, len(targets)))
        alone = torch.cat([loss(outputs[i : i + 1], targets[i : i + 1]) for i in few])
        try:
            together = loss(outputs, targets)
        except Exception:  # it was written for one example
            together = alone.new_full(targets.shape[:1], math.nan)
        if torch.allclose(together[: len(few)], alone, 1e-4, 1e-6, equal_nan=True):
            return together
        rest = range(len(few), len(targets))
        return torch.cat([alone, *(loss(outputs[i : i + 1], targets[i : i + 1]) for i in rest)])

    return losses

"""Evaluation of the models of all agents on the common test records: loss and metrics.

Means over records are summed chunk by chunk. A metric that needs the outputs for all records at once gets
them for as many agents at a time as fit into memory.
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

TEST_CHUNK_RECORDS = 1000
MAX_HELD_OUTPUTS = 1 << 24  # numbers in memory, if a metric needs the outputs for all records
MAX_EVALUATED_AGENTS = 256  # at a time; more agents would need more memory and not be faster


@dataclass(frozen=True)
class Evaluation:
    """Test loss and metrics of every agent's estimate."""

    loss: Floats
    # By name: [agents], or [agents, k] for a metric with one value per class. NaN means undefined.
    metrics: Mapping[str, Floats]

    @property
    def accuracy(self) -> Floats:
        return self.metrics["accuracy"]


def evaluate(
    gradients: ClippedGradients,
    metrics: Sequence[Metric],
    rows: Tensor,
    inputs: Tensor,
    targets: Tensor,
    widened: Callable[[Tensor], Tensor] = lambda rows: rows,
    max_agents: int | None = None,
) -> Evaluation:
    """Return loss and metrics of the models with parameters `rows` [n, d] on the records `inputs` and
    `targets` [M, ...].

    `widened` converts rounded rows to the number type of the computation, at most `max_agents` at a time.
    """
    whole = [metric for metric in metrics if metric.each is None]
    count = min(MAX_EVALUATED_AGENTS, len(rows), max_agents or MAX_EVALUATED_AGENTS)
    if whole:
        with torch.no_grad():
            output = gradients.outputs(widened(rows[:1]), inputs[:1])
        count = max(1, min(count, MAX_HELD_OUTPUTS // (len(targets) * max(1, output.numel()))))
    parts = []
    for start in range(0, len(rows), count):
        # Products of a single agent are rounded differently, so a single last agent is evaluated together
        # with the agent before it.
        first = min(start, len(rows) - 2) if count > 1 else start
        totals, of_whole = _evaluate_part(
            gradients, metrics, widened(rows[first : start + count]), inputs, targets
        )
        of_whole = {name: values[start - first :] for name, values in of_whole.items()}
        parts.append((totals[:, start - first :], of_whole))
    means = [metric.name for metric in metrics if metric.each is not None]
    # Only here does the CPU wait for a GPU.
    sums = torch.cat([totals for totals, _ in parts], 1).cpu().numpy() / len(targets)
    values = dict(zip(dict.fromkeys(("loss", *means)), sums, strict=True))
    values |= {metric.name: np.concatenate([part[metric.name] for _, part in parts]) for metric in whole}
    return Evaluation(values["loss"], {metric.name: values[metric.name] for metric in metrics})


def _evaluate_part(
    gradients: ClippedGradients, metrics: Sequence[Metric], rows: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, dict[str, Floats]]:
    """Return the sums over records [loss and metrics that are means, n], and the other metrics by name."""
    loss = _by_example(gradients.loss)
    each = {"loss": loss, **{metric.name: metric.each for metric in metrics if metric.each is not None}}
    totals = {name: torch.zeros(len(rows), dtype=torch.float64, device=rows.device) for name in each}
    whole = [metric for metric in metrics if metric.each is None]
    held = []
    with torch.no_grad():
        for x, y in zip(
            torch.split(inputs, TEST_CHUNK_RECORDS), torch.split(targets, TEST_CHUNK_RECORDS), strict=True
        ):
            outputs = gradients.outputs(rows, x)
            if whole:
                held.append(outputs)
            repeated = y.expand(len(rows), *y.shape).flatten(0, 1)
            for name, function in each.items():
                values = function(outputs.flatten(0, 1), repeated)
                totals[name] += values.view(len(rows), -1).double().sum(1)
        together = {}
        if whole:
            outputs = torch.cat(held, 1)
            for metric in whole:
                together[metric.name] = np.array([_value(metric, own, targets) for own in outputs], float)
    return torch.stack(list(totals.values())), together


def _value(metric: Metric, outputs: Tensor, targets: Tensor) -> Floats:
    """Return the value of `metric`; a user's function gets tensors on the CPU, which NumPy can convert."""
    if metric.about is None:
        outputs, targets = outputs.cpu(), targets.cpu()
    try:
        value = metric(outputs, targets)
        value = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, float)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"metric {metric.name}: expected a value, got an error for outputs of shape "
            f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if value.ndim > 1:
        raise InputError(
            f"metric {metric.name}: expected one number, or a list of them, got shape {value.shape}."
        )
    return value


def _by_example(loss: Loss) -> Loss:
    """Return a function that evaluates `loss` for each example as in training.

    A built-in loss is returned unchanged. A user's loss gets one example at a time if its first results for
    single examples and for the whole batch differ.
    """
    if is_named_loss(loss):
        return loss

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        few = range(min(3, len(targets)))
        single = torch.cat([loss(outputs[i : i + 1], targets[i : i + 1]) for i in few])
        try:
            together = loss(outputs, targets)
        except Exception:  # the loss was written for one example
            together = single.new_full(targets.shape[:1], math.nan)
        if torch.allclose(together[: len(few)], single, 1e-4, 1e-6, equal_nan=True):
            return together
        others = range(len(few), len(targets))
        return torch.cat([single, *(loss(outputs[i : i + 1], targets[i : i + 1]) for i in others)])

    return losses

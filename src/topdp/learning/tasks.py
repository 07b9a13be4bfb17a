"""A task: a loss with its metrics, and what both require of targets and of a model's outputs.

Targets and outputs that do not fit are refused before anything is computed. The losses and metrics themselves
are in `losses` and `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from topdp.errors import DataError, InputError
from topdp.learning.losses import CUSTOM_LOSS, Loss, PerExampleLoss, match_target_shape, named_loss
from topdp.learning.metrics import (
    CLASS_TARGETS,
    DEFAULT_METRICS,
    METRICS,
    NUMBER_TARGETS,
    Metric,
    MetricFunction,
    named_metric,
)

LOSS_SUBJECTS = {
    "cross-entropy": CLASS_TARGETS,
    "bce": CLASS_TARGETS,
    "mse": NUMBER_TARGETS,
    "huber": NUMBER_TARGETS,
    "linear": NUMBER_TARGETS,
}
RESERVED_METRIC_NAMES = ("round", "loss")

MetricChoice = str | Metric | MetricFunction | Sequence[str | Metric | MetricFunction] | None


@final
@dataclass(frozen=True)
class Task:
    """The loss that is minimised, and the metrics that are reported."""

    loss: PerExampleLoss
    metrics: tuple[Metric, ...]

    @classmethod
    def of(cls, loss: str | Loss = "cross-entropy", metrics: MetricChoice = None) -> Task:
        """Return the task of a loss and its metrics.

        `metrics`: one or several metrics, by name or as functions; None selects the defaults for the loss.
        Raise InputError if a name is unknown, reserved or repeated, or if a metric does not fit the loss.

        >>> [metric.name for metric in Task.of("mse").metrics]
        ['mae', 'r2']
        """
        task_loss = named_loss(loss)
        if isinstance(metrics, str) or callable(metrics):
            metrics = [metrics]
        chosen = tuple(
            named_metric(metric)
            for metric in (DEFAULT_METRICS[task_loss.name] if metrics is None else metrics)
        )
        names = [metric.name for metric in chosen]
        for name in names:
            if names.count(name) > 1 or name in RESERVED_METRIC_NAMES or name.endswith("_per_agent"):
                raise InputError(
                    f"Expected metrics with unique names other than {', '.join(RESERVED_METRIC_NAMES)} and "
                    f"*_per_agent, got {name!r}{' twice' if names.count(name) > 1 else ''}. Give the metric "
                    "another name with topdp.Metric(name, function)."
                )
        about = LOSS_SUBJECTS.get(task_loss.name)
        for metric in chosen:
            if None not in (about, metric.about) and metric.about != about:
                fits = ", ".join(name for name, candidate in METRICS.items() if candidate.about == about)
                raise InputError(
                    f"metrics: expected one of {fits} for the loss {task_loss.name}, got {metric.name!r}, "
                    f"which is about {metric.about}."
                )
        return cls(task_loss, chosen)

    def targets(self, targets: Tensor, what: str) -> Tensor:
        """Return `targets` [records, ...] in the number type that the loss needs.

        Raise DataError if the loss cannot take the targets; the message begins with `what`.
        """
        convert = _TARGET_CONVERSIONS.get(self.loss.name)
        return targets if convert is None else convert(targets, what)

    def outputs(self, targets: Tensor, classes: int | None) -> int:
        """Return the number of outputs that a model for these `targets` [records, ...] must have."""
        if self.loss.name == "cross-entropy" or (self.loss.name == CUSTOM_LOSS and classes is not None):
            return classes if classes is not None else int(targets.max()) + 1
        return math.prod(targets.shape[1:])

    def expect_outputs(self, outputs: Tensor, targets: Tensor, classes: int | None) -> None:
        """Raise InputError if the `outputs` of a model for some records do not fit the `targets` of these
        records, or if the loss fails on them.
        """
        if self.loss.name == "cross-entropy":
            _expect_class_scores(outputs, targets, classes)
        elif self.loss.name != CUSTOM_LOSS:
            match_target_shape(outputs, targets)
        try:
            self.loss(outputs, targets)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"Expected a loss that is a function of (outputs, targets), got an error for outputs of "
                f"shape {tuple(outputs.shape)} ({outputs.dtype}) and targets of shape "
                f"{tuple(targets.shape)} ({targets.dtype}): {type(error).__name__}: {error}"
            ) from error


def _labels(targets: Tensor, what: str) -> Tensor:
    """Return the targets as int64 labels: one per record, or one per position.

    Raise DataError unless all targets are whole numbers of at least 0.
    """
    invalid = (targets < 0) | (targets != targets.floor()) if targets.is_floating_point() else targets < 0
    if bool(invalid.any()):
        index = int(invalid.reshape(len(invalid), -1).any(1).nonzero()[0])
        value = targets[invalid][0].item()
        raise DataError(
            f"{what}: expected labels that are whole numbers of at least 0 for cross-entropy, got {value:g} "
            f"at index {index}. For real numbers use the loss mse or huber."
        )
    return targets.to(torch.int64)


def _numbers(targets: Tensor, what: str) -> Tensor:
    return targets if targets.is_floating_point() else targets.to(torch.float32)


def _probabilities(targets: Tensor, what: str) -> Tensor:
    """Return the targets as floating-point numbers; raise DataError unless all are from 0 to 1."""
    invalid = (targets < 0) | (targets > 1)
    if bool(invalid.any()):
        advice = (
            "For one of several classes use the loss cross-entropy, or give one number for each class."
            if not targets.is_floating_point() or bool((targets == targets.floor()).all())
            else "For real numbers use the loss mse or huber."
        )
        raise DataError(
            f"{what}: expected targets from 0 to 1 for bce, got {targets[invalid][0].item():g}. {advice}"
        )
    return _numbers(targets, what)


_TARGET_CONVERSIONS: dict[str, Callable[[Tensor, str], Tensor]] = {
    "cross-entropy": _labels,
    "mse": _numbers,
    "huber": _numbers,
    "linear": _numbers,
    "bce": _probabilities,
}


def _expect_class_scores(outputs: Tensor, targets: Tensor, classes: int | None) -> None:
    """Raise InputError unless `outputs` contain a score for each class and position."""
    positions = tuple(targets.shape[1:])
    result = f"got outputs of shape {tuple(outputs.shape)} for a batch of one record"
    if outputs.dim() != targets.dim() + 1 or tuple(outputs.shape[2:]) != positions:
        expected = "".join(f", {length}" for length in positions)
        advice = ""
        if outputs.shape == targets.shape:
            advice = "For one logit use the loss bce."
        elif outputs.shape[:1] != targets.shape[:1]:
            advice = "The first axis must be that of the records. Use squeeze(-1), not squeeze()."
        elif tuple(outputs.shape[1:-1]) == positions:
            advice = "Put the classes first: outputs.movedim(-1, 1)."
        raise InputError(
            f"Expected a model with an output for each class, [batch, classes{expected}], {result}. {advice}"
        )
    if classes is not None and outputs.shape[1] < classes:
        advice = f"Give the model {classes} outputs."
        if outputs.shape[1] == 1 and classes == 2:
            advice = "For one logit use the loss bce."
        raise InputError(
            f"Expected a model with an output for each of the {classes} classes, {result}. {advice}"
        )

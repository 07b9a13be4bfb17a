"""Metrics of a model on test records, by name or as functions. To add one, put a `Metric` into `METRICS`.

A metric receives one agent's outputs for all test records, and the targets of these records. It returns one
number, or one number per class. Gradients, noise and rounds do not depend on metrics. `tasks` states what a
loss requires of targets. The engine and the training loop decide which agents are evaluated, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.learning.losses import CUSTOM_LOSS, match_target_shape

MetricFunction = Callable[[Tensor, Tensor], Any]
"""(outputs [M, ...], targets [M, ...]) -> a number, or [k] numbers"""

CLASS_TARGETS, NUMBER_TARGETS = "classes", "numbers"
"""The kinds of targets that a metric can be about: class labels, or real numbers."""


@final
@dataclass(frozen=True)
class Metric:
    """A named number computed from all test records.

    >>> import torch
    >>> bias = Metric("bias", lambda outputs, targets: (outputs - targets).mean(), larger_is_better=None)
    >>> float(bias(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])))
    1.5
    """

    name: str
    function: MetricFunction
    _: KW_ONLY
    larger_is_better: bool | None = True
    """None if neither a larger nor a smaller value is better, as for a bias."""
    about: str | None = None
    """The kind of targets, such as `CLASS_TARGETS`; None for a user's own function."""
    each: Callable[[Tensor, Tensor], Tensor] | None = None
    """For a metric that is a mean over records: a function that returns the value of each record. Then the
    outputs for all records need not be in memory at once."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        return self.function(outputs, targets)


def named_metric(metric: str | Metric | MetricFunction) -> Metric:
    """Return the metric that `metric` names, or a `Metric` of the user's own function, with its name.

    Raise InputError if no metric has this name.
    """
    if isinstance(metric, Metric):
        return metric
    if callable(metric):
        return Metric(
            getattr(metric, "__name__", type(metric).__name__).strip("<>"), metric, larger_is_better=None
        )
    if metric not in METRICS:
        raise InputError(
            f"Expected one of the metrics {', '.join(METRICS)}, or a function of (outputs, targets), "
            f"got {metric!r}."
        )
    return METRICS[metric]


def labels_and_scores(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (labels, scores): [k] and [k, classes] for classes; both [k, labels], with labels 0 or 1, for
    yes/no questions.

    The targets are classes if they are integers and the outputs have one more axis than the targets; each
    position of a record is then a separate row of the result. All other outputs must be logits in the shape
    of the targets: one logit for a yes/no question, or one for each of several labels.
    """
    if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1:
        return targets.flatten(), outputs.movedim(1, -1).flatten(0, -2)
    logits, truth = match_target_shape(outputs, targets)
    return (truth > 0.5).long().reshape(len(truth), -1), logits.reshape(len(logits), -1)


def _labels_and_predictions(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return true and predicted labels: [k] for classes, [k, labels] for yes/no questions."""
    truth, scores = labels_and_scores(outputs, targets)
    return truth, scores.argmax(1) if truth.dim() == 1 else (scores > 0).long()


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    truth, predicted = _labels_and_predictions(outputs, targets)
    return (truth == predicted).double().reshape(len(targets), -1).mean(1)


def _correct_in_top_five(outputs: Tensor, targets: Tensor) -> Tensor:
    truth, scores = labels_and_scores(outputs, targets)
    if truth.dim() != 1:
        raise InputError("top-5-accuracy: expected a score for each class, got yes/no logits. Use accuracy.")
    true_scores = scores.gather(1, truth[:, None])
    return ((scores > true_scores).sum(1) < 5).double().reshape(len(targets), -1).mean(1)


def _is_multilabel(truth: Tensor) -> bool:
    """Return whether a record may have several labels. A single yes/no logit counts as two classes."""
    return truth.dim() == 2 and truth.shape[1] > 1


def _class_counts(truth: Tensor, predicted: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three counts for each class or label: how often it is predicted correctly, how often it is true,
    and how often it is predicted.
    """
    if _is_multilabel(truth):
        return (truth * predicted).sum(0).double(), truth.sum(0).double(), predicted.sum(0).double()

    def count(labels: Tensor) -> Tensor:
        classes = outputs.shape[1] if outputs.dim() > 1 else 2
        return torch.bincount(labels.flatten(), minlength=max(classes, 2)).double()

    return count(truth[truth == predicted]), count(truth), count(predicted)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of `per_class_accuracy` over the classes that occur."""
    return per_class_accuracy(outputs, targets).nanmean()


def per_class_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return [classes] the share of each class's records that are classified correctly.

    The value is NaN for a class that does not occur. With several labels per record, return [labels] the
    share of records for which each label is predicted correctly.
    """
    truth, predicted = _labels_and_predictions(outputs, targets)
    if _is_multilabel(truth):
        return (truth == predicted).double().mean(0)
    correct, true, _ = _class_counts(truth, predicted, outputs)
    return correct / true


def f1_macro(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of F1 = 2·correct / (true + predicted) over the classes that occur or are predicted.

    With several labels per record, return the mean over all labels.
    """
    truth, predicted = _labels_and_predictions(outputs, targets)
    correct, true, predicted_counts = _class_counts(truth, predicted, outputs)
    scores = 2 * correct / (true + predicted_counts).clamp_min(1)
    return scores.mean() if _is_multilabel(truth) else scores[true + predicted_counts > 0].mean()


def auroc(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the probability that a record of the class scores higher than a record of another class.

    A tie counts as a half. With several labels, or with more than two classes (each against the rest, by
    softmax), return the mean over the labels or classes that have records of both kinds; NaN if there are
    none. Return NaN if a score is not finite.
    """
    truth, scores = labels_and_scores(outputs, targets)
    scores = scores.double()
    if not torch.isfinite(scores).all():
        return scores.new_tensor(math.nan)
    if truth.dim() == 1:
        classes = scores.shape[1]
        scores = scores[:, 1:] - scores[:, :1] if classes == 2 else scores.softmax(1)
        truth = truth[:, None] == torch.arange(classes, device=truth.device)
        truth = truth[:, 1:].long() if classes == 2 else truth.long()
    return torch.stack(
        [_area_under_roc(yes, score) for yes, score in zip(truth.T, scores.T, strict=True)]
    ).nanmean()


def _area_under_roc(truth: Tensor, scores: Tensor) -> Tensor:
    """Return the Mann-Whitney statistic (Hanley and McNeil 1982) with mean ranks for ties.

    The result is NaN unless both true and false labels occur.
    """
    _, distinct, ties = torch.unique(scores, return_inverse=True, return_counts=True)
    last = ties.cumsum(0).double()
    rank = (last - (ties - 1) / 2)[distinct]
    positives = truth.double().sum()
    negatives = len(truth) - positives
    above: Tensor = (rank * truth).sum() - positives * (positives + 1) / 2
    return above / (positives * negatives)


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return [M, k] the outputs minus the targets."""
    outputs, targets = match_target_shape(outputs, targets)
    return (outputs.double() - targets.double()).reshape(len(targets), -1)


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return R² = 1 - Σ(target - output)² / Σ(target - mean)²; with several numbers per record, their mean.

    If all targets are equal, there is nothing to explain. The result is then 1 if all outputs equal the
    targets, and otherwise 0.
    """
    outputs, targets = (
        part.double().reshape(len(targets), -1) for part in match_target_shape(outputs, targets)
    )
    residual = (targets - outputs).square().sum(0)
    total = (targets - targets.mean(0)).square().sum(0)
    constant = total == 0
    explained = 1 - residual / torch.where(constant, torch.ones_like(total), total)
    return torch.where(constant, (residual == 0).double(), explained).mean()


def _mean_metric(name: str, each: Callable[[Tensor, Tensor], Tensor], about: str) -> Metric:
    """Return the mean of `each` over the records: a share of correct labels, or an error of numbers."""
    return Metric(
        name,
        lambda outputs, targets: each(outputs, targets).mean(),
        larger_is_better=about == CLASS_TARGETS,
        about=about,
        each=each,
    )


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _mean_metric("accuracy", _correct, CLASS_TARGETS),
        Metric("balanced-accuracy", balanced_accuracy, about=CLASS_TARGETS),
        Metric("per-class-accuracy", per_class_accuracy, about=CLASS_TARGETS),
        _mean_metric("top-5-accuracy", _correct_in_top_five, CLASS_TARGETS),
        Metric("f1-macro", f1_macro, about=CLASS_TARGETS),
        Metric("auroc", auroc, about=CLASS_TARGETS),
        _mean_metric("mae", lambda *pair: _errors(*pair).abs().mean(1), NUMBER_TARGETS),
        _mean_metric("mse", lambda *pair: _errors(*pair).square().mean(1), NUMBER_TARGETS),
        Metric("r2", r2, about=NUMBER_TARGETS),
    )
}

DEFAULT_METRICS = {
    "cross-entropy": ("accuracy",),
    "bce": ("accuracy",),
    "mse": ("mae", "r2"),
    "huber": ("mae", "r2"),
    "linear": (),
    CUSTOM_LOSS: (),
}
"""By loss: the metrics that are reported unless the user chooses others. The loss is always reported."""


def larger_is_better(name: str) -> bool | None:
    """Return whether a larger value is better, for the metric with this name or for `loss`.

    Return None for a user's own function, because it is unknown.

    >>> larger_is_better("accuracy"), larger_is_better("loss"), larger_is_better("my_own")
    (True, False, None)
    """
    if name == "loss":
        return False
    return METRICS[name].larger_is_better if name in METRICS else None

"""What is reported of a model on test records, by name or as a function. A new one: a `Metric` in `METRICS`.

A metric gets the outputs of one agent on all test records and their targets, and gives a number; or several,
one for each class. It decides nothing: no gradient, no noise and no round depends on it. What a loss needs of
targets is in `tasks`; which agents are evaluated when, the engine and the loop know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.learning.losses import CUSTOM_LOSS, aligned

MetricFunction = Callable[[Tensor, Tensor], Any]
"""(outputs [M, ...], targets [M, ...]) -> a number, or [k] where there are several"""

CLASS_TARGETS, NUMBER_TARGETS = "classes", "numbers"
"""What a metric is about: labels of classes, or numbers as they are."""


@final
@dataclass(frozen=True)
class Metric:
    """A number for all test records, with its name.

    >>> import torch
    >>> bias = Metric("bias", lambda outputs, targets: (outputs - targets).mean(), larger_is_better=None)
    >>> float(bias(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])))
    1.5
    """

    name: str
    function: MetricFunction
    larger_is_better: bool | None = True
    """None: neither is, as for a bias."""
    about: str | None = None
    each: Callable[[Tensor, Tensor], Tensor] | None = None
    """Where the metric is a mean over records: the value of each. Then outputs need not be kept."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        return self.function(outputs, targets)


def named_metric(metric: str | Metric | MetricFunction) -> Metric:
    """A metric by name, or of the caller's own function, which is called by its own name."""
    if isinstance(metric, Metric):
        return metric
    if callable(metric):
        return Metric(getattr(metric, "__name__", type(metric).__name__).strip("<>"), metric, None)
    if metric not in METRICS:
        raise InputError(
            f"Expected a metric out of {', '.join(METRICS)}, or a function of (outputs, targets), "
            f"got {metric!r}."
        )
    return METRICS[metric]


def labels_and_scores(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Targets and outputs as labels [k] and scores [k, classes], or as labels and scores [k, labels], 0 or 1.

    Whole numbers with an output axis more are classes; over several positions, each counts. Anything else
    must be logits in the shape of the targets: one for yes and no, or one for each of several labels.
    """
    if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1:
        return targets.flatten(), outputs.movedim(1, -1).flatten(0, -2)
    logits, truth = aligned(outputs, targets)
    return (truth > 0.5).long().reshape(len(truth), -1), logits.reshape(len(logits), -1)


def _labels_and_predictions(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """True and said labels, [k] for classes, [k, labels] for yes and no."""
    truth, scores = labels_and_scores(outputs, targets)
    return truth, scores.argmax(1) if truth.dim() == 1 else (scores > 0).long()


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    truth, said = _labels_and_predictions(outputs, targets)
    return (truth == said).double().reshape(len(targets), -1).mean(1)


def _correct_in_top_five(outputs: Tensor, targets: Tensor) -> Tensor:
    truth, scores = labels_and_scores(outputs, targets)
    if truth.dim() != 1:
        raise InputError("top-5-accuracy: expected a score for each class, got logits of yes and no.")
    own = scores.gather(1, truth[:, None])
    return ((scores > own).sum(1) < 5).double().reshape(len(targets), -1).mean(1)


def _is_multilabel(truth: Tensor) -> bool:
    """Whether a record may have several labels; one logit for yes and no is two classes."""
    return truth.dim() == 2 and truth.shape[1] > 1


def _class_counts(truth: Tensor, said: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each class or label: rightly said, true, said."""
    if _is_multilabel(truth):
        right, true, named = (part.sum(0).double() for part in (truth * said, truth, said))
        return right, true, named
    truth, said = truth.flatten(), said.flatten()
    right, true, named = (
        torch.bincount(part, minlength=max(classes, 2)).double()
        for part in (truth[truth == said], truth, said)
    )
    return right, true, named


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean, over classes that occur, of the share of their records that are recognised."""
    return per_class_accuracy(outputs, targets).nanmean()


def per_class_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """[classes]: the share of each class's records that are recognised; NaN for a class that does not occur.

    Of several labels: how often each is said rightly.
    """
    truth, said = _labels_and_predictions(outputs, targets)
    if _is_multilabel(truth):
        return (truth == said).double().mean(0)
    right, true, _ = _class_counts(truth, said, outputs.shape[1] if outputs.dim() > 1 else 2)
    return right / true


def f1_macro(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of F1 = 2·right / (true + said) over classes that occur or are said; of labels, over all."""
    truth, said = _labels_and_predictions(outputs, targets)
    right, true, named = _class_counts(truth, said, outputs.shape[1] if outputs.dim() > 1 else 2)
    each = 2 * right / (true + named).clamp_min(1)
    return each.mean() if _is_multilabel(truth) else each[true + named > 0].mean()


def auroc(outputs: Tensor, targets: Tensor) -> Tensor:
    """How often a record of the class has the higher score than one of another; a tie is a half.

    Yes and no: that. Several labels, or more than two classes (each against the rest, by softmax): the mean
    over those that have records of both kinds; NaN where there is none.
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
    """Hanley and McNeil 1982: the Mann-Whitney statistic, ties at their mean rank; NaN without both kinds."""
    _, place, times = torch.unique(scores, return_inverse=True, return_counts=True)
    last = times.cumsum(0).double()
    rank = (last - (times - 1) / 2)[place]
    yes = truth.double().sum()
    no = len(truth) - yes
    above: Tensor = (rank * truth).sum() - yes * (yes + 1) / 2
    return above / (yes * no)


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs, targets = aligned(outputs, targets)
    return (outputs.double() - targets.double()).abs().reshape(len(targets), -1).mean(1)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs, targets = aligned(outputs, targets)
    return (outputs.double() - targets.double()).square().reshape(len(targets), -1).mean(1)


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 - Σ(target - output)² / Σ(target - mean)²; of several numbers, their mean.

    Targets that are all equal leave nothing to explain: 1 where they are met, 0 where they are not.
    """
    outputs, targets = (part.double().reshape(len(targets), -1) for part in aligned(outputs, targets))
    missed = (targets - outputs).square().sum(0)
    total = (targets - targets.mean(0)).square().sum(0)
    constant = total == 0
    explained = 1 - missed / torch.where(constant, torch.ones_like(total), total)
    return torch.where(constant, (missed == 0).double(), explained).mean()


def _mean_metric(name: str, each: Callable[[Tensor, Tensor], Tensor], about: str, larger: bool) -> Metric:
    return Metric(name, lambda outputs, targets: each(outputs, targets).mean(), larger, about, each)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _mean_metric("accuracy", _correct, CLASS_TARGETS, True),
        Metric("balanced-accuracy", balanced_accuracy, True, CLASS_TARGETS),
        Metric("per-class-accuracy", per_class_accuracy, True, CLASS_TARGETS),
        _mean_metric("top-5-accuracy", _correct_in_top_five, CLASS_TARGETS, True),
        Metric("f1-macro", f1_macro, True, CLASS_TARGETS),
        Metric("auroc", auroc, True, CLASS_TARGETS),
        _mean_metric("mae", _absolute_error, NUMBER_TARGETS, False),
        _mean_metric("mse", _squared_error, NUMBER_TARGETS, False),
        Metric("r2", r2, True, NUMBER_TARGETS),
    )
}

DEFAULT_METRICS = {
    "cross-entropy": ("accuracy",),
    "bce": ("accuracy",),
    "mse": ("mae", "r2"),
    "huber": ("mae", "r2"),
    CUSTOM_LOSS: (),
}
"""What is reported unless something is asked for, by loss; the loss itself always is."""


def larger_is_better(name: str) -> bool | None:
    """Of a metric by name, or of the loss; None of a function's, which does not say.

    >>> larger_is_better("accuracy"), larger_is_better("loss"), larger_is_better("my_own")
    (True, False, None)
    """
    if name == "loss":
        return False
    return METRICS[name].larger_is_better if name in METRICS else None

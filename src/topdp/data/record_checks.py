"""Requirements on inputs and targets before training. Refuses; never repairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topdp.base.array_types import Ints
from topdp.errors import DataError

Array = npt.NDArray[Any]
MAX_UNSTATED_CLASSES = 1000
"""More classes than this, and than records, must be stated explicitly."""
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


class Records(NamedTuple):
    """Inputs as read: bytes of images, scaled numbers, token ids, or the arrays of an `.npz`."""

    inputs: Array
    targets: Array
    classes: int | None = None
    """The stated number of classes; None if targets are numbers, or labels whose largest determines it."""
    class_names: tuple[str, ...] | None = None


def check_records(inputs: Array, targets: Array, what: str) -> tuple[Array, Array]:
    """Return `inputs` and `targets` as arrays ready for training; the message of a `DataError` begins with
    `what`.

    Numeric, non-empty, of equal length, every number finite; targets in one of the types of `check_targets`.
    """
    if inputs.dtype.kind not in "uifb":
        raise DataError(f"{what}: expected numeric inputs, got dtype {inputs.dtype}.")
    if inputs.ndim < 2:
        raise DataError(f"{what}: expected inputs of shape [records, ...], got shape {inputs.shape}.")
    if targets.ndim < 1:
        raise DataError(f"{what}: expected targets of shape [records, ...], got one number.")
    if len(inputs) != len(targets):
        raise DataError(f"{what}: expected as many targets as inputs, got {len(targets)} and {len(inputs)}.")
    if len(inputs) == 0:
        raise DataError(f"{what}: expected at least one record, got none.")
    if inputs.size == 0:
        raise DataError(f"{what}: expected inputs with at least one number, got shape {inputs.shape}.")
    _expect_finite(inputs, what, "inputs")
    return inputs, check_targets(targets, what)


def check_targets(targets: Array, what: str) -> Array:
    """Return `targets` [records, ...] as int64, float32 or float64, every number finite.

    Booleans become 0 and 1. Integers stay integers; their meaning depends on the loss.
    """
    if targets.dtype.kind not in "uifb":
        raise DataError(f"{what}: expected numeric targets, got dtype {targets.dtype}.")
    if targets.size == 0:
        raise DataError(f"{what}: expected targets with at least one number, got shape {targets.shape}.")
    if targets.dtype.kind != "f":
        if targets.dtype == np.uint64 and targets.max() > np.iinfo(np.int64).max:
            raise DataError(f"{what}: expected whole targets below 2^63, got {targets.max()}.")
        return targets.astype(np.int64)
    _expect_finite(targets, what, "targets")
    return targets.astype(np.float64 if targets.dtype.itemsize >= 8 else np.float32)


def check_labels(labels: Array, what: str, classes: int | None = None) -> Ints:
    """Return `labels` [records] as int64, all integers of at least 0 and, if given, below `classes`."""
    if labels.ndim != 1:
        raise DataError(f"{what}: expected labels of shape [records], got shape {labels.shape}.")
    if labels.dtype.kind not in "uifb":
        raise DataError(f"{what}: expected integer labels, got dtype {labels.dtype}.")
    if labels.dtype.kind == "f":
        bad = np.flatnonzero(~(np.isfinite(labels) & (labels == np.floor(labels))))
        if len(bad):
            raise DataError(f"{what}: expected integer labels, got {labels[bad[0]]} at index {bad[0]}.")
    whole = labels.astype(np.int64)
    wrong = whole < 0 if classes is None else (whole < 0) | (whole >= classes)
    bad = np.flatnonzero(wrong)
    if len(bad):
        expected = "of at least 0" if classes is None else f"in 0..{classes - 1}"
        raise DataError(
            f"{what}: expected labels {expected}, got {whole[bad[0]]} at index {bad[0]} ({len(bad)} in all)."
        )
    return whole


def is_numbering(labels: Sequence[Array]) -> bool:
    """Whether the integers of all agents can number classes: 10^9 among a hundred records cannot."""
    largest = max(int(agent_labels.max()) for agent_labels in labels)
    return largest < max(MAX_UNSTATED_CLASSES, sum(map(len, labels)))


def count_classes(labels: Sequence[Array], what: str) -> int:
    """Return how many classes the labels of all agents number, if not stated: the largest + 1, at least
    two.
    """
    largest = max(int(agent_labels.max()) for agent_labels in labels)
    if not is_numbering(labels):
        raise DataError(
            f"{what}: expected labels that number the classes 0, 1, 2, ..., got {largest} among "
            f"{sum(map(len, labels))} records. Number them, or state the number of classes."
        )
    return expect_two_classes(largest + 1, what)


def expect_two_classes(classes: int, what: str) -> int:
    """Return `classes` if there are at least two."""
    if classes < 2:
        raise DataError(
            f"{what}: expected labels of at least two classes, got only 0: nothing can be learnt. "
            "State the number of classes if others occur elsewhere."
        )
    return classes


def _expect_finite(values: Array, what: str, called: str) -> None:
    if values.dtype.kind != "f":
        return
    # NaN passes through min and max and fails both comparisons; only then bad records are searched.
    with np.errstate(invalid="ignore"):
        # Compared as Python floats: in float16 the limit would be infinite.
        if float(values.min()) >= -_MAX_FLOAT32 and float(values.max()) <= _MAX_FLOAT32:
            return
        values = values.astype(np.float64)
        fine = (values >= -_MAX_FLOAT32) & (values <= _MAX_FLOAT32)
    bad = np.flatnonzero(~fine.reshape(len(values), -1).all(axis=1))
    raise DataError(
        f"{what}: expected finite {called} (in float32), got NaN, infinite or larger ones in "
        f"{len(bad)} records, the first at index {bad[0]}. Remove or repair them."
    )


def check_same_shape(
    values: Array, expected: tuple[int, ...], what: str, like: str, called: str = "records"
) -> None:
    """Refuse records whose shape differs from `expected`, the shape of the records of `like`."""
    if values.shape[1:] != expected:
        raise DataError(
            f"{what}: expected {called} of shape {expected} as in {like}, got {values.shape[1:]}."
        )

"""What inputs and labels must be before anything is trained on them. Refuses; never repairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from topdp.errors import DataError
from topdp.plan.arrays import Ints

Array = npt.NDArray[Any]
_LARGEST = float(np.finfo(np.float32).max)


def check_records(inputs: Array, labels: Array, what: str) -> tuple[Array, Ints]:
    """`inputs` and `labels` as arrays fit for training, or a `DataError` that begins with `what`.

    Numeric, non-empty, of equal length, every input finite, every label an integer of at least 0.
    """
    if inputs.dtype.kind not in "uifb":
        raise DataError(f"{what}: expected numeric inputs, got dtype {inputs.dtype}.")
    if inputs.ndim < 2:
        raise DataError(f"{what}: expected inputs of shape [records, ...], got shape {inputs.shape}.")
    if labels.ndim != 1:
        raise DataError(f"{what}: expected labels of shape [records], got shape {labels.shape}.")
    if len(inputs) != len(labels):
        raise DataError(f"{what}: expected as many labels as inputs, got {len(inputs)} and {len(labels)}.")
    if len(inputs) == 0:
        raise DataError(f"{what}: expected at least one record, got none.")
    if inputs.size == 0:
        raise DataError(f"{what}: expected inputs with at least one number, got shape {inputs.shape}.")
    if inputs.dtype.kind == "f":
        # NaN passes through min and max and fails both comparisons; the culprits are looked for only then.
        with np.errstate(invalid="ignore"):
            if not (inputs.min() >= -_LARGEST and inputs.max() <= _LARGEST):
                fine = (inputs >= -_LARGEST) & (inputs <= _LARGEST)
                bad = np.flatnonzero(~fine.reshape(len(inputs), -1).all(axis=1))
                raise DataError(
                    f"{what}: expected finite inputs (in float32), got NaN, infinite or larger ones in "
                    f"{len(bad)} records, the first at index {bad[0]}. Remove or repair them."
                )
    return inputs, check_labels(labels, what)


def check_labels(labels: Array, what: str, classes: int | None = None) -> Ints:
    """`labels` as int64, every one an integer of at least 0 and, where given, below `classes`."""
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


def check_same_shape(inputs: Array, expected: tuple[int, ...], what: str, like: str) -> None:
    """Refuse records whose shape differs from `expected`, the shape of the records of `like`."""
    if inputs.shape[1:] != expected:
        raise DataError(f"{what}: expected records of shape {expected} as in {like}, got {inputs.shape[1:]}.")

"""Check inputs and targets before training: raise an error for invalid records, and never repair them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from topdp.base.array_types import AnyArray, Ints
from topdp.data.readers.raw_tables import as_text, is_missing, object_array
from topdp.errors import DataError

MAX_UNSTATED_CLASSES = 1000
"""A user must state the number of classes if it exceeds both this number and the number of records."""
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Records:
    """Inputs and targets as read. Inputs are bytes, scaled numbers, token ids, or the arrays of an `.npz`."""

    inputs: AnyArray
    targets: AnyArray
    classes: int | None = None
    """The stated number of classes; None if targets are numbers, or if the largest label determines it."""
    _: KW_ONLY
    class_names: tuple[str, ...] | None = None
    persons: AnyArray | None = None
    """The identifier of each record's person, as text; None if the unit of protection is the record."""


def check_records(inputs: AnyArray, targets: AnyArray, what: str) -> tuple[AnyArray, AnyArray]:
    """Return `inputs` unchanged, and `targets` as int64, float32 or float64.

    Boolean targets become 0 and 1. Integers stay integers; their meaning depends on the loss. Raise
    DataError, with a message that begins with `what`, unless both are numeric, not empty, of equal length and
    finite.
    """
    for values, name in ((inputs, "inputs"), (targets, "targets")):
        _expect_numeric(values, what, name)
    if inputs.ndim < 2:
        raise DataError(f"{what}: expected inputs of shape [records, ...], got shape {inputs.shape}.")
    if targets.ndim < 1:
        raise DataError(f"{what}: expected targets of shape [records, ...], got one number.")
    if len(inputs) != len(targets):
        raise DataError(f"{what}: expected as many targets as inputs, got {len(targets)} and {len(inputs)}.")
    for values, name in ((inputs, "inputs"), (targets, "targets")):
        _expect_numbers(values, what, name)
    if targets.dtype.kind == "f":
        return inputs, targets.astype(np.float64 if targets.dtype.itemsize >= 8 else np.float32)
    if targets.dtype == np.uint64 and targets.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what}: expected whole targets below 2^63, got {targets.max()}.")
    return inputs, targets.astype(np.int64)


def check_inputs(inputs: AnyArray, what: str) -> AnyArray:
    """Return `inputs` [records, ...] unchanged. Raise DataError, with a message that begins with `what`,
    unless they are numeric, finite and not empty.
    """
    _expect_numeric(inputs, what, "inputs")
    _expect_numbers(inputs, what, "inputs")
    return inputs


def _expect_numeric(values: AnyArray, what: str, name: str) -> None:
    if values.dtype.kind not in "uifb":
        raise DataError(f"{what}: expected numeric {name}, got dtype {values.dtype}.")


def _expect_numbers(values: AnyArray, what: str, name: str) -> None:
    if len(values) == 0:
        raise DataError(f"{what}: expected at least one record, got none.")
    if values.size == 0:
        raise DataError(f"{what}: expected {name} with at least one number, got shape {values.shape}.")
    _expect_finite(values, what, name)


def check_labels(labels: AnyArray, what: str, classes: int | None = None) -> Ints:
    """Return `labels` [records], which `check_records` returned, as int64. Raise DataError unless all are
    integers of at least 0, and also below `classes` if this is given.
    """
    if labels.ndim != 1:
        raise DataError(f"{what}: expected labels of shape [records], got shape {labels.shape}.")
    if labels.dtype.kind == "f":
        invalid = np.flatnonzero(~(np.isfinite(labels) & (labels == np.floor(labels))))
        if len(invalid):
            raise DataError(
                f"{what}: expected integer labels, got {labels[invalid[0]]} at index {invalid[0]}."
            )
    whole = labels.astype(np.int64)
    wrong = whole < 0 if classes is None else (whole < 0) | (whole >= classes)
    invalid = np.flatnonzero(wrong)
    if len(invalid):
        expected = "of at least 0" if classes is None else f"in 0..{classes - 1}"
        raise DataError(
            f"{what}: expected labels {expected}, got {whole[invalid[0]]} at index {invalid[0]} "
            f"({len(invalid)} such labels).{_numbering_advice(whole, classes)}"
        )
    return whole


def check_identifiers(values: AnyArray, records: int, what: str) -> AnyArray:
    """Return the identifiers of the persons of `records` records as texts.

    Raise DataError, with a message that begins with `what`, unless there is one text or number per record.
    """
    if values.shape != (records,):
        raise DataError(
            f"{what}: expected one person identifier for each of {records} records, got an array of shape "
            f"{values.shape}."
        )
    gaps = is_missing(values)
    if gaps.any():
        raise DataError(
            f"{what}: expected a person identifier for every record, got none for {int(gaps.sum())} of "
            f"{records} records, the first at index {int(gaps.argmax())}. Add the identifiers, or remove "
            "these records."
        )
    others = {
        type(value).__name__ for value in values if not isinstance(value, str | int | float | np.number)
    }
    if others:
        raise DataError(f"{what}: expected person identifiers as texts or numbers, got {', '.join(others)}.")
    return object_array([as_text(value) for value in values])


def _numbering_advice(labels: Ints, classes: int | None) -> str:
    """Return advice for labels that number the classes from 1; empty for others."""
    if classes is None or labels.min() < 1 or labels.max() != classes:
        return ""
    return f" They number the {classes} classes from 1, and topdp numbers them from 0: subtract 1."


def is_numbering(labels: Sequence[AnyArray]) -> bool:
    """Return whether the integers of all agents can number classes: 10^9 among a hundred records cannot."""
    largest = max(int(agent_labels.max()) for agent_labels in labels)
    return largest < max(MAX_UNSTATED_CLASSES, sum(map(len, labels)))


def count_classes(labels: Sequence[AnyArray], what: str, stated: int | None = None) -> int:
    """Return the number of classes: `stated`, or if this is None the largest label of all agents + 1.

    Raise DataError if there are fewer than two classes, or if the labels cannot number classes
    (`is_numbering`).
    """
    largest = max(int(agent_labels.max()) for agent_labels in labels)
    if stated is None and not is_numbering(labels):
        raise DataError(
            f"{what}: expected labels that number the classes 0, 1, 2, ..., got {largest} among "
            f"{sum(map(len, labels))} records. Number the classes, or state how many there are."
        )
    classes = largest + 1 if stated is None else stated
    if classes < 2:
        raise DataError(
            f"{what}: expected labels of at least two classes, got only the label 0, so nothing can be "
            "learnt. If other labels occur elsewhere, state the number of classes."
        )
    return classes


def _expect_finite(values: AnyArray, what: str, name: str) -> None:
    if values.dtype.kind != "f":
        return
    # A NaN makes min and max NaN, and then both comparisons are false. Only then are bad records searched.
    with np.errstate(invalid="ignore"):
        # Compare as Python floats, because the limit would be infinite in float16.
        if float(values.min()) >= -_MAX_FLOAT32 and float(values.max()) <= _MAX_FLOAT32:
            return
        values = values.astype(np.float64)
        fine = (values >= -_MAX_FLOAT32) & (values <= _MAX_FLOAT32)
    invalid = np.flatnonzero(~fine.reshape(len(values), -1).all(axis=1))
    raise DataError(
        f"{what}: expected finite {name} (in float32), got NaN, infinite or too large numbers in "
        f"{len(invalid)} records, the first at index {invalid[0]}. Remove or repair these records."
    )


def check_same_shape(
    values: AnyArray, expected: tuple[int, ...], what: str, like: str, name: str = "records"
) -> None:
    """Raise DataError unless each element of `values` along the first axis has the shape `expected`.

    For the message: `what` says whose records these are, `like` whose records have the expected shape, and
    `name` whether the values are whole records or targets.
    """
    if values.shape[1:] != expected:
        raise DataError(f"{what}: expected {name} of shape {expected} as in {like}, got {values.shape[1:]}.")

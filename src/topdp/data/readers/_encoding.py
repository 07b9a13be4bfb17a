"""Encode a table as arrays, following a schema: numbers in [-1, 1], one-hot categories, targets.

**Guarantees.** Record k of the result depends on record k and on the schema, never on another record or on
the number of records: nothing is fitted. Statements about values (how many were outside of a range) are facts
about private records. They go only to the log of this machine and are never released.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from contextlib import suppress

import numpy as np

from topdp.base.array_types import AnyArray, Bools, Floats, Ints
from topdp.data.readers.raw_tables import Table, as_text, is_missing
from topdp.data.readers.table_schema import OTHER_CATEGORY, Schema, SchemaError, schema_template
from topdp.data.readers.token_ids import token_ids
from topdp.errors import DataError

logger = logging.getLogger("topdp.data")
MISSING_TARGET_ADVICE = "Remove the records without a target."


def encode_table(table: Table, schema: Schema) -> tuple[AnyArray, AnyArray]:
    """Return the inputs and the targets of all records.

    A number x with the range [a, b] becomes 2(x - a)/(b - a) - 1; values outside the range are first clipped
    to it. A category becomes one column for each listed value and one column for all other values. A target
    becomes the index of its class if the schema lists classes. Otherwise it stays a number, scaled like an
    input if it has a range; several target columns become several numbers.
    """
    expect_columns(table, schema)
    return encode_inputs(table, schema), _targets(table, schema)


def encode_inputs(table: Table, schema: Schema) -> AnyArray:
    """Return the inputs of all records. The table need not have other columns than those of the inputs."""
    _expect_named(table, schema.inputs)
    text = schema.text
    if text is not None:
        texts = [_expect_text(value, table, row) for row, value in enumerate(table.columns[text.column])]
        return token_ids(texts, text.length, text.vocabulary, text.unit)
    parts = [part for column in schema.inputs for part in _inputs(table, schema, column)]
    return np.concatenate(parts, axis=1).astype(np.float32)


def expect_columns(table: Table, schema: Schema) -> None:
    """Raise an error if a column of the schema is not in the table, or if the schema does not mention a
    column of the table.
    """
    columns = list(table.columns)
    if schema.targets == ("",):
        raise SchemaError(
            f"{table.origin}: expected a schema that names the target and what is publicly known of every "
            f"column, got none. Fill in this text and save it as schema.toml:\n\n{schema_template(columns)}\n"
        )
    _expect_named(table, (*schema.targets, *schema.inputs))
    unmentioned = [name for name in columns if name not in {*schema.targets, *schema.inputs, *schema.ignore}]
    if unmentioned:
        kind = "text" if schema.text is not None else "ranges"
        raise SchemaError(
            f"{table.origin}: the schema does not mention the column{'s' if len(unmentioned) > 1 else ''} "
            f"{', '.join(map(repr, unmentioned))}. Ranges and categories must be public knowledge, so "
            f"they are not taken from the records. Put every column under {kind}, categories or ignore:\n\n"
            f"{schema_template(columns, schema)}\n"
        )
    if not schema.inputs:
        raise SchemaError(
            f"{table.origin}: expected at least one input column, got none: every column is a target or "
            "ignored. Put a column under ranges or categories."
        )


def _expect_named(table: Table, names: Sequence[str]) -> None:
    """Raise DataError if the table lacks one of the columns `names`."""
    columns = list(table.columns)
    missing = [name for name in names if name not in columns]
    if missing:
        raise DataError(
            f"{table.origin}: expected the column {missing[0]!r} of the schema, got only the columns "
            f"{', '.join(columns)}. Add the column, or correct the schema."
        )


def _inputs(table: Table, schema: Schema, column: str) -> list[Floats]:
    values = table.columns[column]
    listed = schema.categories.get(column, ())
    numbers, gaps = (None, is_missing(values, listed)) if listed else numbers_of(table, column)
    if column not in schema.missing:
        example = f"{column} = {'0' if column in schema.ranges else repr(OTHER_CATEGORY)}"
        _expect_no_gaps(
            table, repr(column), gaps,
            f"State a public fill under [missing], such as {example}, or remove the records. To show the "
            "model where a value was missing, also list the column under indicators.",
        )  # fmt: skip
    if numbers is None:
        encoded = _one_hot(values, gaps, listed, schema.missing.get(column))
    else:
        numbers[gaps] = float(schema.missing.get(column, 0.0))
        encoded = _scale_to_range(numbers, table, schema, column)[:, None]
    return [encoded, gaps[:, None].astype(float)] if column in schema.indicators else [encoded]


def _one_hot(values: AnyArray, gaps: Bools, listed: tuple[str, ...], fill: float | str | None) -> Floats:
    position = {name: index for index, name in enumerate(listed)}
    one_hot = np.zeros((len(values), len(listed) + 1))
    columns = [
        position.get(str(fill) if gap else category_text(value, position), len(listed))
        for value, gap in zip(values, gaps, strict=True)
    ]
    one_hot[np.arange(len(values)), columns] = 1.0
    return one_hot


def numbers_of(table: Table, column: str) -> tuple[Floats, Bools]:
    """Return the values of `column` as numbers, 0 where missing, and for each value whether it is missing."""
    values = table.columns[column]
    try:
        plain = values.astype(float)
    except (TypeError, ValueError):  # some are texts: examine them one by one
        gaps, numbers = is_missing(values), np.zeros(len(values))
        for row in np.flatnonzero(~gaps):
            try:
                numbers[row] = float(values[row])
            except (TypeError, ValueError):
                raise DataError(
                    f"{table.where(int(row))}: expected a number in {column!r}, got {values[row]!r:.80}. If "
                    "it is a category, list its public values under [categories]."
                ) from None
    else:
        gaps = np.isnan(plain)
        numbers = np.where(gaps, 0.0, plain)
    if not np.isfinite(numbers).all():
        bad = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(f"{table.where(bad)}: expected a finite number in {column!r}, got {values[bad]!r}.")
    return numbers, gaps


def _scale_to_range(numbers: Floats, table: Table, schema: Schema, column: str) -> Floats:
    low, high = schema.ranges[column]
    outside = int(((numbers < low) | (numbers > high)).sum())
    if outside:
        logger.warning(
            "%s: %d of %d values of %s were outside of [%g, %g] and were clipped",
            table.origin, outside, len(numbers), column, low, high,
        )  # fmt: skip
    scaled: Floats = 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1
    return scaled


def _targets(table: Table, schema: Schema) -> AnyArray:
    if schema.classes is not None:
        return class_numbers(table, schema.targets[0], schema.classes)
    parts = []
    for column in schema.targets:
        try:
            numbers, gaps = numbers_of(table, column)
        except DataError as error:
            raise DataError(f"{error} If the target is a class, list its values in `classes`.") from None
        _expect_no_gaps(table, f"the target {column!r}", gaps, MISSING_TARGET_ADVICE)
        parts.append(_scale_to_range(numbers, table, schema, column) if column in schema.ranges else numbers)
    targets = np.stack(parts, axis=1).astype(np.float32)
    return targets[:, 0] if len(parts) == 1 else targets


def class_numbers(table: Table, column: str, classes: tuple[str, ...]) -> Ints:
    """Return, for each record, the index of its class in `classes`. Raise DataError for other values."""
    values = table.columns[column]
    _expect_no_gaps(table, f"the target {column!r}", is_missing(values, classes), MISSING_TARGET_ADVICE)
    position = {name: at for at, name in enumerate(classes)}
    numbers = np.array([position.get(category_text(value, position), -1) for value in values], np.int64)
    if (numbers < 0).any():
        row = int((numbers < 0).argmax())
        raise DataError(
            f"{table.where(row)}: expected one of the classes {', '.join(classes)} in {column!r}, got "
            f"{as_text(values[row])!r:.80} ({int((numbers < 0).sum())} of {len(values)} values are not in "
            "the list). Correct the values, or add the missing classes to the schema."
        )
    return numbers


def _expect_no_gaps(table: Table, what: str, gaps: Bools, advice: str) -> None:
    if gaps.any():
        raise DataError(
            f"{table.where(int(gaps.argmax()))}: expected a value of {what}, got a missing value "
            f"({int(gaps.sum())} of {table.rows} records lack it). {advice}"
        )


def category_text(value: object, listed: Container[str]) -> str:
    """Return `as_text(value)`; for text that is not in `listed`, return the number or boolean that it spells.

    If another record lacks a value in the column, files write 1 as 1.0. The result must not depend on that: a
    record is encoded in the same way whatever other records exist, and from a file as from a frame.
    """
    text = as_text(value)
    if text in listed or not isinstance(value, str):
        return text
    with suppress(ValueError):
        return as_text(float(text))
    return {"true": "1", "false": "0"}.get(text.lower(), text)


def _expect_text(value: object, table: Table, row: int) -> str:
    if value is None or value != value:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{table.where(row)}: expected text, got {as_text(value)!r:.80}.")
    return value

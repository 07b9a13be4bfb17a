"""What an owner sees of a file of its own before it writes a schema: `topdp data look`. For its eyes only.

**Guarantees.** None, and that is said: ranges and lists of values found here come from private records.
Whoever copies them into a schema tells about those records to all who see the schema, and no account counts
it. They help to recognise a column; what is stated should come from public knowledge.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topdp.data.readers.encoding import as_text
from topdp.data.readers.raw_table import is_missing
from topdp.data.readers.record_paths import read_table
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import Array

MAX_PREVIEW_VALUES = 12
"""Up to so many different values are shown."""


class ColumnPreview(NamedTuple):
    """What one column holds."""

    column: str
    kind: str
    missing: int
    least: float | None
    largest: float | None
    values: tuple[str, ...]
    """The different values, where they are few; else none."""


def preview_columns(path: str | os.PathLike[str], delimiter: str | None = None) -> list[ColumnPreview]:
    """One line for each column of a table."""
    table = read_table(Path(path).expanduser(), Schema(delimiter=delimiter))
    return [_preview_column(name, values) for name, values in table.columns.items()]


def _preview_column(name: str, values: Array) -> ColumnPreview:
    gaps = is_missing(values)
    there = values[~gaps]
    texts = sorted({as_text(value) for value in there})
    few = tuple(texts) if len(texts) <= MAX_PREVIEW_VALUES else ()
    try:
        numbers = np.array([float(value) for value in there])
    except (TypeError, ValueError):
        return ColumnPreview(name, "text", int(gaps.sum()), None, None, few)
    if not len(numbers):
        return ColumnPreview(name, "empty", int(gaps.sum()), None, None, ())
    return ColumnPreview(name, "number", int(gaps.sum()), float(numbers.min()), float(numbers.max()), few)

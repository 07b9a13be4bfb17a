"""Previews of the columns of a table, for its owner only: `topdp data look`.

They help to write a schema.

**Guarantees.** None: ranges and lists of values shown here come from private records. Copying them into a
schema discloses something about those records to everyone who sees the schema, and no account counts it. They
help to recognise a column; a schema should state public knowledge.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topdp.data.readers._encoding import as_text
from topdp.data.readers._raw_table import is_missing
from topdp.data.readers.record_paths import read_table
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import Array

MAX_PREVIEW_VALUES = 12
"""Up to this many distinct values are shown."""


@dataclass(frozen=True, kw_only=True)
class ColumnPreview:
    """The content of one column."""

    column: str
    kind: str
    missing: int
    least: float | None = None
    largest: float | None = None
    values: tuple[str, ...] = ()
    """The distinct values if there are few; else none."""


def preview_columns(path: str | os.PathLike[str], delimiter: str | None = None) -> list[ColumnPreview]:
    """Return one preview for each column of a table."""
    table = read_table(Path(path).expanduser(), Schema(delimiter=delimiter))
    return [_preview_column(name, values) for name, values in table.columns.items()]


def _preview_column(name: str, column: Array) -> ColumnPreview:
    gaps = is_missing(column)
    present = column[~gaps]
    texts = sorted({as_text(value) for value in present})
    try:
        numbers = np.array([float(value) for value in present])
        kind = "number" if len(numbers) else "empty"
    except (TypeError, ValueError):
        numbers, kind = np.zeros(0), "text"
    return ColumnPreview(
        column=name,
        kind=kind,
        missing=int(gaps.sum()),
        least=float(numbers.min()) if len(numbers) else None,
        largest=float(numbers.max()) if len(numbers) else None,
        values=tuple(texts) if len(texts) <= MAX_PREVIEW_VALUES else (),
    )

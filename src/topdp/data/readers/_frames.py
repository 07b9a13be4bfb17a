"""Frames to tables: pandas, polars, Hugging Face datasets, or a dictionary of columns. Requires none of them.

Frames are recognised by their attributes, not by their type, so nothing is imported that a user has not
installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topdp.data.readers._raw_table import Table, make_table, object_array
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import Array
from topdp.errors import DataError


def read_frame(frame: Any, origin: str = "frame") -> Table:
    """Return the table in `frame`: anything with `columns` or `column_names` whose `frame[name]` is a column.

    The index of a pandas frame is not a column.

    >>> read_frame({"age": [30, 41], "job": ["nurse", None]}).columns["job"].tolist()
    ['nurse', None]
    """
    if isinstance(frame, Mapping) and any(hasattr(part, "column_names") for part in frame.values()):
        raise DataError(
            f"{origin}: expected one split of a data set, got {', '.join(map(repr, frame))}. Choose one, for "
            f"example data[{next(iter(frame))!r}]."
        )
    if isinstance(frame, Mapping):
        names = list(frame)
    else:
        column_names = getattr(frame, "column_names", None)  # Hugging Face
        names = list(getattr(frame, "columns", ()) if column_names is None else column_names)
    if not names or not hasattr(frame, "__getitem__"):
        raise DataError(
            f"{origin}: expected a pandas frame, a Hugging Face dataset or a dictionary of columns, got a "
            f"{type(frame).__name__}."
        )
    if not all(isinstance(name, str) for name in names):
        raise DataError(
            f"{origin}: expected texts as names of columns, got {names!r:.80}. Rename them, in pandas with "
            "frame.columns = frame.columns.astype(str)."
        )
    return make_table(origin, names, (_values(frame[name]) for name in names))


def declared_classes(frame: Any, schema: Schema) -> tuple[str, ...] | None:
    """Return the names of the classes that a Hugging Face dataset declares for the target, or None.

    They come from the dataset's description, not from its records.
    """
    features = getattr(frame, "features", None)
    if schema.classes is not None or len(schema.targets) != 1 or not isinstance(features, Mapping):
        return None
    names = getattr(features.get(schema.targets[0]), "names", None)
    return None if names is None else tuple(map(str, names))


def _values(column: Any) -> Array:
    values = column.to_numpy() if hasattr(column, "to_numpy") else column
    if isinstance(values, np.ndarray) and values.dtype.kind in "uifb":
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        return values.astype(str).astype(object)  # a time in nanoseconds is not a useful number
    items = list(values)
    if items and all(type(item) in (int, float, bool) for item in items):
        return np.array(items)
    return object_array(items)

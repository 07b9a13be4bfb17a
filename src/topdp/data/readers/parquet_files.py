"""Parquet files to tables, with the optional package pyarrow. Values are not converted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from topdp.data.readers.raw_table import Table, check_table
from topdp.data.record_checks import Array
from topdp.errors import DataError


def read_parquet(path: str | os.PathLike[str]) -> Table:
    """Return the table in a Parquet file; nested columns are refused."""
    place = Path(path).expanduser()
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{place}: Parquet needs pyarrow, which is not installed: pip install 'topdp[tables]'."
        ) from None
    try:
        table = parquet.ParquetFile(place).read()
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{place}: cannot be read as Parquet ({reason}).") from error
    names = table.column_names
    if len(set(names)) != len(names):
        raise DataError(f"{place}: expected every column once, got {names}.")
    return check_table(Table(str(place), {name: _values(table[name], f"{place}: {name}") for name in names}))


def _values(column: Any, what: str) -> Array:
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_nested(kind):
        raise DataError(f"{what}: expected one value per record, got {kind}. Flatten the column first.")
    if types.is_floating(kind) or (types.is_integer(kind) and column.null_count == 0):
        return np.asarray(column.to_numpy())
    if types.is_integer(kind):  # missing values become NaN
        return np.asarray(column.cast("float64", safe=False).to_numpy())
    array = np.empty(len(column), object)
    array[:] = column.to_pylist()
    return array

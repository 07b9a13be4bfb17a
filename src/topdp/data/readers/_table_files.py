"""Table files to tables: CSV, and Parquet with the optional package pyarrow. Values are not converted.

CSV is UTF-8 with or without a byte order mark, with one header line.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from topdp.data.readers._raw_table import Table, make_table, object_array
from topdp.data.record_checks import Array
from topdp.errors import DataError

DELIMITERS = ",;\t|"


def read_csv(place: Path, delimiter: str | None = None) -> Table:
    """Return the table in a CSV file. `delimiter`: a comma, or a tab for `.tsv`, unless given.

    Refused, with the line number: rows of another length than the header, a repeated column, a column without
    a name, a header that another delimiter would split, bytes that are not UTF-8.
    """
    cut = delimiter or ("\t" if place.suffix == ".tsv" else ",")
    rows, lines = [], []
    try:
        with place.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=cut, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _expect_header(header, place, cut)
            for row in reader:
                if not row or (len(row) == 1 < len(header) and not row[0].strip()):
                    continue  # a blank line
                if len(row) != len(header):
                    raise DataError(
                        f"{place}, line {reader.line_num}: expected {len(header)} values as in the header, "
                        f"got {len(row)}. Quote values that contain the delimiter {cut!r}."
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except OSError as error:
        raise DataError(f"Expected a readable CSV file at {place}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: expected UTF-8 text, got the byte 0x{error.object[error.start]:02x} at position "
            f"{error.start}. Save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise DataError(f"{place}, line {reader.line_num}: cannot be read as CSV ({error}).") from error
    if not rows:
        raise DataError(f"{place}: expected at least one record below the header, got none.")
    return make_table(str(place), header, map(object_array, zip(*rows, strict=True)), np.array(lines))


def _expect_header(header: list[str], place: Path, cut: str) -> None:
    if not header:
        raise DataError(f"{place}: expected a header line with the names of the columns, got an empty file.")
    if len(header) == 1:
        better = max(DELIMITERS, key=header[0].count)
        if better != cut and header[0].count(better):
            raise DataError(
                f"{place}: expected columns separated by {cut!r}, got one column {header[0]!r:.80}. Is it "
                f"separated by {better!r}? State delimiter = {better!r} in the schema."
            )
    if "" in header:
        raise DataError(
            f"{place}: expected a name for every column, got none for column {header.index('') + 1}."
        )


def read_parquet(place: Path) -> Table:
    """Return the table in a Parquet file; nested columns are refused."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{place}: Parquet needs pyarrow, which is not installed: "
            "pip install -c constraints.txt '.[tables]'."
        ) from None
    try:
        table = parquet.ParquetFile(place).read()
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{place}: cannot be read as Parquet ({reason}).") from error
    names = table.column_names
    columns = (_values(column, f"{place}: {name}") for name, column in zip(names, table.columns, strict=True))
    return make_table(str(place), names, columns)


def _values(column: Any, what: str) -> Array:
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_nested(kind):
        raise DataError(f"{what}: expected one value per record, got {kind}. Flatten the column first.")
    if types.is_floating(kind) or (types.is_integer(kind) and column.null_count == 0):
        return np.asarray(column.to_numpy())
    if types.is_integer(kind):  # missing values become NaN
        return np.asarray(column.cast("float64", safe=False).to_numpy())
    return object_array(column.to_pylist())

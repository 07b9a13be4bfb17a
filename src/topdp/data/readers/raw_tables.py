"""Tables as they are read from CSV, Parquet and frames, before a schema encodes them; previews of columns.

The values of a table are not converted; `_encoding` converts them. Frames are recognised by their attributes,
not by their type, so that nothing is imported that a user has not installed. Parquet needs the optional
package pyarrow.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from topdp.base.array_types import AnyArray, Bools
from topdp.errors import DataError

DELIMITERS = ",;\t|"
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
MISSING_SPELLINGS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""How files spell a missing value, in upper or lower case. A listed category is never missing."""
MAX_PREVIEW_VALUES = 12
"""A preview lists the distinct values of a column if there are at most this many."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table: its columns by name, all of one length.

    `origin` names the file or frame in messages. `lines` states, for each record, its line in the file; None
    if the table does not come from a text file. The values of a column are numbers, where NaN means missing,
    or objects: texts, numbers and None.
    """

    origin: str
    columns: dict[str, AnyArray]
    lines: AnyArray | None = None

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def without(self, column: str | None) -> Table:
        """Return the table without a column, which it may lack; None: the same table."""
        return replace(self, columns={name: part for name, part in self.columns.items() if name != column})

    def where(self, row: int) -> str:
        """Return the origin of a record in words: `a.csv, line 7`."""
        if self.lines is None:
            return f"{self.origin}, record {row}"
        return f"{self.origin}, line {self.lines[row]}"


def make_table(
    origin: str, names: Sequence[str], columns: Iterable[AnyArray], lines: AnyArray | None = None
) -> Table:
    """Return the table with these columns.

    Raise DataError if a name is repeated, if there are no records, or if the columns have several axes or
    unequal lengths.
    """
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"{origin}: expected every column once, got {repeated[0]!r} twice. Rename or remove one of them."
        )
    table = Table(origin, dict(zip(names, columns, strict=True)), lines)
    if not table.rows:
        raise DataError(f"{origin}: expected at least one record, got none.")
    for name, values in table.columns.items():
        if values.shape != (table.rows,):
            raise DataError(
                f"{origin}: expected {table.rows} values in {name!r}, got an array of shape {values.shape}."
            )
    return table


def rows_of(table: Table, rows: AnyArray) -> Table:
    """Return the table with only these `rows`."""
    lines = None if table.lines is None else np.asarray(table.lines)[rows]
    return Table(table.origin, {name: values[rows] for name, values in table.columns.items()}, lines)


def object_array(values: Sequence[Any]) -> AnyArray:
    """Return a one-dimensional array whose elements are `values`, even if these are sequences themselves."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def read_table(path: Path, delimiter: str | None = None) -> Table:
    """Return the table in the file `path`. The suffix of its name decides how the file is read.

    `delimiter`: as for `read_csv`; Parquet files do not use it.
    """
    if not path.is_file():
        raise DataError(f"Expected a file or folder with records at {path}, which does not exist.")
    if path.suffix in (".parquet", ".pq"):
        return read_parquet(path)
    if path.suffix not in TABLE_SUFFIXES:
        raise DataError(
            f"{path}: expected a name that ends with {', '.join(TABLE_SUFFIXES)} or .npz, or a folder of "
            f"images, got {path.suffix!r}."
        )
    return read_csv(path, delimiter)


def read_csv(path: Path, delimiter: str | None = None) -> Table:
    """Return the table in a CSV file: UTF-8, with or without a byte order mark, with one header line.

    `delimiter` separates the values of a line. None means a tab for `.tsv`, and a comma for other files.

    Raise DataError, with the line number, if a row has another length than the header, if a column has no
    name, if another delimiter would split the header, or if the file is not UTF-8.
    """
    separator = delimiter or ("\t" if path.suffix == ".tsv" else ",")
    rows, lines = [], []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _expect_header(header, path, separator)
            for row in reader:
                if not row or (len(row) == 1 < len(header) and not row[0].strip()):
                    continue  # a blank line
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num}: expected {len(header)} values as in the header, "
                        f"got {len(row)}. Quote values that contain the delimiter {separator!r}."
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except OSError as error:
        raise DataError(f"Expected a readable CSV file at {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 text, got the byte 0x{error.object[error.start]:02x} at position "
            f"{error.start}. Save the file as UTF-8."
        ) from None
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: cannot be read as CSV ({error}). Check the quotation marks in "
            "this line and in the lines before it."
        ) from error
    if not rows:
        raise DataError(f"{path}: expected at least one record below the header, got none.")
    return make_table(str(path), header, map(object_array, zip(*rows, strict=True)), np.array(lines))


def _expect_header(header: list[str], path: Path, separator: str) -> None:
    if not header:
        raise DataError(f"{path}: expected a header line with the names of the columns, got an empty file.")
    if len(header) == 1:
        better = max(DELIMITERS, key=header[0].count)
        if better != separator and header[0].count(better):
            raise DataError(
                f"{path}: expected columns separated by {separator!r}, got one column {header[0]!r:.80}. If "
                f"{better!r} separates the columns, state delimiter = {better!r} in the schema."
            )
    if "" in header:
        raise DataError(
            f"{path}: expected a name for every column, got none for column {header.index('') + 1}. "
            "Add the name to the header."
        )


def read_parquet(path: Path) -> Table:
    """Return the table in a Parquet file. Raise DataError if a column is nested."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path}: Parquet needs pyarrow, which is not installed: "
            "pip install -c constraints.txt '.[tables]'."
        ) from None
    try:
        table = parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read as Parquet ({reason}).") from error
    columns = (
        _parquet_values(column, f"{path}: {name}")
        for name, column in zip(table.column_names, table.columns, strict=True)
    )
    return make_table(str(path), table.column_names, columns)


def _parquet_values(column: Any, what: str) -> AnyArray:
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_nested(kind):
        raise DataError(f"{what}: expected one value per record, got {kind}. Flatten the column first.")
    if types.is_floating(kind) or (types.is_integer(kind) and column.null_count == 0):
        return np.asarray(column.to_numpy())
    if types.is_integer(kind):  # missing values become NaN
        return np.asarray(column.cast("float64", safe=False).to_numpy())
    return object_array(column.to_pylist())


def read_frame(frame: Any, origin: str = "frame") -> Table:
    """Return the table in `frame`: from pandas, polars or Hugging Face, or a dictionary of columns.

    Any object is accepted that lists its columns in `columns` or `column_names`, and whose `frame[name]` is a
    column. The index of a pandas frame is not a column.

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
            f"{origin}: expected a pandas frame, a Hugging Face dataset or a dictionary of columns, got "
            f"{type(frame).__name__}."
        )
    if not all(isinstance(name, str) for name in names):
        raise DataError(
            f"{origin}: expected texts as names of columns, got {names!r:.80}. Rename them, in pandas with "
            "frame.columns = frame.columns.astype(str)."
        )
    return make_table(origin, names, (_frame_values(frame[name], f"{origin}: {name!r}") for name in names))


def _frame_values(column: Any, what: str) -> AnyArray:
    if isinstance(column, str) or not hasattr(column, "__iter__"):
        raise DataError(
            f"{what}: expected a list of values, got {column!r:.80}. For one record, give lists of one value."
        )
    values = column.to_numpy() if hasattr(column, "to_numpy") else column
    if isinstance(values, np.ndarray) and values.dtype.kind in "uifb":
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        return values.astype(str).astype(object)  # a time in nanoseconds is not a useful number
    items = list(values)
    if items and all(type(item) in (int, float, bool) for item in items):
        return np.array(items)
    return object_array(items)


def is_missing(values: AnyArray, listed: tuple[str, ...] = ()) -> Bools:
    """Return a Boolean array: for each value, whether it is missing. The texts in `listed` never are."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "uib":
        return np.zeros(len(values), bool)
    return np.array([_is_missing_value(value, listed) for value in values], bool)


def _is_missing_value(value: object, listed: tuple[str, ...]) -> bool:
    if isinstance(value, str):
        text = value.strip()
        return text.lower() in MISSING_SPELLINGS and text not in listed
    if value is None:
        return True
    try:
        return bool(value != value)  # NaN, pandas.NaT
    except TypeError:  # pandas.NA, which is neither equal nor unequal
        return True


def as_text(value: object) -> str:
    """Return a value as schemas write it in lists of categories and classes: 1.0 and True as 1.

    >>> as_text(" nurse "), as_text(1.0), as_text(np.int64(3)), as_text(False)
    ('nurse', '1', '3', '0')
    """
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


@dataclass(frozen=True, kw_only=True)
class ColumnPreview:
    """The content of one column: the number of missing values, the least, largest and distinct values.

    `values` is empty if there are more than `MAX_PREVIEW_VALUES` distinct values.
    """

    column: str
    kind: str
    missing: int
    least: float | None = None
    largest: float | None = None
    values: tuple[str, ...] = ()


def preview_columns(path: str | os.PathLike[str], delimiter: str | None = None) -> list[ColumnPreview]:
    """Return a preview of each column of a table, for its owner only: `topdp data look`.

    **Guarantees.** None: the ranges and lists of values in a preview come from private records. Copying them
    into a schema discloses something about those records to everyone who sees the schema, and no account
    counts it. A preview helps to recognise a column; a schema should state public knowledge.
    """
    table = read_table(Path(path).expanduser(), delimiter)
    return [_preview_column(name, values) for name, values in table.columns.items()]


def _preview_column(name: str, column: AnyArray) -> ColumnPreview:
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

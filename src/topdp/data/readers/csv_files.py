"""CSV files to tables: UTF-8 with or without a byte order mark, one header line. Values are not converted."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np

from topdp.data.readers.raw_table import Table, check_table
from topdp.data.record_checks import Array
from topdp.errors import DataError

DELIMITERS = ",;\t|"


def read_csv(path: str | os.PathLike[str], delimiter: str | None = None) -> Table:
    """Return the table in a CSV file. `delimiter`: a comma, or a tab for `.tsv`, unless given.

    Refused, with the line number: rows of another length than the header, a repeated column, a column without
    a name, a header that another delimiter would split, bytes that are not UTF-8.
    """
    place = Path(path).expanduser()
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
    columns = {
        name: _object_array(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)
    }
    return check_table(Table(str(place), columns, np.array(lines)))


def _object_array(column: tuple[str, ...]) -> Array:
    array = np.empty(len(column), object)
    array[:] = column
    return array


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
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{place}: expected every column once in the header, got {repeated[0]!r} twice.")
    if "" in header:
        raise DataError(
            f"{place}: expected a name for every column, got none for column {header.index('') + 1}."
        )

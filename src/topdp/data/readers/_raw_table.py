"""A table as read: named columns of equal length, values not yet converted.

`encoding` converts the values by a schema; the readers produce tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topdp.data.record_checks import Array
from topdp.errors import DataError

MISSING_SPELLINGS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""How files spell a missing value, in any case; a listed category never counts as missing."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table: `columns` by name.

    `lines` gives the line of each record in its file; without it, records are counted.

    Values are numbers, with NaN for missing ones, or objects: texts, numbers, None.
    """

    origin: str
    columns: dict[str, Array]
    lines: Array | None = None

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, row: int) -> str:
        """Return the place of a record in words: `a.csv, line 7`."""
        if self.lines is None:
            return f"{self.origin}, record {row}"
        return f"{self.origin}, line {self.lines[row]}"


def make_table(
    origin: str, names: Sequence[str], columns: Iterable[Array], lines: Array | None = None
) -> Table:
    """Return a table; refuse repeated names, no records, columns of several axes or of unequal length."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{origin}: expected every column once, got {repeated[0]!r} twice.")
    table = Table(origin, dict(zip(names, columns, strict=True)), lines)
    if not table.rows:
        raise DataError(f"{origin}: expected at least one record, got none.")
    for name, values in table.columns.items():
        if values.shape != (table.rows,):
            raise DataError(
                f"{origin}: expected {table.rows} values in {name!r}, got an array of shape {values.shape}."
            )
    return table


def object_array(values: Sequence[Any]) -> Array:
    """Return a one-dimensional array of these objects, also if they are sequences."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def is_missing(values: Array, listed: tuple[str, ...] = ()) -> Array:
    """Return which of `values` are missing."""
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

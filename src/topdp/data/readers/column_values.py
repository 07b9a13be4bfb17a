"""The values of one column of a table, as numbers or as positions in a public list, with the missing ones.

`_encoding` prepares columns for a model, and needs a fill. Statistics count missing values instead.
"""

from __future__ import annotations

import numpy as np

from topdp.base.array_types import Bools, Floats, Ints
from topdp.data.readers._encoding import category_text, numbers_of
from topdp.data.readers.raw_tables import Table, is_missing


def scaled_numbers(table: Table, column: str, limits: tuple[float, float]) -> tuple[Floats, Bools]:
    """Return the numbers of `column`, clipped to `limits` and scaled to [-1, 1]; 0 and True where missing.

    >>> table = Table("people", {"age": np.array([0.0, 75.0, np.nan, 300.0])})
    >>> [part.tolist() for part in scaled_numbers(table, "age", (0, 100))]
    [[-1.0, 0.5, 0.0, 1.0], [False, False, True, False]]
    """
    numbers, gaps = numbers_of(table, column)
    low, high = limits
    scaled = 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1
    return np.where(gaps, 0.0, scaled), gaps


def category_positions(table: Table, column: str, listed: tuple[str, ...]) -> tuple[Ints, Bools]:
    """Return the position in `listed` of each value of `column`, and which values are missing.

    The position of a value that is not listed is len(listed).
    """
    values, position = table.columns[column], {name: index for index, name in enumerate(listed)}
    positions = [position.get(category_text(value, position), len(listed)) for value in values]
    return np.array(positions), is_missing(values, listed)

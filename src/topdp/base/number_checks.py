"""Checks of single numbers, which several packages use. Budgets (ε, δ) have checks of their own."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from topdp.errors import InputError


def expect_count(name: str, count: SupportsIndex, least: int = 1) -> int:
    """Return `count` as an int. Raise InputError unless it is a whole number of at least `least`.

    >>> expect_count("releases", 0)
    Traceback (most recent call last):
        ...
    topdp.errors.InputError: Expected releases >= 1, got 0.
    """
    try:
        value = operator.index(count)
    except TypeError:
        raise InputError(f"Expected a whole number as {name}, got {count!r}.") from None
    if isinstance(count, bool) or value < least:
        raise InputError(f"Expected {name} >= {least}, got {count}.")
    return value

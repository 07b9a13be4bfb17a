"""Checks of single numbers, used by several packages. Not for budgets (ε, δ)."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from topdp.errors import InputError


def expect_count(name: str, count: SupportsIndex, least: int = 1) -> int:
    """Return `count` as an int if it is a whole number of at least `least`; else raise InputError.

    >>> expect_count("releases", 0)
    Traceback (most recent call last):
        ...
    topdp.errors.InputError: Expected releases=0 >= 1.
    """
    try:
        value = operator.index(count)
    except TypeError:
        raise InputError(f"Expected {name}={count!r} to be a whole number.") from None
    if isinstance(count, bool) or value < least:
        raise InputError(f"Expected {name}={count} >= {least}.")
    return value

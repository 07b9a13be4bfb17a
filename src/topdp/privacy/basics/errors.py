"""What the privacy room says when it will not give a number, and the checks of single numbers it shares.

`PrivacyError` is bad input, `Refused` a fair question that no analysis here covers, `PrivacyWarning` a number
that is given although the method's own claim for it is false. Not for errors of other rooms.
"""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

from topdp.errors import InputError


class PrivacyError(InputError):
    """Input for which no privacy statement has a meaning."""


class Refused(PrivacyError):  # noqa: N818 (it is what happened, and reads so)
    """A well-formed question that the asked analysis does not cover. Nothing is estimated instead."""


class PrivacyWarning(UserWarning):
    """The method's own claim is smaller than the privacy loss it really has."""


def expect_epsilon(epsilon: float) -> float:
    """`epsilon` as a float if it is a budget: finite and above 0."""
    value = _number("epsilon", epsilon)
    if not 0 < value < math.inf:
        raise PrivacyError(f"Expected epsilon={epsilon} to be finite and > 0.")
    return value


def expect_delta(delta: float) -> float:
    """`delta` as a float if it lies strictly between 0 and 1.

    >>> expect_delta(1.0)
    Traceback (most recent call last):
        ...
    topdp.privacy.basics.errors.PrivacyError: Expected 0 < delta=1.0 < 1.
    """
    value = _number("delta", delta)
    if not 0 < value < 1:
        raise PrivacyError(f"Expected 0 < delta={delta} < 1.")
    return value


def expect_count(name: str, count: SupportsIndex) -> int:
    """`count` as an int if it is a whole number of at least 1."""
    try:
        value = operator.index(count)
    except TypeError:
        raise PrivacyError(f"Expected {name}={count!r} to be a whole number.") from None
    if isinstance(count, bool) or value < 1:
        raise PrivacyError(f"Expected {name}={count} >= 1.")
    return value


def _number(name: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise PrivacyError(f"Expected {name}={value!r} to be a number.") from None

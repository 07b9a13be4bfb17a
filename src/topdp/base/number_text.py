"""Bounds as text for people: upper bounds are rounded up and lower bounds down, so the text is true, too."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def rounded_up(value: float, digits: int = 4) -> str:
    """Return `value` >= 0 with at most `digits` significant digits, never smaller than its shortest decimal.

    >>> rounded_up(1.00049), rounded_up(0.1), rounded_up(123456.0), rounded_up(0.0), rounded_up(math.inf)
    ('1.001', '0.1', '1.235e+05', '0', 'infinite')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """Return `value` >= 0 with at most `digits` significant digits, never larger than its shortest decimal.

    >>> rounded_down(1.0009), rounded_down(0.1)
    ('1', '0.1')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if math.isinf(value):
        return "infinite"
    number = Decimal(repr(float(value)))  # the decimal that stands for this float64; for 0.1 it is 0.1
    last_digit = Decimal(1).scaleb(number.adjusted() - digits + 1)
    return f"{float(number.quantize(last_digit, rounding)):.{digits}g}"


def percent_rounded_up(share: float, places: int = 2) -> str:
    """Return `share` >= 0 in percent with this number of decimal places, rounded up.

    >>> percent_rounded_up(0.08428), percent_rounded_up(0.02), percent_rounded_up(0.3141, 1)
    ('8.43', '2.00', '31.5')
    """
    in_percent = Decimal(repr(float(share))) * 100
    return f"{in_percent.quantize(Decimal(1).scaleb(-places), ROUND_CEILING):f}"

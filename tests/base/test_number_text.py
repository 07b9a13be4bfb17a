"""Bounds as text: an upper bound is never printed smaller than it is, a lower bound never larger."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from topdp.base.number_text import percent_rounded_up, rounded_down, rounded_up

bounds = st.floats(1e-12, 1e12)


@given(bounds, st.integers(1, 8))
def test_the_text_of_a_bound_holds_and_is_within_one_unit_of_its_last_digit(value, digits):
    exact = Decimal(repr(value))
    up, down = Decimal(rounded_up(value, digits)), Decimal(rounded_down(value, digits))
    assert down <= exact <= up
    assert up - down <= Decimal(1).scaleb(exact.adjusted() - digits + 1)


@given(st.floats(0, 1), st.integers(0, 4))
def test_a_percentage_is_rounded_up(share, places):
    exact, said = 100 * Decimal(repr(share)), Decimal(percent_rounded_up(share, places))
    assert exact <= said <= exact + Decimal(1).scaleb(-places)


def test_a_value_just_above_a_round_number_is_not_printed_as_that_number():
    assert rounded_up(1.00049) == "1.001" and rounded_down(0.99999) == "0.9999"

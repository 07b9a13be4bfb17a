"""The table and the remarks of what members gain."""

import pytest

from topdp.views.terminal.gains_table import GAIN_HEADERS, MAX_GAIN_ROWS, gain_remarks, gain_rows, gains_table

EMPTY = {"alone": None, "together": None, "costly": [], "reason": "σ is set."}


def gains(alone, together, costly=()):
    count = len(alone)
    return {
        "records": [100] * count, "epsilon": [1.0] * count, "alone": alone, "together": together,
        "costly": list(costly),
    }  # fmt: skip


def test_members_with_equal_numbers_share_a_row():
    rows = gain_rows(gains([9.0, 9.0, 9.0, 4.0, 9.0], [1.5, 1.5, 1.5, 8.0, 1.5]))
    assert rows == [
        ["0, 1, 2, 4", "100", "1", "9", "1.5", "6 times less noise"],
        ["3", "100", "1", "4", "8", "2 times the noise"],
    ]
    assert all(len(row) == len(GAIN_HEADERS) for row in rows)
    assert gain_rows(gains([9.0] * 30, [1.5] * 30))[0][0] == "0 to 29"
    assert gain_rows(gains([9.0] * 7 + [1.0, 9.0], [1.0] * 9))[0][0] == "0, 1, 2, 3, 4 and 3 more"


def test_a_long_table_says_what_is_left_out():
    rows = gain_rows(gains([float(n) for n in range(2, 62)], [1.0] * 60))
    assert len(rows) == MAX_GAIN_ROWS + 1 and rows[-1][0] == "and 20 more rows in --json"


def test_without_gains_there_is_neither_table_nor_remark():
    assert gains_table(EMPTY) is None and gain_remarks(EMPTY) == []


def test_remarks_name_members_that_gain_nothing_or_cost_the_others():
    cost = {"agent": 2, "noise_of_others": 0.704, "settings": [], "epsilon": None, "weight": None}
    first, second = gain_remarks(gains([5.0, 9.0, 50.0], [6.0, 6.0, 6.0], [cost]))
    assert first.startswith("Member 0 has no less noise together than alone.")
    assert second.startswith("Member 2 makes the average worse for the others: without it, they would have ")
    assert "about 70% of the noise. Estimated" in second
    cost |= {"settings": ["train.weighting=records"], "epsilon": 1.2071, "weight": 0.809}
    (words,) = gain_remarks(gains([9.0], [1.0], [cost]))
    assert (
        "It would not with train.weighting=records, or with an ε of about 1.21 for it, or with a weight"
        in words
    )
    assert "of about 0.8 for it (privacy.weights)." in words


@pytest.mark.parametrize(("count", "more"), [(5, None), (8, "3 more members make it worse")])
def test_only_a_few_costly_members_have_a_sentence(count, more):
    costs = [
        {"agent": agent, "noise_of_others": 0.5, "settings": [], "epsilon": 2.0, "weight": None}
        for agent in range(count)
    ]
    words = gain_remarks(gains([9.0] * count, [1.0] * count, costs))
    assert len(words) == 5 + (more is not None) and (more or "Member 4") in words[-1]

"""Token ids of text: the same on every machine, and independent of other texts."""

from __future__ import annotations

import pytest

from topdp.data.readers.token_ids import token_ids
from topdp.errors import InputError


def test_hashed_ids_are_fixed_numbers() -> None:
    # CRC-32 of "spam" and "!" by zlib, as in the standard of the checksum, mod 999, plus 1.
    import binascii

    expected = [1 + binascii.crc32(word) % 999 for word in (b"spam", b"!")]
    assert token_ids(["Spam!"], length=3, vocabulary=1000).tolist() == [[*expected, 0]]


def test_ids_of_a_text_do_not_depend_on_other_texts() -> None:
    alone = token_ids(["free money now"], vocabulary=50)
    among = token_ids(["other words entirely", "free money now", "money"], vocabulary=50)
    assert alone[0].tolist() == among[1].tolist()
    assert among.min() == 0 and among.max() < 50


def test_texts_are_cut_and_padded_by_words_or_characters() -> None:
    listed = ["a", "b"]
    assert token_ids(["a b a b", ""], 3, listed).tolist() == [[2, 3, 2], [0, 0, 0]]
    assert token_ids(["ab c"], 5, listed, unit="character").tolist() == [[2, 3, 1, 1, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one text",), r"got one text\. Give \[text\]"),
        ((["a"], 0), "Expected length >= 1"),
        ((["a"], 4, 2), "at least 3 ids"),
        ((["a"], 4, 99, "byte"), "Expected unit"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        token_ids(*arguments)  # type: ignore[arg-type]

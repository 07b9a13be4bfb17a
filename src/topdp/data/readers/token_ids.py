"""Text as token ids of a fixed length: hashed, or numbered by a public list. No vocabulary is learned.

**Guarantees.** The ids of a text depend on that text alone. A vocabulary that is built from private texts
would disclose which words occur in them, and even its length would disclose something. Words are therefore
hashed by default. Two words may then share an id: with 4096 ids and a few thousand frequent words, some do.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import islice

import numpy as np

from topdp.base.array_types import Ints
from topdp.errors import InputError

PADDING_ID = 0
UNKNOWN_ID = 1
"""If the vocabulary is a public list: the id of every word that is not on it."""
_WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


def token_ids(
    texts: Sequence[str], length: int = 64, vocabulary: int | Sequence[str] = 4096, unit: str = "word"
) -> Ints:
    """Return an array [texts, length]: the ids of the first `length` words or characters, then zeros.

    If `vocabulary` is a number, words are hashed into that many ids. If it is a public list of words, word k
    of the list has the id k + 2, and all other words have the id 1. Texts are lower-cased. A word consists of
    letters and digits, or is one other character. An embedding needs `vocabulary` rows; for a list, it needs
    two rows more than the list has words.

    >>> token_ids(["The cat.", "the"], length=4, vocabulary=["the", "cat"]).tolist()
    [[2, 3, 1, 0], [2, 0, 0, 0]]
    >>> hashed = token_ids(["the cat the"], length=4, vocabulary=1000)
    >>> bool(hashed[0, 0] == hashed[0, 2]), bool((hashed[0, :3] > 0).all()), int(hashed[0, 3])
    (True, True, 0)
    """
    if isinstance(texts, str):
        raise InputError("Expected a list of texts, got one text. Give [text] instead.")
    if length < 1:
        raise InputError(f"Expected length >= 1, got {length}.")
    if unit not in ("word", "character"):
        raise InputError(f"Expected unit 'word' or 'character', got {unit!r}.")
    if isinstance(vocabulary, int):
        if vocabulary < 3:
            raise InputError(f"Expected a vocabulary of at least 3 ids, got {vocabulary}.")
        id_of: dict[str, int] = {}
    else:
        id_of = {word.lower(): at + 2 for at, word in enumerate(vocabulary)}
    ids = np.full((len(texts), length), PADDING_ID, np.int64)
    for row, text in enumerate(texts):
        for at, token in enumerate(_tokens(text, unit, length)):
            if token not in id_of:
                # Unlike Python's hash(), CRC-32 is the same on every machine.
                id_of[token] = (
                    1 + zlib.crc32(token.encode("utf-8", "replace")) % (vocabulary - 1)
                    if isinstance(vocabulary, int)
                    else UNKNOWN_ID
                )
            ids[row, at] = id_of[token]
    return ids


def _tokens(text: str, unit: str, length: int) -> list[str]:
    lower = text.lower()
    if unit == "character":
        return list(lower[:length])
    return [match.group() for match in islice(_WORD_PATTERN.finditer(lower), length)]

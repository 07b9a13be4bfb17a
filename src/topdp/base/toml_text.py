"""TOML from outside, refused before it is parsed where that would take minutes. What it means: its readers.

Python's parser takes time that grows with the square of a dotted key, and memory that grows with the file.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from topdp.errors import InputError

LARGEST = 64 * 2**20
"""Letters: a manifest of 10,000 agents has a sixth of that."""

MOST_PARTS = 32
"""Of a dotted key; those of topdp have four at most."""

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
# Begins only where a key can begin, so that no letter is looked at again and again.
_TOO_DEEP = re.compile(rf"""(?<![\w.'"\\-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MOST_PARTS}}}""")


class TomlError(InputError):
    """A text that no configuration, manifest or card is like."""


def parsed(text: str) -> dict[str, Any]:
    """As `tomllib.loads`, of a text that has sensible keys.

    >>> parsed("a.b = 1")
    {'a': {'b': 1}}
    """
    if len(text) > LARGEST:
        raise TomlError(f"expected at most {LARGEST} letters, got {len(text)}")
    if found := _TOO_DEEP.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise TomlError(f"expected keys of at most {MOST_PARTS} parts, got one with more in line {line}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("its brackets stand too deep in each other") from None

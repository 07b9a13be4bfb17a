"""TOML from outside, refused before it is parsed where that would take minutes. What it means: its readers.

Python's parser takes time that grows with the square of a dotted key, and memory that grows with the file.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from topdp.errors import InputError

MAX_TOML_CHARACTERS = 64 * 2**20
"""Letters: a manifest of 10,000 agents has a sixth of that."""

MAX_KEY_PARTS = 32
"""Of a dotted key; those of topdp have four at most."""

_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
# Begins only where a key can begin, so that no letter is looked at again and again.
_KEY_WITH_TOO_MANY_PARTS = re.compile(
    rf"""(?<![\w.'"\\-]){_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART}){{{MAX_KEY_PARTS}}}"""
)


class TomlError(InputError):
    """A text that no configuration, manifest or card is like."""


def parse_toml(text: str) -> dict[str, Any]:
    """As `tomllib.loads`, of a text that has sensible keys.

    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    """
    if len(text) > MAX_TOML_CHARACTERS:
        raise TomlError(f"expected at most {MAX_TOML_CHARACTERS} letters, got {len(text)}")
    if found := _KEY_WITH_TOO_MANY_PARTS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise TomlError(f"expected keys of at most {MAX_KEY_PARTS} parts, got one with more in line {line}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("its brackets stand too deep in each other") from None

"""Parse TOML text from untrusted files, and reject text whose parsing would take minutes.

Python's parser takes time quadratic in the length of a dotted key, and memory linear in the file.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from topdp.errors import InputError

# The longest text that is parsed. The manifest of 10,000 agents is a sixth as long.
MAX_TOML_CHARACTERS = 64 * 2**20

# The largest number of parts of a dotted key. The keys of topdp have at most four.
MAX_KEY_PARTS = 32

_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
# Matches only where a key can begin, so that the time of the search is linear in the length of the text.
_KEY_WITH_TOO_MANY_PARTS = re.compile(
    rf"""(?<![\w.'"\\-]){_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART}){{{MAX_KEY_PARTS}}}"""
)


class TomlError(InputError):
    """TOML text that exceeds the limits of this module."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the keys and values in `text`, like `tomllib.loads`.

    Raise TOMLDecodeError if `text` is not TOML. Raise TomlError if it is too long or too deeply nested, or if
    a key has too many parts. Both errors are ValueErrors.

    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    """
    if len(text) > MAX_TOML_CHARACTERS:
        raise TomlError(f"expected at most {MAX_TOML_CHARACTERS} characters, got {len(text)}")
    if match := _KEY_WITH_TOO_MANY_PARTS.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise TomlError(f"expected keys of at most {MAX_KEY_PARTS} parts, got one with more in line {line}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("its brackets are nested too deeply") from None

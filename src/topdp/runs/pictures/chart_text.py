"""Fonts for the text of pictures: characters of any script are drawn, or replaced by their codes.

DejaVu Sans, which comes with matplotlib, has Latin, Greek, Cyrillic, Arabic, Hebrew and symbols. Other
characters are drawn with a font that is installed on the machine. A character that no font has is replaced by
its code (`[U+6771]`), not by an empty box. Names come from users and are never read as formulas, so `$` is
drawn as it is. Tables and pages do not use this module, because terminals and browsers have their own fonts.
"""

from __future__ import annotations

import logging
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

DEFAULT_FONT = "DejaVu Sans"
SPACES = {"\n", " "}
BOX_FONT = "Last Resort"  # comes with matplotlib, and draws every character as a box


def make_drawable(figure: Figure) -> None:
    """Set fonts for the texts of a figure, and replace characters that no font has by codes."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        if missing := _missing(text.get_text()):
            families, undrawable = fonts_for(missing)
            if len(families) > 1:
                text.set_fontfamily([*families])
                text.set_fontweight("normal")  # few other fonts have a bold face
            text.set_text(with_codes(text.get_text(), undrawable))


def wrapped(text: str, width: int) -> str:
    """Break a title into lines of at most `width` characters. Wide characters count twice.

    >>> wrapped("MNIST, 30 agents, ε = 1 (adaptive)", 18)
    'MNIST, 30 agents,\\nε = 1 (adaptive)'
    """
    shown = with_codes(text, fonts_for(_missing(text))[1])
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in shown)
    return "\n".join(
        textwrap.fill(line, max(10, width - wide), break_on_hyphens=False) for line in shown.splitlines()
    )


def with_codes(text: str, missing: Iterable[str]) -> str:
    """Replace each sequence of `missing` characters by the code of the first and the count of the rest.

    >>> with_codes("Spital 東京", "東京"), with_codes("a\\tb", "\\t")
    ('Spital [U+6771 +1]', 'a[U+0009]b')
    """

    def code(run: re.Match[str]) -> str:
        first, others = run[0][0], len(run[0]) - 1
        return f"[U+{ord(first):04X}{f' +{others}' if others else ''}]"

    undrawable = "|".join(map(re.escape, missing))
    return re.sub(f"({undrawable})+", code, text) if undrawable else text


@cache
def fonts_for(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return font families that together have `letters`, the default first, and those that no font has."""
    families, missing = [DEFAULT_FONT], set(letters)
    for name, path, number in _other_fonts():
        if not missing:
            break
        if available := missing & _letters(path, number):
            families.append(name)
            missing -= available
    return tuple(families), frozenset(missing)


def _missing(text: str) -> frozenset[str]:
    """Return the characters of `text` that the default font does not have."""
    return frozenset(set(text) - SPACES - _default_letters())


@cache
def _default_letters() -> frozenset[str]:
    """Return the characters that the default font has both upright and bold, because titles are bold."""
    upright, bold = (
        font_manager.FontProperties(family=DEFAULT_FONT, weight=weight) for weight in ("normal", "bold")
    )
    return _letters(font_manager.findfont(upright)) & _letters(font_manager.findfont(bold))


def _other_fonts() -> Iterator[tuple[str, str, int]]:
    """Yield the family, file and face of each font of this machine except the default, in a fixed order.

    Fonts with many characters come first.
    """
    entries = {
        (entry.name, entry.fname, getattr(entry, "index", 0))
        for entry in font_manager.fontManager.ttflist
        if entry.name != DEFAULT_FONT and not entry.name.startswith(BOX_FONT) and entry.style == "normal"
    }
    yield from sorted(entries, key=lambda entry: ("Noto Sans" not in entry[0], entry))


@cache
def _letters(path: str, number: int = 0) -> frozenset[str]:
    try:
        font = FT2Font(path, face_index=number) if number else FT2Font(path)
        return frozenset(map(chr, font.get_charmap()))
    except (OSError, RuntimeError, TypeError) as error:  # a font that cannot be read is skipped
        logging.getLogger(__name__).debug("%s: %s", path, error)
        return frozenset()

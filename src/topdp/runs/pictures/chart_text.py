"""Text of pictures that can be drawn: letters of any script by a font that has them, or a code instead.

DejaVu Sans, which matplotlib carries, has Latin, Greek, Cyrillic, Arabic, Hebrew and symbols. For other
letters a font of the machine is looked for. Where none has a letter, its code stands there (`[U+6771]`),
and no empty box. Names are users' words and never formulas: `$` is a letter. Not for tables and pages, whose
terminals and browsers have fonts of their own.
"""

from __future__ import annotations

import logging
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
BOX_FONT = "Last Resort"  # a font of boxes, which matplotlib carries


def make_drawable(figure: Figure) -> None:
    """Every text of the figure gets fonts for its letters, and codes for those that no font has."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        if missing := _missing(text.get_text()):
            families, none = fonts_for(missing)
            if len(families) > 1:
                text.set_fontfamily([*families])
                text.set_fontweight("normal")  # few other fonts have a bold one
            text.set_text(with_codes(text.get_text(), none))


def drawable(text: str) -> str:
    """The text with codes for letters that no font here has."""
    return with_codes(text, fonts_for(_missing(text))[1])


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many letters, of which wide ones count twice: nothing is cut off at the edge.

    >>> wrapped("MNIST, 30 agents, ε = 1 (adaptive)", 18)
    'MNIST, 30 agents,\\nε = 1 (adaptive)'
    """
    shown = drawable(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in shown)
    return "\n".join(
        textwrap.fill(line, max(10, width - wide), break_on_hyphens=False) for line in shown.splitlines()
    )


def with_codes(text: str, missing: Iterable[str]) -> str:
    """The text with the code of the first letter in place of each run of `missing` ones, and how many more.

    >>> with_codes("Spital 東京", "東京"), with_codes("a\\tb", "\\t")
    ('Spital [U+6771 +1]', 'a[U+0009]b')
    """
    lost, written, run = set(missing), "", ""
    for letter in [*text, ""]:
        if letter and letter in lost:
            run += letter
            continue
        if run:
            written += f"[U+{ord(run[0]):04X}{f' +{len(run) - 1}' if len(run) > 1 else ''}]"
        written, run = written + letter, ""
    return written


@cache
def fonts_for(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """(families, ours first, that have the letters between them; letters that none has)."""
    families, left = [DEFAULT_FONT], set(letters)
    for name, path, number in _others():
        if not left:
            break
        if found := left & _letters(path, number):
            families.append(name)
            left -= found
    return tuple(families), frozenset(left)


def _missing(text: str) -> frozenset[str]:
    return frozenset(set(text) - SPACES - _of_ours())


@cache
def _of_ours() -> frozenset[str]:
    """Upright and bold: titles are bold."""
    wanted = (
        font_manager.FontProperties(family=DEFAULT_FONT, weight=weight) for weight in ("normal", "bold")
    )
    upright, bold = (_letters(font_manager.findfont(one)) for one in wanted)
    return upright & bold


def _others() -> Iterator[tuple[str, str, int]]:
    """The fonts of this machine as (family, file, face), wide ones first, always in one order."""
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
    except (OSError, RuntimeError, TypeError) as error:  # a font that cannot be read is no font
        logging.getLogger(__name__).debug("%s: %s", path, error)
        return frozenset()

"""The common style of all matplotlib figures: colours, sizes, fonts, and the look of each method.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers can
distinguish. Every method has its own line style and marker, so that figures can be read in black and white.
Build figures inside `house_style()` with `matplotlib.figure.Figure` and write them with `save`. Do not use
pyplot, so that no display or window is needed. Sizes, fonts and the look of each method are in
`chart_style.toml`.
"""

from __future__ import annotations

import io
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from topdp.base.files import make_folder, write_atomically
from topdp.errors import InputError
from topdp.runs.pictures.chart_text import make_drawable

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
RED = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"
INK = "#222222"
PALE = "#D9D9D9"

FORMATS = (".png", ".svg", ".pdf")
TITLE_LETTERS = 52  # in one line of a title, in a picture of the default width
PNG_COLOURS = 128  # enough for lines and text, and a third of the file size

_SETTINGS = tomllib.loads(Path(__file__).with_name("chart_style.toml").read_text(encoding="utf-8"))
_RC: dict[str, Any] = _SETTINGS["matplotlib"]
# Keyword arguments of `Axes.plot` for each method of `topdp.runs.methods`. Names that end with -3 or -15 are
# methods with that number of colluders.
METHOD_LOOKS: dict[str, dict[str, Any]] = _SETTINGS["method-looks"]
# The usual name of each data set of the catalogue.
DATA_TITLES: dict[str, str] = _SETTINGS["data-titles"]
CYCLE = cycler(color=[BLUE, RED, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK])


def look(method: str) -> dict[str, Any]:
    """Return keyword arguments of `Axes.plot` for a method. For another label, they follow from its text.

    >>> look("top-dp")["color"] == RED, look("mine") == look("mine")
    (True, True)
    """
    if method in METHOD_LOOKS:
        arguments = METHOD_LOOKS[method]
        line = arguments["linestyle"]  # the name of a style, or its offset and dashes
        return {**arguments, "linestyle": line if isinstance(line, str) else tuple(line)}
    number = zlib.crc32(method.encode())
    colours = (BLUE, GREEN, PURPLE, ORANGE, GREY)
    lines, markers = ("-", "--", "-.", ":"), ("<", ">", "p", "h")
    return {
        "color": colours[number % len(colours)],
        "linestyle": lines[number // 8 % len(lines)],
        "marker": markers[number // 64 % len(markers)],
    }


def data_title(name: str) -> str:
    """Return the usual name of a data set; for a file, the name of the file without its suffix.

    >>> data_title("cifar10"), data_title("/data/mine.npz")
    ('CIFAR-10', 'mine')
    """
    return DATA_TITLES.get(Path(name).stem, Path(name).stem)


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the common style inside the block, and restore the caller's settings afterwards.

    >>> with house_style():
    ...     figure = Figure()
    >>> [float(length) for length in figure.get_size_inches()]
    [5.6, 3.8]
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_RC, "axes.prop_cycle": CYCLE})
        yield


def percent_axis(axes: Axes) -> None:
    """Label the vertical axis in percent. Values above 100% get no label."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%" if value < 1 + 1e-9 else "")


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, as the suffix of `path` states, and return the path.

    A missing folder is created. The picture is drawn in memory first, so that an error leaves no incomplete
    file. Characters that no font has are replaced by codes (`chart_text.py`).
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"Expected a picture with a name ending in {', '.join(FORMATS)}, got {path.name!r}.")
    picture = io.BytesIO()
    date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    make_drawable(figure)
    with house_style():
        figure.savefig(picture, format=suffix[1:], metadata=date)
    make_folder(path.parent)
    write_atomically(path, _with_few_colours(picture) if suffix == ".png" else picture.getvalue())
    return path


def _with_few_colours(picture: io.BytesIO) -> bytes:
    small = io.BytesIO()
    with Image.open(picture) as image:
        # The method "median cut" would lose the colours of thin parts, such as one line of a legend.
        method = Image.Quantize.MAXCOVERAGE
        palette = image.convert("RGB").quantize(PNG_COLOURS, method=method, dither=Image.Dither.NONE)
        palette.save(small, "png", optimize=True, dpi=image.info.get("dpi"))
    return small.getvalue()

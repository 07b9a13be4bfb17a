"""Groups of lines that coincide in a picture, which are drawn as one line with a common label.

A line under another one would seem to be missing. Only for pictures: tables and CSV files keep every line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

MIN_LINE_DISTANCE = 1e-3
"""A share of the range of a picture; a drawn line is several times as wide."""


def coinciding(lines: Mapping[str, Sequence[ArrayLike]]) -> dict[str, list[str]]:
    """label -> all labels that are drawn with it. `lines`: places along the axis, then values there.

    Lines coincide if they have the same places and nowhere differ by more than `MIN_LINE_DISTANCE` of the
    range.

    >>> better, worse = ([0, 1], [0.1, 0.9]), ([0, 1], [0.1, 0.5])
    >>> coinciding({"top": better, "plain": worse, "top-dp": better})
    {'top': ['top', 'top-dp'], 'plain': ['plain']}
    """
    arrays = {label: [np.asarray(part, np.float64) for part in line] for label, line in lines.items()}
    finite = [part[np.isfinite(part)] for line in arrays.values() for part in line[1:]]
    values = np.concatenate([np.empty(0), *finite])
    tolerance = MIN_LINE_DISTANCE * float(np.ptp(values)) if values.size else 0.0
    groups: dict[str, list[str]] = {}
    for label, line in arrays.items():
        first = next((other for other in groups if _coincide(line, arrays[other], tolerance)), label)
        groups.setdefault(first, []).append(label)
    return groups


def _coincide(line: Sequence[np.ndarray], other: Sequence[np.ndarray], tolerance: float) -> bool:
    return len(line) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=tolerance if number else 0.0, equal_nan=True)
        for number, (a, b) in enumerate(zip(line, other, strict=True))
    )


def joined_label(labels: Sequence[str]) -> str:
    """Return one label for lines that are drawn as one.

    >>> joined_label(["top"]), joined_label(["top", "top-dp"])
    ('top', 'top = top-dp')
    """
    return " = ".join(labels)

"""Lines of a picture that lie on each other are drawn as one, whose label names all of them.

A line under another one cannot be seen, and whoever looks takes it for missing. Only drawing: numbers, tables
and CSV files keep every line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

MIN_LINE_DISTANCE = 1e-3
"""Of the whole range of a picture: a line is several times as wide."""


def coinciding(lines: Mapping[str, Sequence[ArrayLike]]) -> dict[str, list[str]]:
    """label -> all labels that are drawn with it. `lines`: places along the axis, then what is drawn there.

    Lines coincide if they have the same places, and nowhere differ by more than `MIN_LINE_DISTANCE` of the
    range.

    >>> better, worse = ([0, 1], [0.1, 0.9]), ([0, 1], [0.1, 0.5])
    >>> coinciding({"top": better, "plain": worse, "top-dp": better})
    {'top': ['top', 'top-dp'], 'plain': ['plain']}
    """
    arrays = {label: [np.asarray(one, np.float64) for one in given] for label, given in lines.items()}
    known = [one[np.isfinite(one)] for given in arrays.values() for one in given[1:]]
    values = np.concatenate([np.empty(0), *known])
    apart = MIN_LINE_DISTANCE * float(np.ptp(values)) if values.size else 0.0
    groups: dict[str, list[str]] = {}
    for label, given in arrays.items():
        first = next((other for other in groups if _same(given, arrays[other], apart)), label)
        groups.setdefault(first, []).append(label)
    return groups


def _same(one: Sequence[np.ndarray], other: Sequence[np.ndarray], apart: float) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=apart if number else 0.0, equal_nan=True)
        for number, (a, b) in enumerate(zip(one, other, strict=True))
    )


def joined_label(labels: Sequence[str]) -> str:
    """One label for lines that are drawn as one.

    >>> joined_label(["top"]), joined_label(["top", "top-dp"])
    ('top', 'top = top-dp')
    """
    return " = ".join(labels)

"""The random streams of a run, each of which is derived from a seed, a purpose, and indices such as a round.

A stream depends only on these values, not on earlier draws. So a run that is resumed, pruned or split over
machines draws the same numbers. Streams are not secret: real agents draw their noise from the random numbers
of the operating system instead.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Return the random generator of `seed`, `purpose` and `index` (for example, round and agent).

    >>> bool(stream(0, "cover", 3).random() == stream(0, "cover", 3).random())
    True
    >>> bool(stream(0, "cover", 3).random() == stream(0, "pairs", 3).random())
    False
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])

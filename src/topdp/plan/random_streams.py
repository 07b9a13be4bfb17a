"""All random streams of a run, each derived from (seed, purpose, round, agent).

A stream depends on its name only, not on earlier draws: so a run that is resumed, pruned or split over
machines draws the same numbers. Not for secrets: real agents take their noise from the operating system.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Return the generator named by `seed`, `purpose` and `index`.

    >>> bool(stream(0, "cover", 3).random() == stream(0, "cover", 3).random())
    True
    >>> bool(stream(0, "cover", 3).random() == stream(0, "pairs", 3).random())
    False
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])

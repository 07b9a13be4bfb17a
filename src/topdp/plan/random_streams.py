"""All random streams of a run, each derived from (seed, purpose, round, agent).

A stream depends only on its name, not on earlier draws. So a run that is resumed, pruned or split over
machines draws the same numbers. Do not use streams for secrets: real agents take their noise from the
operating system.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Return the generator named by `seed`, `purpose` and `index` (such as round and agent).

    >>> bool(stream(0, "cover", 3).random() == stream(0, "cover", 3).random())
    True
    >>> bool(stream(0, "cover", 3).random() == stream(0, "pairs", 3).random())
    False
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])

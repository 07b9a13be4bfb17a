"""Every random stream of a run, derived from (seed, purpose, round, agent). Nothing else draws numbers.

A stream depends on its name only, never on what was drawn before it: so a run can be resumed, pruned or
split over machines and still draw the same numbers. Not for secrets: real agents take their noise from the
operating system.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """The generator named by `seed`, `purpose` and `index`.

    >>> bool(stream(0, "cover", 3).random() == stream(0, "cover", 3).random())
    True
    >>> bool(stream(0, "cover", 3).random() == stream(0, "pairs", 3).random())
    False
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])

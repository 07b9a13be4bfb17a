"""Loops that Numba makes machine code of: compiled when they are first called, and kept on disk where it can.

For what neither torch nor NumPy does in one pass over memory. Python's lock is free while such a loop runs,
so threads can share its work. Sums are not reordered and no two steps are fused: the bits are the same on
every processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """The same function as machine code; its arguments are numbers and NumPy's arrays."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        made: Loop = njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder to keep it in: every process compiles for itself
        made = njit(**options)(loop)
    return made

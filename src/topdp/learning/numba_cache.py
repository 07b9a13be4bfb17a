"""Loops that Numba makes machine code of: compiled when they are first called, and kept on disk where it can.

For what neither torch nor NumPy does in one pass over memory. Python's lock is free while such a loop runs,
so threads can share its work. Sums are not reordered and no two steps are fused: the bits are the same on
every processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import njit
from numba.core.dispatcher import Dispatcher

Loop = Callable[..., Any]


def compiled(loop: Loop) -> Loop:
    """The same function as machine code; its arguments are numbers and NumPy's arrays."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        made: Any = njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder to keep it in: every process compiles for itself
        made = njit(**options)(loop)
    else:
        _ignore_cache_errors(made._cache)
        # Numba looks at the file of the loop alone, and would keep what it was when it calls others.
        with suppress(OSError):  # of an archive, it looks at the whole
            made._cache._cache_file._source_stamp = _source_stamp(loop)
    compiled_loop: Loop = made
    return compiled_loop


def compiled_for(types: str) -> Callable[[Loop], Loop]:
    """As `compiled`, at once and for arguments of these `types` alone, as Numba writes them.

    Whether arrays have gaps makes no difference then: what is called with either is compiled once.
    """

    def compile(loop: Loop) -> Loop:
        made: Any = compiled(loop)
        made.compile(types)
        made.disable_compile()
        compiled_loop: Loop = made
        return compiled_loop

    return compile


def _source_stamp(loop: Loop) -> list[tuple[str, float, int]]:
    """When the files of a loop, and of the loops that it calls, were changed, and how long they are."""
    loops, files = [loop], set()
    while loops:
        one = loops.pop()
        files.add(one.__code__.co_filename)
        called = (one.__globals__.get(name) for name in one.__code__.co_names)
        loops += [other.py_func for other in called if isinstance(other, Dispatcher)]
    found = ((file, os.stat(file)) for file in sorted(files))
    return [(file, about.st_mtime, about.st_size) for file, about in found]


def _ignore_cache_errors(kept: Any) -> None:
    """What is damaged on disk is compiled anew; what cannot be kept there is not: no run ends for that."""
    load, save = kept.load_overload, kept.save_overload

    def load_or_compile(*asked: Any) -> Any:
        try:
            return load(*asked)
        except Exception:  # bytes that are no machine code can raise anything
            with suppress(Exception):
                kept.flush()
            return None

    def save_if_possible(*found: Any) -> None:
        with suppress(Exception):
            save(*found)

    kept.load_overload, kept.save_overload = load_or_compile, save_if_possible

"""Loops compiled to machine code by Numba on their first call, and cached on disk where possible.

Such loops are for work that neither torch nor NumPy can do in one pass over memory. Compiled loops release
the GIL, so threads can share the work. Sums are not reordered and no two operations are fused, so the results
are the same bit for bit on every processor.
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
    """Return `loop` as machine code. The arguments of a call must be numbers and NumPy arrays."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        dispatcher: Any = njit(cache=True, **options)(loop)
    except RuntimeError:  # there is no folder for the cache, so every process compiles the loop itself
        dispatcher = njit(**options)(loop)
    else:
        _ignore_cache_errors(dispatcher._cache)
        # Numba checks only the file of the loop itself, and would miss changes in the loops that it calls.
        with suppress(OSError):  # the code is in an archive; Numba checks the archive instead
            dispatcher._cache._cache_file._source_stamp = _source_stamp(loop)
    compiled_loop: Loop = dispatcher
    return compiled_loop


def _source_stamp(loop: Loop) -> list[tuple[str, float, int]]:
    """Return (file, modification time, size) of each file with the loop or with a loop that it calls."""
    loops, files = [loop], set()
    while loops:
        current = loops.pop()
        files.add(current.__code__.co_filename)
        called = (current.__globals__.get(name) for name in current.__code__.co_names)
        loops += [other.py_func for other in called if isinstance(other, Dispatcher)]
    stats = ((file, os.stat(file)) for file in sorted(files))
    return [(file, stat.st_mtime, stat.st_size) for file, stat in stats]


def _ignore_cache_errors(cache: Any) -> None:
    """Let Numba compile again if the cache is damaged, and continue if the cache cannot be written.

    Neither error then ends a run.
    """
    load, save = cache.load_overload, cache.save_overload

    def load_or_compile(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # a damaged file can cause any error
            with suppress(Exception):
                cache.flush()
            return None

    def save_if_possible(*arguments: Any) -> None:
        with suppress(Exception):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_or_compile, save_if_possible

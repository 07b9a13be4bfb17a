"""Loops compiled to machine code by Numba on their first call, and cached on disk where possible.

For what neither torch nor NumPy does in one pass over memory. Compiled loops release the GIL, so threads can
share the work. Sums are not reordered and no two operations are fused: the results are the same bit for bit
on every processor.
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
    """Return the same function as machine code. Its arguments must be numbers and NumPy arrays."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        dispatcher: Any = njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder for the cache: every process compiles for itself
        dispatcher = njit(**options)(loop)
    else:
        _ignore_cache_errors(dispatcher._cache)
        # Numba checks only the loop's own file, and would miss changes in the loops that it calls.
        with suppress(OSError):  # in an archive, Numba checks the archive
            dispatcher._cache._cache_file._source_stamp = _source_stamp(loop)
    compiled_loop: Loop = dispatcher
    return compiled_loop


def _source_stamp(loop: Loop) -> list[tuple[str, float, int]]:
    """The modification times and sizes of the files of a loop and of the loops it calls."""
    loops, files = [loop], set()
    while loops:
        current = loops.pop()
        files.add(current.__code__.co_filename)
        called = (current.__globals__.get(name) for name in current.__code__.co_names)
        loops += [other.py_func for other in called if isinstance(other, Dispatcher)]
    stats = ((file, os.stat(file)) for file in sorted(files))
    return [(file, stat.st_mtime, stat.st_size) for file, stat in stats]


def _ignore_cache_errors(cache: Any) -> None:
    """Compile again if the cache is damaged, and continue if it cannot be written: neither ends a run."""
    load, save = cache.load_overload, cache.save_overload

    def load_or_compile(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # damaged bytes can raise anything
            with suppress(Exception):
                cache.flush()
            return None

    def save_if_possible(*arguments: Any) -> None:
        with suppress(Exception):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_or_compile, save_if_possible

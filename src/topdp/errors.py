"""One family of errors, and the exit codes of the command line.

Every error that topdp raises on purpose is a `TopdpError`: its message says what was expected, what came and
what to do. The command line prints that message and ends with `code`. Anything else is a fault, ours or of a
user's own model, and ends with its traceback and code 1.

A room may have errors of its own, each a child of one of those below; their codes are set here only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """How the command `topdp` ends."""

    DONE = 0
    UNEXPECTED = 1
    """A fault: a traceback says where. Never raised on purpose."""
    INPUT = 2
    BUDGET = 3
    TRUST = 4
    DATA = 5
    UNAVAILABLE = 6
    INTERRUPTED = 130


class TopdpError(Exception):
    """What topdp says when it cannot do as asked.

    >>> from topdp.errors import InputError, TopdpError
    >>> try:
    ...     raise InputError("Expected 0 <= alpha <= 1, got 2.")
    ... except TopdpError as error:
    ...     print(int(error.code), error)
    2 Expected 0 <= alpha <= 1, got 2.
    """

    code: ClassVar[ExitCode] = ExitCode.INPUT


class InputError(TopdpError, ValueError):
    """Wrong input: a configuration, an argument, a file or folder that cannot be used as asked."""

    code = ExitCode.INPUT


class BudgetError(TopdpError):
    """A privacy budget that is used up."""

    code = ExitCode.BUDGET


class TrustError(TopdpError):
    """A peer, a key, a manifest or books that must not be relied on."""

    code = ExitCode.TRUST


class DataError(TopdpError):
    """Data that is missing, damaged or not fit for a run."""

    code = ExitCode.DATA


class UnavailableError(TopdpError):
    """Something that this machine does not give now, and may give later, such as a port that is taken."""

    code = ExitCode.UNAVAILABLE


class Interrupted(TopdpError):  # noqa: N818 - a state, not a fault
    """Stopped by Ctrl-C or a signal; what was done is kept."""

    code = ExitCode.INTERRUPTED


@contextmanager
def translate_memory_errors() -> Iterator[None]:
    """Inside, running out of memory is wrong input: asking for less of something is what helps.

    >>> with translate_memory_errors():
    ...     raise MemoryError("Unable to allocate 7 TiB")
    Traceback (most recent call last):
        ...
    topdp.errors.InputError: Not enough memory: Unable to allocate 7 TiB.
    """
    try:
        yield
    except MemoryError as error:
        raise InputError(f"Not enough memory: {error}.") from error
    except RuntimeError as error:
        # torch has an error of its own for the memory of a GPU only, a child of this one.
        if not any(words in str(error) for words in ("can't allocate memory", "out of memory")):
            raise
        raise InputError(f"Not enough memory: {str(error).splitlines()[0]}") from error

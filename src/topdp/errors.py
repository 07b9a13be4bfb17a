"""Errors that topdp raises on purpose, and the exit codes of the command line.

Every such error is a `TopdpError`. Its message says what was expected, what came, and what to do. The command
line prints the message and exits with `code`. Any other exception is a bug, in topdp or in a user's model; it
ends with a traceback and code 1.

A package may define its own errors as subclasses of those below. Exit codes are set only here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the `topdp` command."""

    DONE = 0
    UNEXPECTED = 1
    """A bug; a traceback shows where. Never raised on purpose."""
    INPUT = 2
    BUDGET = 3
    TRUST = 4
    DATA = 5
    UNAVAILABLE = 6
    INTERRUPTED = 130


class TopdpError(Exception):
    """Base class of all errors that topdp raises on purpose.

    >>> from topdp.errors import InputError, TopdpError
    >>> try:
    ...     raise InputError("Expected 0 <= alpha <= 1, got 2.")
    ... except TopdpError as error:
    ...     print(int(error.code), error)
    2 Expected 0 <= alpha <= 1, got 2.
    """

    code: ClassVar[ExitCode] = ExitCode.INPUT


class InputError(TopdpError, ValueError):
    """Wrong input: a configuration, an argument, a file or a folder that cannot be used."""

    code = ExitCode.INPUT


class BudgetError(TopdpError):
    """A privacy budget is used up."""

    code = ExitCode.BUDGET


class TrustError(TopdpError):
    """A peer, a key, a manifest or a ledger must not be relied on."""

    code = ExitCode.TRUST


class DataError(TopdpError):
    """Data is missing, damaged, or unsuitable for a run."""

    code = ExitCode.DATA


class UnavailableError(TopdpError):
    """A resource is not available now but may be later, such as a port in use."""

    code = ExitCode.UNAVAILABLE


class Interrupted(TopdpError):  # noqa: N818 - a state, not a fault
    """Ctrl-C or a signal stopped the work; finished work is kept."""

    code = ExitCode.INTERRUPTED


@contextmanager
def translate_memory_errors() -> Iterator[None]:
    """Report running out of memory as wrong input, because a smaller request helps.

    >>> with translate_memory_errors():  # doctest: +ELLIPSIS
    ...     raise MemoryError("Unable to allocate 7 TiB")
    Traceback (most recent call last):
        ...
    topdp.errors.InputError: Not enough memory: Unable to allocate 7 TiB. Use fewer agents, ...
    """
    try:
        yield
    except MemoryError as error:
        raise InputError(_out_of_memory(str(error))) from error
    except RuntimeError as error:
        # torch has its own error class only for GPU memory, a subclass of RuntimeError.
        if not any(words in str(error) for words in ("can't allocate memory", "out of memory")):
            raise
        raise InputError(_out_of_memory(str(error).splitlines()[0])) from error


def _out_of_memory(detail: str) -> str:
    cause = f"Not enough memory: {detail.rstrip('.')}." if detail else "Not enough memory."
    return f"{cause} Use fewer agents, smaller batches or a smaller model."

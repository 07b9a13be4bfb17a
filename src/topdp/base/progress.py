"""How long operations report progress: a callback. `views/terminal/progress_display.py` shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called often: what is being done, the bytes done so far, and the bytes in all where they are known.

    An empty message says that all is done.
    """

    def __call__(self, message: str, done: int = 0, total: int | None = None) -> None: ...


def silent(message: str, done: int = 0, total: int | None = None) -> None:
    """Say nothing."""

"""How fetching tells where it is: a callback, and one that draws a bar on stderr. Never writes to stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress(Protocol):
    """Called often: what is being done, the bytes done so far, and the bytes in all where they are known."""

    def __call__(self, message: str, done: int = 0, total: int | None = None) -> None: ...


def silent(message: str, done: int = 0, total: int | None = None) -> None:
    """Say nothing."""


@contextmanager
def console_progress() -> Iterator[Progress]:
    """A `Progress` that draws one line on stderr: a bar where the total is known, else a spinner."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)
        shown = ""

        def show(message: str, done: int = 0, total: int | None = None) -> None:
            nonlocal shown
            if message != shown:
                bars.reset(task)
                shown = message
            bars.update(task, description=message, completed=done, total=total)

        yield show

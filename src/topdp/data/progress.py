"""How fetching tells where it is: a callback, and one that draws a bar on stderr. Never writes to stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress(Protocol):
    """Called often: what is being done, the bytes done so far, and the bytes in all where they are known.

    An empty message says that all is done.
    """

    def __call__(self, message: str, done: int = 0, total: int | None = None) -> None: ...


def silent(message: str, done: int = 0, total: int | None = None) -> None:
    """Say nothing."""


@contextmanager
def console_progress() -> Iterator[Progress]:
    """A `Progress` that draws one line on stderr: a bar where the total is known, else a spinner.

    Where stderr is not a terminal, each message is printed once.
    """
    console = Console(stderr=True)
    shown = ""

    def say(message: str, done: int = 0, total: int | None = None) -> None:
        nonlocal shown
        if message not in ("", shown):
            console.print(message, markup=False, highlight=False, soft_wrap=True)
            shown = message

    if not console.is_terminal:
        yield say
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:

        def show(message: str, done: int = 0, total: int | None = None) -> None:
            nonlocal shown
            if message != shown:
                for task in bars.task_ids:  # a task cannot forget its total
                    bars.remove_task(task)
                if message:
                    bars.add_task(message, total=total)
                shown = message
            for task in bars.task_ids:
                bars.update(task, completed=done, total=total)

        yield show

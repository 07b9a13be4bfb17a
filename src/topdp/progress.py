"""Progress of a run on the terminal: a bar with accuracy, rounds per second and time left. stderr only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def run_progress(console: Console, title: str) -> Iterator[Callable[[int, int, dict[str, Any] | None], None]]:
    """A watcher for run.run; without a terminal it prints a line now and then instead of a bar."""
    if not console.is_terminal:
        yield _lines(console, title)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = None

        def watch(done: int, total: int, metrics: dict[str, Any] | None) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task(title, total=total, completed=done, accuracy="", speed="")
            speed = bar.tasks[0].speed
            bar.update(
                task,
                completed=done,
                accuracy=f"accuracy {metrics['accuracy']['mean']:.2%}" if metrics else "",
                speed=f"{speed:.1f} rounds/s" if speed else "",
            )

        yield watch


def _lines(console: Console, title: str) -> Callable[[int, int, dict[str, Any] | None], None]:
    shown = -1

    def watch(done: int, total: int, metrics: dict[str, Any] | None) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth != shown:
            shown = tenth
            accuracy = f", accuracy {metrics['accuracy']['mean']:.2%}" if metrics else ""
            console.print(f"{title}: round {done} of {total}{accuracy}", highlight=False)

    return watch

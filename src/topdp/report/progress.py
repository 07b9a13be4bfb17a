"""Progress of a run on the terminal: a bar with the last metric, speed and time left. stderr only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from topdp.report.metrics import last_seen

Watch = Callable[[str, int, int, dict[str, Any] | None], None]


@contextmanager
def run_progress(console: Console, title: str) -> Iterator[Watch]:
    """A watcher for run.run; without a terminal it prints a line now and then instead of a bar."""
    if not console.is_terminal:
        yield _lines(console, title)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[metric]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def watch(stage: str, done: int, total: int, metrics: dict[str, Any] | None) -> None:
            kind = stage.partition(":")[0]  # what follows is where the work of this kind is just now
            if kind not in tasks:
                tasks[kind] = bar.add_task(stage, total=total, metric="", speed="")
            task = tasks[kind]
            speed = next(t.speed for t in bar.tasks if t.id == task)
            unit = "rounds" if stage == "training" else "observers"
            bar.update(
                task,
                description=f"{title}: {stage}",
                total=total,
                completed=done,
                metric=last_seen(metrics),
                speed=f"{speed:.1f} {unit}/s" if speed else "",
            )

        yield watch


@contextmanager
def stage_progress(console: Console, title: str) -> Iterator[Callable[..., None]]:
    """A watcher for work of one stage: (done, total, note), where the note may be left out."""
    with run_progress(console, "topdp") as watch:

        def progress(done: int, total: int, note: str = "") -> None:
            watch(f"{title}: {note}" if note else title, done, total, None)

        yield progress


def _lines(console: Console, title: str) -> Watch:
    shown: tuple[str, int] | None = None

    def watch(stage: str, done: int, total: int, metrics: dict[str, Any] | None) -> None:
        nonlocal shown
        now = (stage, 10 * done // max(total, 1))
        if now != shown:
            shown = now
            what = "round" if stage == "training" else "observer"
            seen = last_seen(metrics)
            console.print(
                f"{title}: {stage}, {what} {done} of {total}{', ' if seen else ''}{seen}", highlight=False
            )

    return watch

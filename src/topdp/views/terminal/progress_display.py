"""Signs of life on stderr: what a command is doing, how far it is, and that it is still at it.

One object for a whole command; its methods are the callbacks that runs, accountants and readers of data take.
On a terminal it is a few lines that change in place and are gone at the end. Elsewhere it is plain lines:
when a stage begins, at every tenth of it, and when nothing was said for a while. Never writes to stdout.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from topdp.runs.metric_labels import last_seen

FIRST, SILENCE = 0.3, 4.0
"""Seconds until a command that said nothing says its first word, and between two words of a long stage."""

SLOWER = 1 / 15
"""Of what takes long less is said: after an hour a line every four minutes."""

UNITS = {"training": "round", "accounting": "observer", "sweeping": "run"}


class Signs(ABC):
    """Where a command is. `title` stands before all that is said, and may change on the way."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title

    def stage(self, text: str) -> None:
        """Something of unknown length begins."""
        self._at(text, text, 0, None)

    def say(self, text: str) -> None:
        """The same, for what is worth keeping on a terminal, too."""
        self.stage(text)

    def watch(self, stage: str, done: int, total: int, metrics: Mapping[str, Any] | None) -> None:
        """Called by a run after each of its steps (`runs/training_loop.py`)."""
        kind = stage.partition(":")[0]  # what follows is where the work of this kind is just now
        if kind not in UNITS:
            self.stage(stage)
            return
        self._at(kind, stage, done, total, f"{UNITS[kind]} {done} of {total}", last_seen(metrics))

    @contextmanager
    def titled(self, title: str) -> Iterator[Callable[..., None]]:
        """A watcher for one of several runs, which has a title of its own."""
        before, self.title = self.title, title
        try:
            yield self.watch
        finally:
            self.title = before

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Called by accountants."""
        self.watch(f"accounting: {note}" if note else "accounting", done, total, None)

    def fetching(self, message: str, done: int = 0, total: int | None = None) -> None:
        """Called by readers of data, with bytes; an empty message says that all is there."""
        if message:
            counted = decimal(done) + (f" of {decimal(total)}" if total else "") if done else ""
            self._at("fetching", message, done, total, counted)
        else:
            self._end("fetching")

    @abstractmethod
    def _at(
        self, kind: str, text: str, done: int, total: int | None, counted: str = "", note: str = ""
    ) -> None: ...

    def _end(self, kind: str) -> None:  # noqa: B027 - lines that were said stay
        """What is of this kind is over."""


class Lines(Signs):
    """For logs and pipes. `beat` is called often, by another thread, and speaks where nobody else does."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console, title)
        self.began = self.spoke = time.monotonic()
        self.limit = FIRST
        self._now, self._shown = "starting", ("", 0)

    def _at(
        self, kind: str, text: str, done: int, total: int | None, counted: str = "", note: str = ""
    ) -> None:
        words = ", ".join(part for part in (text, counted, note) if part)
        here = (text, 10 * done // total if total and kind in UNITS else 0)
        self._now = words
        if here != self._shown:
            self._shown = here
            self._say(words)

    def beat(self, now: float) -> None:
        if now - self.spoke >= self.limit:
            self._say(f"{self._now} ({now - self.began:.0f} s)")

    def _say(self, words: str) -> None:
        self.spoke = time.monotonic()
        self.limit = max(SILENCE, SLOWER * (self.spoke - self.began))
        self.console.print(f"{self.title}: {words}", markup=False, highlight=False, soft_wrap=True)


class Bars(Signs):
    """For terminals: a line for the stage that is on, and a bar for each kind of work that is counted."""

    def __init__(self, console: Console, title: str, bars: Progress) -> None:
        super().__init__(console, title)
        self.bars = bars
        self._tasks: dict[str, TaskID] = {}
        self.stage("starting")

    def _at(
        self, kind: str, text: str, done: int, total: int | None, counted: str = "", note: str = ""
    ) -> None:
        for other in [other for other in self._tasks if other not in (kind, *UNITS)]:
            self._end(other)
        if kind not in self._tasks:
            self._tasks[kind] = self.bars.add_task(text, total=total, counted="", note="", speed="")
        task = self._tasks[kind]
        speed = next(one.speed for one in self.bars.tasks if one.id == task) if kind in UNITS else None
        self.bars.update(
            task,
            description=f"{self.title}: {text}",
            total=total,
            completed=done,
            counted=counted,
            speed=f"{speed:.1f} {UNITS[kind]}s/s" if speed else "",
        )
        if note:
            self.bars.update(task, note=note)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)
        self.stage(text)

    def _end(self, kind: str) -> None:
        if kind in self._tasks:
            self.bars.remove_task(self._tasks.pop(kind))


@contextmanager
def signs_of_life(console: Console, title: str) -> Iterator[Signs]:
    """Around the work of a command, from before its slow imports on."""
    if console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counted]}", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
            TextColumn("{task.fields[speed]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bars:
            yield Bars(console, title, bars)
        return
    lines, over = Lines(console, title), threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            lines.beat(time.monotonic())

    thread = threading.Thread(target=beat, name="signs of life", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()

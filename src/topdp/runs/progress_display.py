"""Display the progress of a command on stderr, or of `topdp.train`. Nothing is written to stdout.

One object serves a whole command: the `Progress` to which runs, accountants and data readers report. On a
terminal it shows bars that change in place and disappear at the end. In a notebook it shows one line that
changes in place and disappears at the end. Elsewhere it prints a line when a stage begins, at every tenth of
a stage, and when no line was printed for a while.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rich import progress as rich_progress
from rich.console import Console
from rich.filesize import decimal

from topdp.base.progress import Progress, silent
from topdp.runs.metric_labels import last_seen

NOTEBOOK_LINE_SECONDS = 0.25
"""Seconds between changes of the line in a notebook."""

FIRST_LINE_SECONDS, MAX_SILENCE_SECONDS = 0.3, 4.0
"""Seconds without output until the first line of a command, and until further lines of a long stage."""

MIN_SECONDS_OF_ESTIMATE = 4.0
"""Seconds after which a line estimates how long its stage will take, if that is at least as long."""

SILENT_SHARE = 1 / 15
"""The share of a command's time so far that may pass without a line: four minutes after an hour."""

TRANSIENT_UNITS = ("", "byte")
"""A bar with one of these units is removed when another bar begins; bars with other units stay."""


def duration_text(seconds: float) -> str:
    """Return a duration as people say it.

    >>> duration_text(48.7), duration_text(100), duration_text(9000)
    ('49 s', '2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class ProgressDisplay(ABC):
    """Base class of progress displays. `title` precedes every line."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title

    def __call__(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        /,
        *,
        unit: str = "",
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Display a progress report (see `base/progress.py`)."""
        counted = ""
        if unit == "byte":
            counted = decimal(done) + (f" of {decimal(total)}" if total else "") if done else ""
        elif unit:
            counted = f"{unit} {done} of {total}"
        self._show(stage, done, total, unit, counted, last_seen(metrics))

    def announce(self, stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        """Display a progress report. On a terminal, the report stays as a line."""
        self(stage, done, total, **details)

    @abstractmethod
    def _show(self, text: str, done: int, total: int | None, unit: str, counted: str, note: str) -> None: ...


class ProgressLines(ProgressDisplay):
    """Lines for logs and pipes. Another thread often calls `beat`, which ends long silences with a line."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console, title)
        self.began = self.spoke = time.monotonic()
        self.limit = FIRST_LINE_SECONDS
        self._now, self._shown = "starting", ("", 0)
        self._stage, self._first, self._last, self._stage_began = "", 0, 0, self.began

    def _show(self, text: str, done: int, total: int | None, unit: str, counted: str, note: str) -> None:
        left = self._time_left(text, done, total) if counted else ""
        words = ", ".join(part for part in (text, counted, note, left) if part)
        tenth = (text, 10 * done // total if total and unit not in TRANSIENT_UNITS else 0)
        self._now = words
        if tenth != self._shown:
            self._shown = tenth
            self._print(words)

    def _time_left(self, stage: str, done: int, total: int | None) -> str:
        """Return about how long the stage will take, as text; empty while it is not known or short."""
        now = time.monotonic()
        if stage != self._stage or done < self._last:  # a new stage, or another pass of it
            self._stage, self._first, self._stage_began = stage, done, now
        self._last = done
        elapsed, steps = now - self._stage_began, done - self._first
        if total is None or not steps or elapsed < MIN_SECONDS_OF_ESTIMATE:
            return ""
        seconds = elapsed / steps * (total - done)
        return f"about {duration_text(seconds)} left" if seconds >= MIN_SECONDS_OF_ESTIMATE else ""

    def beat(self, now: float) -> None:
        if now - self.spoke >= self.limit:
            self._print(f"{self._now} ({now - self.began:.0f} s)")

    def _print(self, words: str) -> None:
        self.spoke = time.monotonic()
        self.limit = max(MAX_SILENCE_SECONDS, SILENT_SHARE * (self.spoke - self.began))
        self.console.print(f"{self.title}: {words}", markup=False, highlight=False, soft_wrap=True)


class ProgressBars(ProgressDisplay):
    """Bars for terminals: one for the current stage, and one for each unit of work that is counted."""

    def __init__(self, console: Console, title: str, bars: rich_progress.Progress) -> None:
        super().__init__(console, title)
        self.bars = bars
        self._tasks: dict[tuple[str, str], rich_progress.TaskID] = {}
        self("starting")

    def _show(self, text: str, done: int, total: int | None, unit: str, counted: str, note: str) -> None:
        lasting = unit not in TRANSIENT_UNITS
        kind = (unit, "") if lasting else ("", text)
        for other in [key for key in self._tasks if not key[0] and key != kind]:
            self.bars.remove_task(self._tasks.pop(other))
        if kind not in self._tasks:
            self._tasks[kind] = self.bars.add_task(text, total=total, counted="", note="", speed="")
        task = self._tasks[kind]
        speed = next(shown.speed for shown in self.bars.tasks if shown.id == task) if lasting else None
        self.bars.update(
            task,
            description=f"{self.title}: {text}",
            total=total,
            completed=done,
            counted=counted,
            speed=f"{speed:.1f} {unit}s/s" if speed else "",
        )
        if note:
            self.bars.update(task, note=note)

    def announce(self, stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        self.console.print(stage, markup=False, highlight=False)
        self(stage, done, total, **details)


class NotebookLine(ProgressDisplay):
    """One line below a cell of a notebook, which changes in place. Short operations show nothing."""

    def __init__(self, title: str, display: Callable[..., Any]) -> None:
        super().__init__(Console(quiet=True), title)
        self._display = display
        self._handle: Any = None  # of the line, once it is displayed
        self._next = time.monotonic() + FIRST_LINE_SECONDS

    def _show(self, text: str, done: int, total: int | None, unit: str, counted: str, note: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + NOTEBOOK_LINE_SECONDS
            words = ", ".join(part for part in (f"{self.title}: {text}", counted, note) if part)
            self._print({"text/plain": words})

    def close(self) -> None:
        """Remove the line."""
        if self._handle is not None:
            self._print({"text/plain": ""})

    def _print(self, content: Mapping[str, str]) -> None:
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


@contextmanager
def automatic_progress(title: str) -> Iterator[Progress]:
    """Display the progress of a Python function in a notebook or on a terminal, and nothing elsewhere."""
    if display := _notebook_display():
        line = NotebookLine(title, display)
        try:
            yield line
        finally:
            line.close()
    elif (console := Console(stderr=True)).is_terminal:
        with show_progress(console, title) as bars:
            yield bars
    else:
        yield silent


def _notebook_display() -> Callable[..., Any] | None:
    """Return the function that displays an output in a notebook; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Callable[..., Any] = import_module("IPython.display").display
    return display


@contextmanager
def show_progress(console: Console, title: str, stage: str = "") -> Iterator[ProgressDisplay]:
    """Display the progress of a command while the body of the `with` statement runs, and yield the display.

    Enter it before slow imports, so that people see that the command works. `stage`: the first stage, which
    is reported at once.
    """
    if console.is_terminal:
        columns = (
            rich_progress.SpinnerColumn(),
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.fields[counted]}", markup=False),
            rich_progress.TextColumn("{task.fields[note]}", markup=False),
            rich_progress.TextColumn("{task.fields[speed]}", markup=False),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
        )
        # What a program prints must stay on stdout if that is a file.
        is_redirected = sys.stdout.isatty()
        with rich_progress.Progress(
            *columns, console=console, transient=True, redirect_stdout=is_redirected
        ) as bars:
            display = ProgressBars(console, title, bars)
            if stage:
                display(stage)
            yield display
        return
    lines, over = ProgressLines(console, title), threading.Event()
    if stage:
        lines(stage)

    def beat() -> None:
        while not over.wait(0.1):
            lines.beat(time.monotonic())

    thread = threading.Thread(target=beat, name="progress", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()

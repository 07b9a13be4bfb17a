"""The one interface by which a long operation reports progress: a function. Shows nothing itself.

`views/terminal/progress_display.py` shows reports on a terminal or in a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """A function that receives progress reports of a long operation. Operations call it often.

    `stage`: what the operation does, in a few words. `done` of `total`: how many of its steps are complete; a
    `total` of None is not known. `unit`: what one step is ("round", "observer", "run", "byte"); empty for a
    stage without steps. `metrics`: the last evaluation, during training.

    >>> def show(stage, done=0, total=None, /, **details):
    ...     print(stage, done, total, details)
    >>> progress: Progress = show
    >>> progress("training", 3, 10, unit="round")
    training 3 10 {'unit': 'round'}
    """

    def __call__(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        /,
        *,
        unit: str = "",
        metrics: Mapping[str, Any] | None = None,
    ) -> None: ...


def silent(stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
    """Ignore all reports."""


def titled(progress: Progress, title: str) -> Progress:
    """Return a `Progress` that prefixes stages with `title`, to tell several operations apart."""

    def report(stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        progress(f"{title}: {stage}", done, total, **details)

    return report

"""The interface through which every long operation reports its progress: a function that receives reports.

`runs/progress_display.py` shows the reports on a terminal or in a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """A function that receives the progress reports of a long operation. Operations call it often.

    `stage`: what the operation is doing, in a few words. `done`: how many steps of the stage are complete.
    `total`: how many steps the stage has; None if that is not known. `unit`: what one step is ("round",
    "observer", "run", "byte"); empty for a stage without steps. `metrics`: during training, the results of
    the last evaluation.

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
    """Ignore all reports.

    >>> silent("training", 3, 10, unit="round")
    """


def titled(progress: Progress, title: str) -> Progress:
    """Return a `Progress` that prefixes stages with `title`, to tell several operations apart."""

    def report(stage: str, done: int = 0, total: int | None = None, /, **details: Any) -> None:
        progress(f"{title}: {stage}", done, total, **details)

    return report

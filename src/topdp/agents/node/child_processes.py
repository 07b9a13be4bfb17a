"""Processes that a command has started: they end before it does, or with it.

What asks the command to end is heard between two steps, so that no child is half started (`Asked`); children
are then asked in turn, and killed after a while (`ended`). A parent that is killed can do neither: its
children notice (`end_with_parent`). How an agent ends when it is asked: `shutdown`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from topdp.agents.node import shutdown
from topdp.errors import Interrupted

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndSignals:
    """While inside, a signal that asks this process to end makes `reader` readable, and does nothing else.

    What the process was told to ignore, as `nohup` does, it ignores. Threads hear no signals.
    """

    def __enter__(self) -> Self:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._by: int | None = None
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.reader)
        os.close(self._writer)

    def expect_not(self) -> None:
        """Raises Interrupted once a signal came."""
        if self._by is not None:
            raise Interrupted(
                f"Interrupted by {signal.Signals(self._by).name}: all that it started has ended."
            )

    def _hear(self, number: int, frame: object) -> None:
        if self._by is None:
            self._by = number
            os.write(self._writer, b"!")


def terminate_all(
    running: Mapping[int, BaseProcess],
    names: Sequence[str],
    say: Callable[[str], Any],
    patience: float = 2 * shutdown.SHUTDOWN_SECONDS,
) -> dict[int, int]:
    """Asks processes to end, and kills those that have not after `patience` seconds: their exit codes."""
    for process in running.values():
        process.terminate()
    codes, until = {}, time.monotonic() + patience
    for i, process in running.items():
        process.join(max(0.0, until - time.monotonic()))
        if process.exitcode is None:
            say(f"{names[i]} did not end in {patience:g} s after it was asked to, and is killed")
            process.kill()
            process.join()
        assert process.exitcode is not None
        codes[i] = process.exitcode
    return codes


def end_with_parent() -> None:
    """In a child of `multiprocessing`: asks this process to end as soon as its parent is gone.

    What the parent was told to ignore it hears: else nobody could ask it before it listens by itself.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=watch, name="parent", daemon=True).start()

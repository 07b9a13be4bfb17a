"""Child processes of a command, which end before the command does or with it.

Signals that ask the command to end take effect between two steps, so that no child is half started
(`EndSignals`). Children are then terminated, and killed after a while (`terminate_all`). If the parent is
killed, its children notice (`end_with_parent`). How an agent ends on a signal is in `shutdown`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Self

from topdp.agents.node import shutdown
from topdp.errors import Interrupted

END_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Windows has no SIGHUP."""


class EndSignals:
    """A context in which a signal that asks this process to end only makes `reader` readable.

    Signals that the process ignores, as under `nohup`, stay ignored. Only the main thread receives signals.
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

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.reader)
        os.close(self._writer)

    def expect_none(self) -> None:
        """Raise Interrupted if a signal has arrived."""
        if self._by is not None:
            raise Interrupted(
                f"Interrupted by {signal.Signals(self._by).name}: all child processes have ended."
            )

    def _hear(self, number: int, frame: object) -> None:
        if self._by is None:
            self._by = number
            os.write(self._writer, b"!")


def terminate_all(
    running: Mapping[int, BaseProcess],
    names: Sequence[str],
    log: Callable[[str], Any],
    timeout: float = 2 * shutdown.AGENT_SHUTDOWN_SECONDS,
) -> dict[int, int]:
    """Terminate processes; kill those that have not ended after `timeout` seconds. Return exit codes."""
    for process in running.values():
        process.terminate()
    codes, deadline = {}, time.monotonic() + timeout
    for i, process in running.items():
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            log(f"{names[i]} did not end within {timeout:g} s, and is killed")
            process.kill()
            process.join()
        assert process.exitcode is not None
        codes[i] = process.exitcode
    return codes


def end_with_parent() -> None:
    """End this child of `multiprocessing` as soon as its parent is gone.

    Restores SIGTERM if the parent ignores it: otherwise it could not be terminated before it has a handler.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=watch, name="parent", daemon=True).start()

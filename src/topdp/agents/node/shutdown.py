"""The end of an agent's process on a signal: orderly if possible, and always within a fixed time.

The first SIGTERM or SIGINT asks the agent to end; a second one ends the process at once. If the agent has not
ended `AGENT_SHUTDOWN_SECONDS` after the first, the log names the tasks that hang, and the process exits. The
ledger is closed first if the event loop still runs. If not, the ledger is as after a power cut, which it
survives.

What an agent does when it stops is in `runtime/agent.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from topdp.agents.wire.transport import named
from topdp.errors import ExitCode

logger = logging.getLogger("topdp.agents")

AGENT_SHUTDOWN_SECONDS = 10.0  # from the first signal to the end of the process

BLOCKED_LOOP_SECONDS = 2.0  # later, a thread ends a process whose event loop is blocked


class Shutdown:
    """Handles signals while an agent runs. `stop` asks it to end, `close` closes its ledger."""

    def __init__(self, stop: Callable[[], None], close: Callable[[], None]) -> None:
        self.stop, self.close = stop, close
        self.is_stopping = False

    def listen(self) -> None:
        """Handle signals in the running event loop from now on."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.ask, number)

    def ask(self, number: int) -> None:
        """Handle a signal: ask the agent to stop at the first one, exit at the second."""
        if self.is_stopping:
            self._exit_now(f"second signal ({signal.Signals(number).name}): the process exits immediately")
        self.is_stopping = True
        self._loop.call_later(AGENT_SHUTDOWN_SECONDS, self._exit_late)
        watcher = threading.Timer(
            AGENT_SHUTDOWN_SECONDS + BLOCKED_LOOP_SECONDS, self._exit_blocked, [threading.get_ident()]
        )
        watcher.daemon = True
        watcher.start()
        self.stop()

    def _exit_late(self) -> NoReturn:
        for task in asyncio.all_tasks(self._loop):
            logger.error("asked to stop, but still running: %s", named(task), extra={"event": "shutdown"})
        self._exit_now(f"did not end within {AGENT_SHUTDOWN_SECONDS:g} s after it was asked to stop: exits")

    def _exit_blocked(self, thread: int) -> NoReturn:
        """Exit from another thread. The ledger is not closed, because it belongs to the thread that hangs."""
        frame = sys._current_frames().get(thread)
        where = "".join(traceback.format_stack(frame)[-3:]) if frame else "nowhere"
        logger.error("asked to stop, but its event loop is blocked:\n%s", where, extra={"event": "shutdown"})
        exit_now(ExitCode.INTERRUPTED)

    def _exit_now(self, words: str) -> NoReturn:
        logger.error("%s; the same command continues", words, extra={"event": "shutdown"})
        try:
            self.close()
        finally:
            exit_now(ExitCode.INTERRUPTED)


def exit_now(code: int) -> NoReturn:
    """End the process now, without waiting for computing threads or Python's own cleanup."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader of the stream has closed it
            stream.flush()
    os._exit(code)


def exit_without_cleanup(code: int) -> None:
    """Let the command `topdp` end by `exit_now` when Python exits; elsewhere, do nothing.

    All results are on disk by then, and unloading torch would take seconds.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    program = Path(getattr(main, "__file__", None) or "-").stem
    if program == "topdp" or (spec is not None and spec.name == "topdp.__main__"):
        atexit.register(exit_now, code)

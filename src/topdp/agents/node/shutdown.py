"""How an agent's process ends when it is asked to: in order if it can, and within a stated time in any case.

The first SIGTERM or SIGINT asks the agent to end; a second one ends the process at once. Who has not ended
`LIMIT` seconds after the first is told in the log, line by line of what hung, and the process ends the hard
way. Either way the books are closed first where the loop still turns; and where it does not, they are as
after a power cut, which they are made for.

Not for what an agent does when it stops: that is `AgentLoop.run` and `Agent.run`.
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

SHUTDOWN_SECONDS = 10.0
"""Seconds from the first signal to the end of the process."""

BLOCKED_LOOP_SECONDS = 2.0
"""Seconds more, until a thread ends a process whose loop does not turn."""


class Shutdown:
    """Listens to signals while an agent lives. `stop` asks it to end, `close` closes its books."""

    def __init__(self, stop: Callable[[], None], close: Callable[[], None]) -> None:
        self.stop, self.close = stop, close
        self.asked = False

    def listen(self) -> None:
        """From here on, in the running loop."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.ask, number)

    def ask(self, number: int) -> None:
        """One more signal."""
        if self.asked:
            self._end(f"{signal.Signals(number).name} once more: ends at once")
        self.asked = True
        self._loop.call_later(SHUTDOWN_SECONDS, self._hung)
        watcher = threading.Timer(
            SHUTDOWN_SECONDS + BLOCKED_LOOP_SECONDS, self._blocked, [threading.get_ident()]
        )
        watcher.daemon = True
        watcher.start()
        self.stop()

    def _hung(self) -> NoReturn:
        for task in asyncio.all_tasks(self._loop):
            logger.error("asked to stop, and still at work: %s", named(task), extra={"event": "shutdown"})
        self._end(f"asked to stop, and had not ended after {SHUTDOWN_SECONDS:g} s: ends the hard way")

    def _blocked(self, thread: int) -> NoReturn:
        """In a thread of its own. The books are not closed: they belong to the one that hangs."""
        frame = sys._current_frames().get(thread)
        where = "".join(traceback.format_stack(frame)[-3:]) if frame else "nowhere"
        logger.error("asked to stop, and hangs:\n%s", where, extra={"event": "shutdown"})
        exit_now(ExitCode.INTERRUPTED)

    def _end(self, words: str) -> NoReturn:
        logger.error("%s; the same command continues", words, extra={"event": "shutdown"})
        try:
            self.close()
        finally:
            exit_now(ExitCode.INTERRUPTED)


def exit_now(code: int) -> NoReturn:
    """Ends the process now: threads that compute, and Python's own tidying up, are not waited for."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def exit_without_cleanup(code: int) -> None:
    """When this program ends, it ends at once: all is on disk, and taking torch and gRPC apart takes seconds.

    Does nothing where something else than the command `topdp` calls it, such as a test.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if (spec is not None and spec.name == "topdp.__main__") or _program_name(main) == "topdp":
        atexit.register(exit_now, code)


def _program_name(main: object) -> str:
    return Path(getattr(main, "__file__", None) or "-").stem

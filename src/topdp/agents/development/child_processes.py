"""Child processes of a demonstration: each is forked with torch imported, and ends with its command.

Importing torch takes most of an agent's start, and on one machine it need be done only once (`start`). Each
agent is still a process of its own, which runs the very command `topdp agent start`. Not for real sites:
there one command starts one agent.

Signals that ask the command to end take effect between two steps, so that no child is half started
(`EndSignals`). Children are then terminated, and killed after a while (`terminate_all`). If the parent is
killed, its children notice (`end_with_parent`). How an agent ends on a signal is in `node/shutdown.py`.

gRPC must not be imported before a fork (`wire/grpc_transport.py`), nor may there be threads: the server
imports neither, and computes nothing.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from topdp.agents.node.shutdown import AGENT_SHUTDOWN_SECONDS
from topdp.errors import Interrupted

PRELOADED_MODULES = ("topdp.agents.node.agent_process", "topdp.cli.agent_commands", "topdp.cli.app")
"""Imported once, before the first agent is forked."""
SINGLE_THREAD_VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Keep numerical libraries to the main thread, so that forks are safe."""
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
    timeout: float = 2 * AGENT_SHUTDOWN_SECONDS,
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


def warm_up() -> None:
    """Begin the imports, in parallel with what the caller does next."""
    if sys.platform != "linux":
        return
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload([*PRELOADED_MODULES])
    before = dict(os.environ)
    try:
        os.environ.update(SINGLE_THREAD_VARIABLES)
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def start(arguments: Sequence[str], log: Path, **variables: str) -> BaseProcess:
    """Start `topdp` with these arguments and environment variables in a process of its own.

    Its output is appended to `log`.
    """
    warm_up()
    environment = {**os.environ, **SINGLE_THREAD_VARIABLES, **variables}
    # On other systems, libraries that torch uses must not be forked, so each agent imports torch.
    linux = sys.platform == "linux"
    context = multiprocessing.get_context("forkserver") if linux else multiprocessing.get_context("spawn")
    process = context.Process(target=_run_command, args=([*arguments], environment, log), daemon=False)
    process.start()
    return process


def _run_command(arguments: list[str], environment: dict[str, str], log: Path) -> None:
    end_with_parent()
    gc.freeze()  # what was imported stays: collecting it would only copy its pages
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["topdp", *arguments]
    runpy.run_module("topdp", run_name="__main__", alter_sys=True)

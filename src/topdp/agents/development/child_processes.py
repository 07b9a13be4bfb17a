"""The child processes of a demonstration: each is forked with torch imported, and runs one command.

Importing torch takes most of an agent's start, and on one machine one import suffices (`start`). Each agent
is a separate process, which runs the same command `topdp agent start` as a real site. There, one command
starts one agent.

Signals that ask the parent to end take effect between two steps, so no child is half started
(`note_end_signals`). The parent then terminates its children, and kills those that do not end
(`terminate_all`). If the parent is killed, its children end too (`end_with_parent`). `node/shutdown.py`
describes how an agent ends on a signal.

gRPC must not be imported before a fork (`wire/grpc_transport.py`), and no threads may run. The fork server
imports no gRPC, and it computes nothing.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from topdp.agents.node.shutdown import AGENT_SHUTDOWN_SECONDS
from topdp.errors import Interrupted

PRELOADED_MODULES = ("topdp.agents.node.agent_process", "topdp.cli.agent_commands", "topdp.cli.app")
"""The modules that are imported once, before the first agent is forked."""
SINGLE_THREAD_VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The settings that keep numerical libraries on the main thread, so that forks are safe."""
END_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals that ask a process to end; Windows has no SIGHUP."""
CHILD_SHUTDOWN_SECONDS = 2 * AGENT_SHUTDOWN_SECONDS


@contextmanager
def note_end_signals() -> Iterator[list[int]]:
    """Yield a list. Within the context, a signal that asks this process to end is only appended to this list.

    Signals that the process ignores, for example under `nohup`, stay ignored. Only the main thread receives
    signals.
    """
    received: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in END_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def expect_no_signal(received: Sequence[int]) -> None:
    """Raise Interrupted if a signal has arrived."""
    if received:
        name = signal.Signals(received[0]).name
        raise Interrupted(f"Interrupted by {name}: all child processes have ended.")


def terminate_all(
    running: Mapping[int, BaseProcess], names: Sequence[str], log: Callable[[str], Any]
) -> dict[int, int]:
    """Terminate processes, kill those that do not end in `CHILD_SHUTDOWN_SECONDS`, and return exit codes."""
    for process in running.values():
        process.terminate()
    codes, deadline = {}, time.monotonic() + CHILD_SHUTDOWN_SECONDS
    for i, process in running.items():
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            log(f"{names[i]} did not end within {CHILD_SHUTDOWN_SECONDS:g} s and is killed")
            process.kill()
            process.join()
        assert process.exitcode is not None
        codes[i] = process.exitcode
    return codes


def end_with_parent() -> None:
    """End this child of `multiprocessing` as soon as its parent has ended.

    Restores the default of SIGTERM, which the parent may ignore: otherwise the child could not be terminated
    before it has a handler.
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
    """Begin the imports of the fork server, which then run in parallel with the caller."""
    if sys.platform != "linux":
        return
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload([*PRELOADED_MODULES])
    original = dict(os.environ)
    try:
        os.environ.update(SINGLE_THREAD_VARIABLES)
        forkserver.ensure_running()
    finally:
        _replace_environment(original)


def start(arguments: Sequence[str], log: Path, **variables: str) -> BaseProcess:
    """Start `topdp` with these arguments and environment variables in a new process.

    The process appends its error output to the file `log`; its standard output is dropped.
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
    gc.freeze()  # imported objects stay: collecting them would only copy their memory pages
    _replace_environment(environment)
    with log.open("ab") as file, open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["topdp", *arguments]
    runpy.run_module("topdp", run_name="__main__", alter_sys=True)


def _replace_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)

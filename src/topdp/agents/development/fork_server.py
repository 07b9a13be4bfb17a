"""Starts the agents of a demonstration: one process that has torch imported is forked for each.

Importing torch takes most of an agent's start, and on one machine it need be done only once. Each agent is
still a process of its own, which runs the very command `topdp agent start`, and ends with the demonstration.
Not for real sites: there one command starts one agent.

gRPC must not be imported before a fork (`wire/grpc_transport.py`), nor may there be threads: the server
imports neither, and computes nothing.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from topdp.agents.node import child_processes

PRELOADED_MODULES = ("topdp.agents.node.agent_process", "topdp.cli.agent_commands", "topdp.cli.app")
"""Imported once, before the first agent is forked."""
SINGLE_THREAD_VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Keep numerical libraries to the main thread, so that forks are safe."""


def warm_up() -> None:
    """Begin the imports, in parallel with what the caller does next."""
    context = _context()
    if isinstance(context, ForkServerContext):
        from multiprocessing import forkserver

        context.set_forkserver_preload([*PRELOADED_MODULES])
        before = dict(os.environ)
        try:
            os.environ.update(SINGLE_THREAD_VARIABLES)
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(before)


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> BaseProcess:
    """Start `topdp` with these arguments in a process of its own; its output is appended to `log`."""
    warm_up()
    process = _context().Process(
        target=_run_command, args=([*arguments], dict(environment), log), daemon=False
    )
    process.start()
    return process


def _context() -> ForkServerContext | SpawnContext:
    """Return a fork-server context on Linux.

    On other systems, libraries that torch uses must not be forked, so each agent imports torch.
    """
    linux = sys.platform == "linux"
    return multiprocessing.get_context("forkserver") if linux else multiprocessing.get_context("spawn")


def _run_command(arguments: list[str], environment: dict[str, str], log: Path) -> None:
    child_processes.end_with_parent()
    gc.freeze()  # what was imported stays: collecting it would only copy its pages
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["topdp", *arguments]
    runpy.run_module("topdp", run_name="__main__", alter_sys=True)

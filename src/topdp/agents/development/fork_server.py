"""Where the agents of a demonstration come from: one process that has torch imported, and is forked.

Importing torch takes most of an agent's start, and on one machine it need be done once. Each agent is still a
process of its own, which runs the very command `topdp agent start`, and ends with the demonstration. Not for
real sites: there one command starts one agent.

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

SHARED = ("topdp.agents.node.agent_process", "topdp.cli.agent_commands", "topdp.cli.app")
"""What agents have in common: imported once, before the first is forked."""
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For numerical libraries: one thread, which is no thread beside the main one, so that forks are safe."""


def warm_up() -> None:
    """Begins the imports, beside whatever the caller does next."""
    context = _context()
    if isinstance(context, ForkServerContext):
        from multiprocessing import forkserver

        context.set_forkserver_preload([*SHARED])
        before = dict(os.environ)
        try:
            os.environ.update(ALONE)
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(before)


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> BaseProcess:
    """`topdp` with these arguments, in a process of its own; what it says goes to the end of `log`."""
    warm_up()
    process = _context().Process(target=_live, args=([*arguments], dict(environment), log), daemon=False)
    process.start()
    return process


def _context() -> ForkServerContext | SpawnContext:
    """Elsewhere than on Linux libraries that torch uses may not be forked: there each agent imports it."""
    linux = sys.platform == "linux"
    return multiprocessing.get_context("forkserver") if linux else multiprocessing.get_context("spawn")


def _live(arguments: list[str], environment: dict[str, str], log: Path) -> None:
    child_processes.end_with_parent()
    gc.freeze()  # what was imported stays: looking at it again would only copy its pages
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["topdp", *arguments]
    runpy.run_module("topdp", run_name="__main__", alter_sys=True)

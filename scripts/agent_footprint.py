#!/usr/bin/env python3
"""Count the modules and lines of topdp that `topdp agent start` loads, in a federation of two real agents.

Usage: python scripts/agent_footprint.py [--list]

Both agents run on loopback until their last round. Modules that an agent imports while it runs count as well.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "src"
sys.path.insert(0, str(Path(__file__).resolve().parent))
NAMES = ("ada", "bob")
RECORDS_PER_AGENT = 40
MAX_RUN_SECONDS = 120
SETTINGS = ("rounds=3", "model.name=linear", "privacy.epsilon=5")

# The program of one agent. It writes the names of its modules to a file when it ends.
AGENT_PROGRAM = """
import os, runpy, sys

exit_process, modules_file = os._exit, sys.argv.pop(1)


def write_modules_and_exit(code):
    with open(modules_file, "w") as file:
        file.write("\\n".join(name for name in sys.modules if name.split(".")[0] == "topdp"))
    exit_process(code)


os._exit = write_modules_and_exit  # agents end with this function, which runs no cleanup
sys.argv[0] = "topdp"
runpy.run_module("topdp", run_name="__main__", alter_sys=True)
"""


def modules_loaded() -> list[str]:
    """Return the modules of topdp that an agent loads from its start to its last round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(folder)
        agents = [_start(folder, name) for name in NAMES]
        codes = [agent.wait(MAX_RUN_SECONDS) for agent in agents]
        if any(codes):
            log = (folder / f"{NAMES[0]}.log").read_text(encoding="utf-8")
            raise RuntimeError(f"Expected two agents that finish, got exit codes {codes}:\n{log[-2000:]}")
        names = (folder / f"{NAMES[0]}.modules").read_text(encoding="utf-8").split()
    return sorted({"topdp.__main__", *names})


def lines_of(modules: Sequence[str]) -> int:
    """Return the number of code lines of these modules, without blank lines, comments and docstrings."""
    from code_metrics import code_lines

    files = (SOURCE / Path(*name.split(".")) for name in modules)
    return sum(
        code_lines(file / "__init__.py" if file.is_dir() else file.with_suffix(".py")) for file in files
    )


def _prepare(folder: Path) -> None:
    """Write identities, records and a manifest for the two agents."""
    generator = np.random.default_rng(0)
    for name in NAMES:
        inputs, labels = generator.normal(size=(RECORDS_PER_AGENT, 4)), np.arange(RECORDS_PER_AGENT) % 2
        np.savez(folder / f"{name}.npz", train_inputs=inputs, train_labels=labels)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        _topdp("agent", "init", "--name", name, "--identity", str(folder / name), "--address", address)
    cards = [str(folder / name / "card.toml") for name in NAMES]
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    federation = ["--links", "-".join(NAMES), "--records", str(RECORDS_PER_AGENT), "--robust", "none"]
    manifest = ["--out", str(folder / "manifest.toml")]
    _topdp("federation", "create", *cards, *federation, *manifest, *settings)


def _topdp(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "topdp", *arguments], check=True, capture_output=True)


def _start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", AGENT_PROGRAM, str(folder / f"{name}.modules"), "agent", "start"]
    command += ["--manifest", str(folder / "manifest.toml"), "--identity", str(folder / name)]
    command += ["--data", str(folder / f"{name}.npz"), "--state", str(folder / f"{name}-state")]
    command += ["--site", str(folder / f"{name}-site")]
    with (folder / f"{name}.log").open("wb") as file:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every module")
    options = parser.parse_args()
    modules = modules_loaded()
    if options.list:
        print(*modules, sep="\n")
    print(f"{len(modules)} modules, {lines_of(modules):,} lines of code")


if __name__ == "__main__":
    main()

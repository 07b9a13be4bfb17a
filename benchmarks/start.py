"""Time from the start of a command to the first release of its agents.

    python benchmarks/start.py [--agents 6]

First `topdp federation demo` runs with this number of agents; the script reads from the ledgers when the
first and the last agent has made its first release. Then one of these agents starts alone with `topdp agent
start`; the script prints its wall time, its CPU time, and the stages that its log reports. On a busy machine,
compare the CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

DEMO_ROUNDS = 10  # only the first round is timed


class DemoStart(NamedTuple):
    """Seconds until the first agent, and until all agents, have made their first release."""

    first_agent: float
    all_agents: float


class AgentStart(NamedTuple):
    """The start of one agent, in seconds, and the stages in its log."""

    wall: float
    cpu: float
    stages: str


def time_demo(out: Path, agents: int) -> DemoStart:
    command = [sys.executable, "-m", "topdp", "federation", "demo", "--agents", str(agents), "--json"]
    command += ["--out", str(out), "--set", f"rounds={DEMO_ROUNDS}"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds: dict[str, float] = {}
    while process.poll() is None and len(seconds) < agents:
        for number in range(agents):
            name = f"agent{number}"
            if name not in seconds and _has_release(out / "agents" / name / "state" / "ledger.sqlite"):
                seconds[name] = time.perf_counter() - start
        time.sleep(0.05)
    errors = process.communicate()[1].decode()
    if process.returncode or len(seconds) < agents:
        sys.exit(f"The demonstration failed: {errors}")
    return DemoStart(min(seconds.values()), max(seconds.values()))


def time_one_agent(out: Path) -> AgentStart:
    """Start an agent of the demonstration alone; its neighbours are not running."""
    site = out / "agents" / "agent0"
    shutil.rmtree(site / "state")
    shutil.rmtree(site / "identity" / "runs", ignore_errors=True)
    command = [sys.executable, "-m", "topdp", "agent", "start", "--json-log", "--data", "records.npz"]
    command += [
        "--manifest",
        "../manifest.toml",
        "--state",
        "state",
        "--identity",
        "identity",
        "--site",
        "site",
    ]
    cpu_start, start = _cpu_seconds_of_children(), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=site, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    stages = "not in the log"
    for line in process.stderr:  # without neighbours it makes no release
        if (match := re.search(r"ready after (.*)", json.loads(line)["message"])) is not None:
            stages = match[1]
            break
    wall = time.perf_counter() - start
    process.send_signal(signal.SIGTERM)
    process.communicate()
    return AgentStart(wall, _cpu_seconds_of_children() - cpu_start, stages)


def _has_release(ledger: Path) -> bool:
    if not ledger.exists():
        return False
    try:
        with sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True) as database:
            return bool(database.execute("SELECT count(*) FROM charges").fetchone()[0])
    except sqlite3.Error:
        return False


def _cpu_seconds_of_children() -> float:
    """Return the CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        demo = time_demo(out, options.agents)
        agent = time_one_agent(out)
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"demo: first agent {demo.first_agent:.1f} s, all agents {demo.all_agents:.1f} s")
    print(f"one agent: {agent.wall:.1f} s, CPU time {agent.cpu:.1f} s")
    print(f"stages: {agent.stages}")


if __name__ == "__main__":
    main()

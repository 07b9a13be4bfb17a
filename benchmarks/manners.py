"""How long commands print nothing: the time to the first output, and the longest silence of each command.

    python benchmarks/manners.py [--only run,audit]

Each command runs as a process whose output is a pipe, so the times are those of a log; on a terminal, a
spinner also turns. The time after the last line counts only towards the total. The last line of the output
names the commands that exceed a limit. The tests do not include this script, because the times depend on the
load of the machine.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from kills import write_image_records

MAX_FIRST_OUTPUT_SECONDS = 1.0
MAX_SILENCE_SECONDS = 5.0
SMALL_JOB = [
    "data.name=records.npz",
    "topology.agents=4",
    "topology.kind=ring",
    "rounds=20",
    "privacy.clip=1",
]
RECORDS_PER_AGENT = 200


def set_options(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


CALIBRATE = ["calibrate", "--epsilon", "2", "--releases", "1000", "--records", "2000"]
# `import` has no arguments: it only imports the command line. `export` reads the folder of `run`.
COMMANDS = {
    "version": ["version"],
    "import": [],
    "data list": ["data", "list"],
    "graph": ["graph", "--topology", "ring", "--agents", "12", "--out", "graph.png"],
    "calibrate": CALIBRATE,
    "calibrate --poisson": [*CALIBRATE, "--poisson", "20"],
    "account": ["account", *set_options(*SMALL_JOB), "--coalition", "2"],
    "recommend": ["recommend", *set_options("topology.agents=12", "privacy.colluders=2")],
    "run": ["run", *set_options(*SMALL_JOB), "--out", "run"],
    "compare": ["compare", *set_options(*SMALL_JOB), "--out", "compare"],
    "audit": ["audit", *set_options(*SMALL_JOB), "--out", "audit"],
    "export": ["export", "run", "--out", "net.safetensors"],
    "federation demo": ["federation", "demo", *set_options(*SMALL_JOB), "--agents", "3", "--out", "demo"],
}


class Silence(NamedTuple):
    """The silences of one command, in seconds, and its exit code."""

    first_output: float
    longest: float
    total: float
    code: int
    line_before_longest: str

    def is_acceptable(self) -> bool:
        is_short = self.first_output <= MAX_FIRST_OUTPUT_SECONDS and self.longest <= MAX_SILENCE_SECONDS
        return is_short and self.code == 0


def measure(arguments: list[str], folder: Path) -> Silence:
    program = ["-m", "topdp", *arguments] if arguments else ["-c", "import topdp.cli.app"]
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", *program],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    times, lines = [start], ["(start)"]
    for line in process.stdout:
        times.append(time.monotonic())
        lines.append(line.strip())
    code = process.wait()
    end = time.monotonic()
    if len(times) == 1:
        times.append(end)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return Silence(gaps[0], max(gaps), end - start, code, lines[gaps.index(max(gaps))])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="names of commands, separated by commas; by default all commands")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(COMMANDS)
    if unknown := sorted(set(names) - set(COMMANDS)):
        parser.error(f"Expected --only with names of {', '.join(COMMANDS)}; got {', '.join(unknown)}.")
    print(f"{'command':20}{'first output':>16}{'silence':>12}{'total':>9}  code  longest silence after")
    exceeding = []
    with tempfile.TemporaryDirectory() as folder:
        write_image_records(Path(folder) / "records.npz", 4, RECORDS_PER_AGENT)
        for name in names:
            silence = measure(COMMANDS[name], Path(folder))
            times = f"{silence.first_output:14.2f} s{silence.longest:10.2f} s{silence.total:7.1f} s"
            print(f"{name:20}{times}{silence.code:6}  {silence.line_before_longest[:60]}", flush=True)
            if not silence.is_acceptable():
                exceeding.append(name)
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"load {load:.1f} on {cores} cores; over a limit or failed: {', '.join(exceeding) or 'none'}")


if __name__ == "__main__":
    main()

"""How long commands are silent: the time to the first sign of life, and the longest silence, of each.

Every command is run as a process whose output is a pipe, so what is measured is what a log would show; on a
terminal a spinner turns besides. What comes after the last line, the end of Python, counts in the whole only.
Not part of the tests: times depend on what else the machine does.

    python benchmarks/manners.py [--only run,audit] [--long]

`--long` also runs jobs of a minute: the default job, Poisson samples, a quick figure.
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

import numpy as np

FIRST, SILENCE = 1.0, 5.0
"""Seconds that we allow."""

FEW = ["data.name=blobs.npz", "topology.agents=4", "topology.kind=ring", "rounds=20", "privacy.clip=1"]


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


CALIBRATE = ["calibrate", "--epsilon", "2", "--releases", "1000", "--records", "2000"]
JOBS = {
    "version": ["version"],
    "import": [],
    "data list": ["data", "list"],
    "graph": ["graph", "--topology", "ring", "--agents", "12", "--out", "graph.png"],
    "calibrate": CALIBRATE,
    "calibrate --poisson": [*CALIBRATE, "--poisson", "20"],
    "account": ["account", *sets(*FEW), "--coalition", "2"],
    "recommend": ["recommend", *sets("topology.agents=12", "privacy.colluders=2")],
    "run": ["run", *sets(*FEW), "--out", "run"],
    "compare": ["compare", *sets(*FEW), "--out", "compare"],
    "audit": ["audit", *sets(*FEW), "--out", "audit"],
    "export": ["export", "run", "--out", "net.safetensors"],
    "federation demo": ["federation", "demo", *sets(*FEW), "--agents", "3", "--out", "demo"],
}
LONG = {
    "account, 30 agents": ["account", *sets("method.name=top"), "--answers", "view"],
    "run, default job": ["run", *sets("rounds=30"), "--out", "default"],
    "reproduce 1 --quick": ["reproduce", "1", "--quick", "--lens", "same", "--out", "figure"],
}


def records(folder: Path) -> None:
    """Bright stripes, as many as four agents and canaries need."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 900)
    inputs = generator.normal(0, 0.3, (900, 1, 4, 4)).astype(np.float32)
    inputs[np.arange(900), 0, labels, :] += 1.5
    parts = {"train": slice(0, 800), "test": slice(800, None)}
    arrays = {f"{part}_inputs": inputs[at] for part, at in parts.items()}
    np.savez(folder / "blobs.npz", **arrays, **{f"{part}_labels": labels[at] for part, at in parts.items()})


def measured(arguments: list[str], folder: Path) -> tuple[float, float, float, int, str]:
    """Seconds to the first sign, the longest silence and all of it; the exit code; where it was silent."""
    what = ["-m", "topdp", *arguments] if arguments else ["-c", "import topdp.cli.app"]
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", *what], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = [(begun, "the start")]
    for line in process.stdout:
        said.append((time.monotonic(), line.strip()))
    code = process.wait()
    ended = time.monotonic()
    times = [at for at, _ in said] if len(said) > 1 else [begun, ended]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    longest = max(gaps)
    first = said[1][0] - begun if len(said) > 1 else ended - begun
    return first, longest, ended - begun, code, said[gaps.index(longest)][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of commands, with commas")
    parser.add_argument("--long", action="store_true", help="jobs of a minute too")
    given = parser.parse_args()
    jobs = {**JOBS, **(LONG if given.long else {})}
    wanted = given.only.split(",") if given.only else list(jobs)
    print(f"{'command':24}{'first sign':>12}{'silence':>10}{'in all':>9}  code  silent after")
    late = []
    with tempfile.TemporaryDirectory() as name:
        records(Path(name))
        for command in wanted:
            first, longest, whole, code, where = measured(jobs[command], Path(name))
            print(
                f"{command:24}{first:10.2f} s{longest:8.2f} s{whole:7.1f} s{code:6}  {where[:60]}", flush=True
            )
            if first > FIRST or longest > SILENCE or code:
                late.append(command)
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; too late or too silent: {late or 'none'}"
    )


if __name__ == "__main__":
    main()

"""How long agents take from a command to their first release, and with what.

    python benchmarks/start.py [--agents 6] [--set KEY=VALUE ...] [--json]

First a demonstration of that many agents: seconds until the first and until the last of them has booked its
first release, as their ledgers say. Then one of its agents is started alone, with what `topdp agent start`
says about its stages, and processor seconds: on a busy machine those are what can be compared.
To compare with another version, run this file with that version's src in PYTHONPATH.
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

ROUNDS = 10  # of the demonstration: nothing is measured after the first


def demonstration(out: Path, agents: int, changes: list[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "topdp", "federation", "demo", "--agents", str(agents), "--json"]
    changes = [f"rounds={ROUNDS}", *changes]
    command += ["--out", str(out), *(part for change in changes for part in ("--set", change))]
    begun = time.perf_counter()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    first: dict[str, float] = {}
    while running.poll() is None and len(first) < agents:
        for number in range(agents):
            name = f"agent{number}"
            if name not in first and _released(out / "agents" / name / "state" / "ledger.sqlite"):
                first[name] = time.perf_counter() - begun
        time.sleep(0.05)
    said = running.communicate()[1].decode()
    if running.returncode or len(first) < agents:
        sys.exit(f"The demonstration failed: {said}")
    return {
        "first_agent_s": min(first.values()),
        "all_agents_s": max(first.values()),
    }


def alone(out: Path) -> dict[str, object]:
    """One agent of the demonstration as its own site would start it; it waits for the others."""
    place = out / "agents" / "agent0"
    shutil.rmtree(place / "state")
    shutil.rmtree(place / "identity" / "runs", ignore_errors=True)
    command = [sys.executable, "-m", "topdp", "agent", "start", "--json-log", "--data", "records.npz"]
    command += ["--manifest", "../manifest.toml", "--state", "state", "--identity", "identity"]
    before, begun = _children(), time.perf_counter()
    running = subprocess.Popen(
        command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    stages = ""
    while not _released(place / "state" / "ledger.sqlite") and running.poll() is None:
        time.sleep(0.02)
    found = time.perf_counter() - begun
    running.send_signal(signal.SIGTERM)
    for line in running.stderr:
        if (said := re.search(r"ready after (.*)", json.loads(line)["message"])) is not None:
            stages = said[1]
    running.wait()
    return {"first_release_s": found, "processor_s": _children() - before, "stages": stages}


def _released(ledger: Path) -> bool:
    if not ledger.exists():
        return False
    try:
        with sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True) as database:
            return bool(database.execute("SELECT count(*) FROM charges").fetchone()[0])
    except sqlite3.Error:
        return False


def _children() -> float:
    """Processor seconds of all processes that were started from here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        together = demonstration(out, options.agents, options.changes)
        report = {"load": os.getloadavg()[0], "demo": together, "alone": alone(out)}
    if options.json:
        print(json.dumps(report))
        return
    print(f"load {report['load']:.1f}")
    print(f"demo: first release {together['first_agent_s']:.1f} s, of all {together['all_agents_s']:.1f} s")
    one = report["alone"]
    print(f"one agent: first release {one['first_release_s']:.1f} s, {one['processor_s']:.1f} processor s")
    print(f"           {one['stages'] or 'says nothing of its stages'}")


if __name__ == "__main__":
    main()

"""Memory, descriptors, ledger and round time of real agents over an hour; all of them should stay constant.

    python benchmarks/soak.py --minutes 60 --out /tmp/soak          # nice -n 19 on a shared machine
    python benchmarks/soak.py --minutes 3 --pace 0.1

Each agent is a process of its own over mutual TLS, as `topdp agent start` runs it. Before it sends a row, it
pauses for `--pace` seconds, which leaves the machine time for other work. Samples of all agents go to
`samples.csv`: resident memory, open descriptors, sizes of the ledger and of its write-ahead log, CPU time and
round. At the end, every agent gets SIGTERM and must end by itself. The script then prints means of the first,
middle and last third, and slopes. It exits with 1 if the last third exceeds the middle third by too much.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

AGENT_ARGUMENT = "--as-agent"  # the first argument of an agent's process
COLUMNS = ("seconds", "agent", "round", "memory_kb", "descriptors", "ledger_kb", "wal_kb", "cpu_seconds")
TABLE_HEADINGS = (
    "agent",
    "rounds",
    "quantity",
    "first third",
    "middle third",
    "last third",
    "slope per hour",
)
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MAX_END_SECONDS = 60  # after SIGTERM
MIN_SAMPLES = 6
RECORDS_PER_AGENT = 20

# The largest ratio of the last third to the middle third.
MAX_MEMORY_GROWTH = 1.05
MAX_DESCRIPTOR_GROWTH = 1.1
MAX_ROUND_TIME_GROWTH = 1.3
MAX_WAL_GROWTH = 1.2


def run_agent(pace: str, *arguments: str) -> None:
    """Run the command `topdp` with `arguments`; pause for `pace` seconds before each row is sent."""
    import asyncio

    from topdp.agents.wire.grpc_transport import GrpcTransport
    from topdp.agents.wire.transport import MessageKind
    from topdp.cli import app

    request = GrpcTransport.request

    async def delayed_request(self: Any, peer: str, message: Any) -> Any:
        if message.kind is MessageKind.ROW:
            await asyncio.sleep(float(pace))
        return await request(self, peer, message)

    GrpcTransport.request = delayed_request  # type: ignore[method-assign]
    sys.argv = ["topdp", *arguments]
    app.main()


def configuration(data: Path, agents: int, rounds: int) -> Any:
    from topdp.runs import config

    changes = [f'data.name="{data}"', f"topology.agents={agents}", "topology.kind=ring", "privacy.clip=1.0"]
    changes += ["privacy.guarantee=worst-case", "privacy.epsilon=50.0", f"rounds={rounds}"]
    return config.read(changes=changes)


def start_agent(folder: Path, name: str, pace: float) -> subprocess.Popen[bytes]:
    site = folder / name
    command = [sys.executable, __file__, AGENT_ARGUMENT, str(pace), "agent", "start", "--json", "--json-log"]
    command += ["--manifest", str(folder / "manifest.toml"), "--identity", str(site / "identity")]
    command += ["--data", str(site / "records.npz"), "--state", str(site / "state")]
    command += ["--site", str(site / "site")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with (site / "log.jsonl").open("ab") as log, (site / "out.json").open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=environment)


def sample(start: float, name: str, process: subprocess.Popen[bytes], state: Path) -> dict[str, Any]:
    """Return one line of `samples.csv`. The round is -1 if the agent has no ledger yet."""
    from topdp.agents.ledger.ledger import Ledger

    proc = Path("/proc") / str(process.pid)
    fields = (proc / "stat").read_text().rsplit(")", 1)[1].split()
    files = [state / "ledger.sqlite", state / "ledger.sqlite-wal"]
    ledger_kb, wal_kb = (file.stat().st_size // 1024 if file.exists() else 0 for file in files)
    round = -1
    if files[0].exists():
        try:
            ledger = Ledger(state, writable=False)
            round = ledger.round
            ledger.close()
        except Exception as error:  # the agent is creating the ledger
            print(f"{name}: {error}", file=sys.stderr)
    return {
        "seconds": f"{time.monotonic() - start:.2f}",
        "agent": name,
        "round": round,
        "memory_kb": int((proc / "statm").read_text().split()[1]) * PAGE_KB,
        "descriptors": len(list((proc / "fd").iterdir())),
        "ledger_kb": ledger_kb,
        "wal_kb": wal_kb,
        "cpu_seconds": f"{(int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND:.2f}",
    }


def observe(options: argparse.Namespace, folder: Path, names: list[str]) -> list[str]:
    """Run all agents, take samples, and stop the agents when the time is over. Return the violations."""
    violations: list[str] = []
    processes = {name: start_agent(folder, name, options.pace) for name in names}
    start = time.monotonic()
    try:
        with (options.out / "samples.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            while time.monotonic() - start < 60 * options.minutes and not violations:
                time.sleep(options.every)
                for name, process in processes.items():
                    if process.poll() is not None:
                        violations.append(f"{name} ended with code {process.returncode} before SIGTERM")
                    else:
                        writer.writerow(sample(start, name, process, folder / name / "state"))
                file.flush()
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in processes.items():
            try:
                code = process.wait(timeout=MAX_END_SECONDS)
                if code not in (0, 3) and not violations:
                    violations.append(f"{name} ended with code {code}")
            except subprocess.TimeoutExpired:
                violations.append(f"{name} did not end within {MAX_END_SECONDS} s after SIGTERM")
                process.kill()
                process.wait()
    return violations


def judge(path: Path, warm_up: float) -> list[str]:
    """Print the thirds and slopes of each agent. Return the quantities that grow."""
    import numpy as np

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    violations = []
    print("| " + " | ".join(TABLE_HEADINGS) + " |\n" + "|---" * len(TABLE_HEADINGS) + "|")
    for name in sorted({row["agent"] for row in rows}):
        own_rows = [row for row in rows if row["agent"] == name]
        samples = {key: np.array([float(row[key]) for row in own_rows]) for key in COLUMNS if key != "agent"}
        counted = (samples["seconds"] > warm_up) & (samples["round"] >= 0)
        samples = {key: values[counted] for key, values in samples.items()}
        if len(samples["round"]) < MIN_SAMPLES:
            count = len(samples["round"])
            violations.append(
                f"{name}: expected at least {MIN_SAMPLES} samples after the warm-up, got {count}"
            )
            continue
        violations += judge_agent(name, samples)
    return violations


def judge_agent(name: str, samples: dict[str, Any]) -> list[str]:
    """Print the lines of one agent. `samples`: values by column."""
    import numpy as np

    rounds, hours = samples["round"], samples["seconds"] / 3600
    lines: list[tuple[str, list[float], float, float]] = []  # quantity, thirds, slope, largest growth
    for key, quantity, unit, max_growth in (
        ("memory_kb", "memory, MB", 1024, MAX_MEMORY_GROWTH),
        ("descriptors", "descriptors", 1, MAX_DESCRIPTOR_GROWTH),
        ("wal_kb", "write-ahead log, kB", 1, MAX_WAL_GROWTH),
    ):
        values = samples[key] / unit
        thirds = [float(part.mean()) for part in np.array_split(values, 3)]
        lines.append((quantity, thirds, float(np.polyfit(hours, values, 1)[0]), max_growth))
    for key, quantity in (("seconds", "ms per round"), ("cpu_seconds", "CPU ms per round")):
        parts = zip(np.array_split(samples[key], 3), np.array_split(rounds, 3), strict=True)
        thirds = [1e3 * float(np.ptp(part)) / max(1.0, float(np.ptp(done))) for part, done in parts]
        slope = (thirds[2] - thirds[0]) / max(1e-9, float(np.ptp(hours)) * 2 / 3)
        lines.append((quantity, thirds, slope, MAX_ROUND_TIME_GROWTH))
    violations = []
    for quantity, thirds, slope, max_growth in lines:
        cells = " | ".join(f"{value:.4g}" for value in thirds)
        print(f"| {name} | {rounds[-1]:.0f} | {quantity} | {cells} | {slope:+.3g} |")
        if thirds[2] > thirds[1] * max_growth:
            violations.append(f"{name}: {quantity} grew from {thirds[1]:.4g} to {thirds[2]:.4g}")
    kb_per_round = np.ptp(samples["ledger_kb"]) / max(1.0, np.ptp(rounds))
    print(f"| {name} | {rounds[-1]:.0f} | ledger, kB per round | {kb_per_round:.2f} | | | |")
    return violations


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.5, help="seconds before a row is sent")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds whose samples do not count")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="a new folder")
    options = parser.parse_args()
    from kills import write_image_records
    from topdp.agents.agreement.manifest import Rules
    from topdp.agents.development import federation_demo

    options.out.mkdir(parents=True)
    data = options.out / "records.npz"
    write_image_records(data, options.agents, RECORDS_PER_AGENT)
    # More rounds than the agents can execute in this time.
    rounds = int(options.minutes * 60 / max(options.pace, 0.02)) + 1000
    folder = options.out / "run" / "agents"
    config = configuration(data, options.agents, rounds)
    _, manifest, _ = federation_demo.prepare(config, folder, Rules(idle_timeout=60.0))
    violations = observe(options, folder, list(manifest.names))
    violations += judge(options.out / "samples.csv", options.warm_up)
    for violation in violations:
        print(f"WRONG: {violation}")
    print("NOT CONSTANT" if violations else "constant")
    raise SystemExit(int(bool(violations)))


if __name__ == "__main__":
    if sys.argv[1:2] == [AGENT_ARGUMENT]:
        run_agent(*sys.argv[2:])
    else:
        main()

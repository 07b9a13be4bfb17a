"""Six real agents over mutual TLS for an hour: are memory, descriptors and the time of a round flat?

    python benchmarks/soak.py --minutes 60 --out /tmp/soak          # nice -n 19 where others work
    python benchmarks/soak.py --minutes 3 --pace 0.1                # a try

Every agent is a process of its own, as `topdp agent start` makes it; `--pace` seconds pass before a row is
sent, so that the machine has time for other things. Every `--every` seconds it writes down, for each agent,
resident memory, open descriptors, size of the ledger and of its log, CPU time and rounds (`samples.csv`). At
the end all are asked to stop, which they must do by themselves. It prints the first, middle and last third
and the slopes, and ends with 1 where something grows: the last third is compared with the middle one.
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

AGENT = "agent-of-the-soak"  # first argument of an agent's process
COLUMNS = ("seconds", "agent", "round", "memory_kb", "descriptors", "ledger_kb", "wal_kb", "cpu_seconds")
PAGE = os.sysconf("SC_PAGE_SIZE") // 1024
TICK = os.sysconf("SC_CLK_TCK")


def agent(pace: str, *arguments: str) -> None:
    """One agent, whose rows leave at a measured pace."""
    import asyncio

    from topdp.agents.wire.grpc_transport import GrpcTransport
    from topdp.agents.wire.transport import MessageKind
    from topdp.cli import app

    request = GrpcTransport.request

    async def paced(self: Any, peer: str, message: Any) -> Any:
        if message.kind is MessageKind.ROW:
            await asyncio.sleep(float(pace))
        return await request(self, peer, message)

    GrpcTransport.request = paced  # type: ignore[method-assign]
    sys.argv = ["topdp", *arguments]
    app.main()


def configuration(data: Path, agents: int, rounds: int) -> Any:
    from topdp.runs import config

    changes = [f'data.name="{data}"', f"topology.agents={agents}", "topology.kind=ring", "privacy.clip=1.0"]
    changes += ["privacy.guarantee=worst-case", "privacy.epsilon=50.0", f"rounds={rounds}"]
    return config.read(changes=changes)


def started(folder: Path, name: str, pace: float) -> subprocess.Popen[bytes]:
    place = folder / name
    command = [sys.executable, __file__, AGENT, str(pace), "agent", "start", "--json", "--json-log"]
    command += ["--manifest", str(folder / "manifest.toml"), "--identity", str(place / "identity")]
    command += ["--data", str(place / "records.npz"), "--state", str(place / "state")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with (place / "log.jsonl").open("ab") as log, (place / "out.json").open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=environment)


def sample(begun: float, name: str, process: subprocess.Popen[bytes], state: Path) -> dict[str, Any]:
    from topdp.agents.ledger.ledger import Ledger

    proc = Path("/proc") / str(process.pid)
    fields = (proc / "stat").read_text().rsplit(")", 1)[1].split()
    sizes = [state / "ledger.sqlite", state / "ledger.sqlite-wal"]
    ledger_kb, wal_kb = (path.stat().st_size // 1024 if path.exists() else 0 for path in sizes)
    round = -1
    if sizes[0].exists():
        try:
            ledger = Ledger(state, writable=False)
            round = ledger.round
            ledger.close()
        except Exception as error:  # it is being made
            print(f"{name}: {error}", file=sys.stderr)
    return {
        "seconds": f"{time.monotonic() - begun:.2f}",
        "agent": name,
        "round": round,
        "memory_kb": int((proc / "statm").read_text().split()[1]) * PAGE,
        "descriptors": len(list((proc / "fd").iterdir())),
        "ledger_kb": ledger_kb,
        "wal_kb": wal_kb,
        "cpu_seconds": f"{(int(fields[11]) + int(fields[12])) / TICK:.2f}",
    }


def observed(options: argparse.Namespace, folder: Path, names: list[str]) -> list[str]:
    """Starts all, takes samples until the time is over, and asks all to stop: what went wrong."""
    wrong: list[str] = []
    processes = {name: started(folder, name, options.pace) for name in names}
    begun = time.monotonic()
    try:
        with (options.out / "samples.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            while time.monotonic() - begun < 60 * options.minutes and not wrong:
                time.sleep(options.every)
                for name, process in processes.items():
                    if process.poll() is not None:
                        wrong.append(f"{name} ended with {process.returncode} before it was asked to")
                    else:
                        writer.writerow(sample(begun, name, process, folder / name / "state"))
                file.flush()
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in processes.items():
            try:
                code = process.wait(timeout=60)
                wrong += [f"{name} ended with {code}"] if code not in (0, 3) and not wrong else []
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} did not end in 60 s when it was asked to")
                process.kill()
                process.wait()
    return wrong


def told(
    wrong: list[str], name: str, rounds: int, what: str, values: list[float], slope: float, most: float
) -> None:
    """One line of the table; what grew from the middle third to the last is added to `wrong`."""
    cells = " | ".join(f"{value:.4g}" for value in values)
    print(f"| {name} | {rounds} | {what} | {cells} | {slope:+.3g} |")
    if values[2] > values[1] * most:
        wrong.append(f"{name}: {what} grew from {values[1]:.4g} to {values[2]:.4g}")


def judged(path: Path, warm_up: float) -> list[str]:
    """Prints the thirds and the slopes of each agent; what is not flat."""
    import numpy as np

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = []
    heads = ("agent", "rounds", "", "first", "middle", "last", "slope an hour")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name in sorted({row["agent"] for row in rows}):
        mine = np.array(
            [[float(row[c]) for c in COLUMNS if c != "agent"] for row in rows if row["agent"] == name]
        )
        mine = mine[(mine[:, 0] > warm_up) & (mine[:, 1] >= 0)]
        if len(mine) < 6:
            wrong.append(f"{name}: only {len(mine)} samples with rounds")
            continue
        thirds = np.array_split(mine, 3)
        hours = mine[:, 0] / 3600

        for column, what, scale, most in ((2, "memory, MB", 1024, 1.05), (3, "descriptors", 1, 1.1)):
            values = [float(third[:, column].mean()) / scale for third in thirds]
            told(
                wrong,
                name,
                int(mine[-1, 1]),
                what,
                values,
                float(np.polyfit(hours, mine[:, column] / scale, 1)[0]),
                most,
            )
        for column, what in ((0, "ms a round"), (6, "CPU ms a round")):
            values = []
            for third in thirds:
                done = third[-1, 1] - third[0, 1]
                values.append(1e3 * float(third[-1, column] - third[0, column]) / max(1.0, done))
            slope = (values[2] - values[0]) / max(1e-9, float(hours[-1] - hours[0]) * 2 / 3)
            told(wrong, name, int(mine[-1, 1]), what, values, slope, 1.3)
        sizes = [float(third[:, 5].mean()) for third in thirds]
        told(
            wrong,
            name,
            int(mine[-1, 1]),
            "ledger's log, KB",
            sizes,
            float(np.polyfit(hours, mine[:, 5], 1)[0]),
            1.2,
        )
        for_each = (mine[-1, 4] - mine[0, 4]) / max(1.0, mine[-1, 1] - mine[0, 1])
        print(f"| {name} | {mine[-1, 1]:.0f} | ledger, KB a round | {for_each:.2f} | | | |")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.5, help="seconds before a row is sent")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds that are not judged")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="a new folder")
    options = parser.parse_args()
    from kill_matrix import records

    from topdp.agents.agreement.manifest import Rules
    from topdp.agents.development import federation_demo

    options.out.mkdir(parents=True)
    data = options.out / "blobs.npz"
    records(data, options.agents, each=20)
    # More rounds than there is time for.
    rounds = int(options.minutes * 60 / max(options.pace, 0.02)) + 1000
    folder = options.out / "run" / "agents"
    _, manifest, _ = federation_demo.prepare(
        configuration(data, options.agents, rounds), folder, Rules(idle_timeout=60.0)
    )
    wrong = observed(options, folder, list(manifest.names))
    wrong += judged(options.out / "samples.csv", options.warm_up)
    for each in wrong:
        print(f"WRONG: {each}")
    print("flat" if not wrong else "NOT FLAT")
    raise SystemExit(int(bool(wrong)))


if __name__ == "__main__":
    if sys.argv[1:2] == [AGENT]:
        agent(*sys.argv[2:])
    else:
        main()

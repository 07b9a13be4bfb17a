"""Many agents on a 4-regular graph: one process beside two local ranks, by time and memory per agent.

    python benchmarks/ranks.py                              # 1,000 to 10,000 agents of a small model
    python benchmarks/ranks.py --agents 10000 --hidden 100  # of 80,000 parameters: the rows alone are 6.4 GB
    python benchmarks/ranks.py --hidden 100 --rows model bfloat16  # the same with rows in half the bits
    python benchmarks/ranks.py --kill --rounds 400          # kills rank 1 of 2 and lets torchrun start again

Every job is a whole `topdp run` in processes of its own (records, plan, account, rounds, run folder), so what
is measured is what a user gets. Peak memory is the kernel's (`VmHWM`) of each process; `ru_maxrss` would
count what who started it held. What Python and torch take before any agent is measured by a run of ten
agents, and taken off per agent. Results of any number of ranks must be equal: estimates bit by bit, and
metrics.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from topdp.runs.run_folder import RunFolder
from topdp.runs.tensor_files import mapped

FEATURES, CLASSES, RECORDS, TESTED = 784, 10, 4, 200

CHILD = """
import json, os, sys, time
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
from topdp.cli import app
began = time.perf_counter()
sys.argv = ["topdp", *json.loads(sys.argv[1])]
app(standalone_mode=False)
lines = open("/proc/self/status").read().splitlines()
peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
rank = os.environ.get("RANK", "0")
open(os.environ["MEASURED"] + rank, "w").write(json.dumps([time.perf_counter() - began, peak]))
"""

MODEL = """
from torch import nn
def make(shape, outputs):
    first, last = nn.Linear({features}, {hidden}), nn.Linear({hidden}, outputs)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 2000, 5000, 10000])
    parser.add_argument(
        "--hidden", type=int, default=4, help="of one hidden layer: 100 makes 79,510 parameters"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 2], help="1: one process, without torchrun"
    )
    parser.add_argument(
        "--rows", nargs="+", default=["model"], choices=["model", "bfloat16"], help="train.rows, in turn"
    )
    parser.add_argument("--kill", action="store_true", help="a rank of the smallest job, and compare")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
        (folder / "ranks_model.py").write_text(MODEL.format(features=FEATURES, hidden=args.hidden))
        if args.kill:
            kill(folder, min(args.agents), args.rounds)
            return
        floor = {
            ranks: max(peak for _, peak in measured(folder, 10, ranks, args.rounds)) for ranks in args.ranks
        }
        d = (FEATURES + 1) * args.hidden + (args.hidden + 1) * CLASSES
        first = ", ".join(f"{peak / 1e9:.2f} GB with {ranks}" for ranks, peak in floor.items())
        print(f"{d} parameters, {args.rounds} rounds, {RECORDS} records each; torch {torch.__version__}")
        print(f"{os.cpu_count()} cores; ten agents take {first}\n")
        print(
            "| agents | rows | ranks | seconds | ms a round and agent | largest process, GB | kB an agent "
            "| equal |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for agents, rows in itertools.product(args.agents, args.rows):
            ends: list[Path] = []
            for ranks in args.ranks:
                found = measured(folder, agents, ranks, args.rounds, rows)
                ends.append(folder / f"{agents}-{ranks}")
                run = RunFolder.open(ends[-1])
                each = (sum(peak for _, peak in found) - ranks * floor[ranks]) / agents
                a_round = float(run.fact("seconds")) / agents / (args.rounds + 1)
                cells = [
                    agents,
                    rows,
                    ranks,
                    f"{max(seconds for seconds, _ in found):.1f}",
                    f"{1000 * a_round:.3f}",
                    f"{max(peak for _, peak in found) / 1e9:.2f}",
                    f"{each / 1e3:.0f}",
                    "yes" if equal(ends[0], ends[-1]) else "NO",
                ]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
            for end in ends:
                shutil.rmtree(end)


def equal(one: Path, other: Path) -> bool:
    """Estimates bit by bit, without having both in memory; and metrics."""
    rows = [mapped(end / "model.safetensors", "estimates") for end in (one, other)]
    same = all(np.array_equal(rows[0][at], rows[1][at]) for at in range(len(rows[0])))
    return same and RunFolder.open(one).metrics == RunFolder.open(other).metrics


def kill(folder: Path, agents: int, rounds: int) -> None:
    """Rank 1 of 2, after a checkpoint, under torchrun --max-restarts; compared with an unbroken run."""
    measured(folder, agents, 1, rounds)
    out = folder / f"{agents}-2"
    command, env = job(folder, agents, 2, rounds, "--max-restarts", "1")
    torchrun = subprocess.Popen(
        command, env=env, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    )
    while not list(out.glob("checkpoint-*.1-of-2.safetensors")):
        if torchrun.poll() is not None:
            sys.exit(
                f"Ended before its first checkpoint: use more --rounds.\n{torchrun.communicate()[1][-3000:]}"
            )
        time.sleep(0.01)
    began = time.perf_counter()
    os.kill(pid_of_rank(torchrun.pid, 1), signal.SIGKILL)
    lines: list[str] = []
    for line in torchrun.stderr or ():
        if "lost another rank" in line:
            print(f"rank 0 after {time.perf_counter() - began:.1f} s: {line.strip()}")
        lines.append(line)
    if torchrun.wait():
        sys.exit("".join(lines)[-3000:])
    print(f"done {time.perf_counter() - began:.1f} s after the kill, in a second start")
    print("equal to an unbroken run:", "yes" if equal(folder / f"{agents}-1", out) else "NO")


def pid_of_rank(parent: int, rank: int) -> int:
    """Among the processes that torchrun has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    named = f"RANK={rank}".encode()
    return next(
        int(pid) for pid in children if named in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )


def measured(
    folder: Path, agents: int, ranks: int, rounds: int, rows: str = "model"
) -> list[tuple[float, int]]:
    """Seconds and peak bytes of each process."""
    command, env = job(folder, agents, ranks, rounds, rows=rows)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    files = [Path(f"{env['MEASURED']}{rank}") for rank in range(ranks)]
    return [tuple(json.loads(file.read_text())) for file in files]


def job(
    folder: Path, agents: int, ranks: int, rounds: int, *options: str, rows: str = "model"
) -> tuple[list[str], dict[str, str]]:
    """The command of a run, and its environment."""
    file, out = folder / f"records-{agents}.npz", folder / f"{agents}-{ranks}"
    if not file.exists():
        random = np.random.default_rng(0)
        np.savez(
            file,
            train_inputs=random.random((agents * RECORDS, FEATURES), np.float32),
            train_labels=random.integers(0, CLASSES, agents * RECORDS),
            test_inputs=random.random((TESTED, FEATURES), np.float32),
            test_labels=random.integers(0, CLASSES, TESTED),
        )
    settings = {
        "data.name": file, "model.name": "ranks_model:make", "topology.kind": "regular",
        "topology.agents": agents, "topology.degree": 4, "method.name": "dsgd", "rounds": rounds,
        "privacy.guarantee": "worst-case", "train.evaluate_every": rounds, "train.checkpoint_every": 20,
        "train.rows": rows,
    }  # fmt: skip
    words = ["run", "--out", str(out)]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    script = folder / "child.py"
    script.write_text(CHILD)
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *options]
    command = [sys.executable, *(together if ranks > 1 else []), str(script), json.dumps(words)]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return command, {**os.environ, "MEASURED": f"{out}.measured.", "OMP_NUM_THREADS": threads}


if __name__ == "__main__":
    main()

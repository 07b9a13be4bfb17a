"""Many agents on a 4-regular graph: one process beside two local ranks, by time and memory per agent.

    python benchmarks/ranks.py                              # 1,000 to 10,000 agents of a small model
    python benchmarks/ranks.py --agents 10000 --hidden 100  # of 80,000 parameters: the rows alone are 6.4 GB

Every job is a whole `topdp run` in processes of its own (records, plan, account, rounds, run folder), so what
is measured is what a user gets. Peak memory is the kernel's (`ru_maxrss`) of each process; what Python and
torch take before any agent is measured by a run of ten agents, and taken off per agent. Results of both must
be equal: estimates bit by bit, and metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from topdp.runs.folder import RunFolder
from topdp.runs.tensor_files import mapped

FEATURES, CLASSES, RECORDS, TESTED = 784, 10, 4, 200

CHILD = """
import json, os, resource, sys, time
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
from topdp.cli import app
began = time.perf_counter()
sys.argv = ["topdp", *json.loads(sys.argv[1])]
app(standalone_mode=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
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
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
        (folder / "ranks_model.py").write_text(MODEL.format(features=FEATURES, hidden=args.hidden))
        floor = {
            ranks: max(peak for _, peak in measured(folder, 10, ranks, args.rounds)) for ranks in args.ranks
        }
        d = (FEATURES + 1) * args.hidden + (args.hidden + 1) * CLASSES
        first = ", ".join(f"{peak / 1e9:.2f} GB with {ranks}" for ranks, peak in floor.items())
        print(f"{d} parameters, {args.rounds} rounds, {RECORDS} records each; torch {torch.__version__}")
        print(f"{os.cpu_count()} cores; ten agents take {first}\n")
        print(
            "| agents | ranks | seconds | ms a round and agent | largest process, GB | kB an agent | equal |"
        )
        print("|---|---|---|---|---|---|---|")
        for agents in args.agents:
            ends: list[Path] = []
            for ranks in args.ranks:
                found = measured(folder, agents, ranks, args.rounds)
                ends.append(folder / f"{agents}-{ranks}")
                run = RunFolder.open(ends[-1])
                each = (sum(peak for _, peak in found) - ranks * floor[ranks]) / agents
                a_round = float(run.fact("seconds")) / agents / (args.rounds + 1)
                cells = [
                    agents,
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


def measured(folder: Path, agents: int, ranks: int, rounds: int) -> list[tuple[float, int]]:
    """Seconds and peak bytes of each process."""
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
        "privacy.guarantee": "worst-case", "train.evaluate_every": rounds, "train.checkpoint_every": 10**6,
    }  # fmt: skip
    words = ["run", "--out", str(out)]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    script = folder / "child.py"
    script.write_text(CHILD)
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *(together if ranks > 1 else []), str(script), json.dumps(words)]
    env = {
        **os.environ,
        "MEASURED": f"{out}.measured.",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return [tuple(json.loads(Path(f"{out}.measured.{rank}").read_text())) for rank in range(ranks)]


if __name__ == "__main__":
    main()

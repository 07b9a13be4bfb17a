"""Time and memory per agent of simulations on a 4-regular graph: one process and two local ranks.

    python benchmarks/ranks.py                              # 1,000 to 10,000 agents, 3,190 parameters
    python benchmarks/ranks.py --agents 10000 --hidden 100  # 79,510 parameters: the rows need 6.4 GB
    python benchmarks/ranks.py --hidden 100 --rows model bfloat16  # also with rows in bfloat16
    python benchmarks/ranks.py --kill --rounds 400          # kill rank 1 of 2; torchrun starts both again

Each job is a complete `topdp run` in its own processes: records, plan, account, rounds and run folder. Peak
memory is `VmHWM` of each process, because `ru_maxrss` would include the memory of the parent process. A run
of ten agents gives the memory that Python and torch need, which is subtracted before the division by the
number of agents. All numbers of ranks must give the same metrics, and the same estimates bit by bit.
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
from typing import NamedTuple

import numpy as np
import torch

from topdp.runs.run_folder import RunFolder
from topdp.runs.tensor_files import mapped

FEATURES, CLASSES, RECORDS_PER_AGENT, TEST_RECORDS = 784, 10, 4, 200
RANKS = (1, 2)
BASELINE_AGENTS = 10

# The program of a rank: it runs the command, then writes its duration and peak memory to a file.
RANK_PROGRAM = """
import json, os, sys, time
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
from topdp.cli.app import app
start = time.perf_counter()
sys.argv = ["topdp", *json.loads(sys.argv[1])]
app(standalone_mode=False)
lines = open("/proc/self/status").read().splitlines()
peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
rank = os.environ.get("RANK", "0")
open(os.environ["USAGE_PREFIX"] + rank, "w").write(json.dumps([time.perf_counter() - start, peak]))
"""

MODEL_MODULE = """
from torch import nn
def make(shape, outputs):
    first, last = nn.Linear({features}, {hidden}), nn.Linear({hidden}, outputs)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
"""

HEADINGS = (
    "agents", "rows", "ranks", "seconds", "ms per round and agent", "largest process, GB", "kB per agent",
    "equal",
)  # fmt: skip


class Job(NamedTuple):
    """A simulation, and the folder for its files."""

    folder: Path
    agents: int
    ranks: int
    rounds: int
    rows: str = "model"

    @property
    def out(self) -> Path:
        """The run folder."""
        return self.folder / f"{self.agents}-{self.ranks}"

    @property
    def usage_prefix(self) -> str:
        return f"{self.out}.usage."


class RankUsage(NamedTuple):
    seconds: float
    peak_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 2000, 5000, 10000])
    parser.add_argument("--hidden", type=int, default=4, help="the width of the hidden layer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--rows", nargs="+", default=["model"], choices=["model", "bfloat16"], help="values of train.rows"
    )
    parser.add_argument(
        "--kill", action="store_true", help="kill a rank of the smallest job, and compare the results"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
        (folder / "ranks_model.py").write_text(MODEL_MODULE.format(features=FEATURES, hidden=options.hidden))
        if options.kill:
            kill_rank(folder, min(options.agents), options.rounds)
        else:
            measure_jobs(folder, options)


def measure_jobs(folder: Path, options: argparse.Namespace) -> None:
    """Print a table of all jobs."""
    baseline_bytes = {}
    for ranks in RANKS:
        usages = execute(Job(folder, BASELINE_AGENTS, ranks, options.rounds))
        baseline_bytes[ranks] = max(usage.peak_bytes for usage in usages)
    parameters = (FEATURES + 1) * options.hidden + (options.hidden + 1) * CLASSES
    baselines = ", ".join(f"{peak / 1e9:.2f} GB with {ranks}" for ranks, peak in baseline_bytes.items())
    print(
        f"{parameters} parameters, {options.rounds} rounds, {RECORDS_PER_AGENT} records per agent; ", end=""
    )
    print(f"torch {torch.__version__}, {os.cpu_count()} cores")
    print(f"peak memory of a process with {BASELINE_AGENTS} agents, by ranks: {baselines}\n")
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    for agents, rows in itertools.product(options.agents, options.rows):
        jobs = [Job(folder, agents, ranks, options.rounds, rows) for ranks in RANKS]
        for job in jobs:
            usages = execute(job)
            total_bytes = sum(usage.peak_bytes for usage in usages)
            agent_bytes = (total_bytes - job.ranks * baseline_bytes[job.ranks]) / agents
            round_seconds = float(RunFolder.open(job.out).fact("seconds")) / agents / (options.rounds + 1)
            cells = [
                agents,
                rows,
                job.ranks,
                f"{max(usage.seconds for usage in usages):.1f}",
                f"{1000 * round_seconds:.3f}",
                f"{max(usage.peak_bytes for usage in usages) / 1e9:.2f}",
                f"{agent_bytes / 1e3:.0f}",
                "yes" if are_equal(jobs[0].out, job.out) else "NO",
            ]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
        for job in jobs:
            shutil.rmtree(job.out)


def are_equal(out: Path, other_out: Path) -> bool:
    """Return whether two runs have equal metrics, and equal estimates bit by bit.

    The estimates are compared row by row, so that they need not be in memory at once.
    """
    estimates = [mapped(folder / "model.safetensors", "estimates") for folder in (out, other_out)]
    rows = range(len(estimates[0]))
    same_estimates = all(np.array_equal(estimates[0][row], estimates[1][row]) for row in rows)
    return same_estimates and RunFolder.open(out).metrics == RunFolder.open(other_out).metrics


def kill_rank(folder: Path, agents: int, rounds: int) -> None:
    """Kill rank 1 of 2 after a checkpoint, under torchrun --max-restarts; compare with an undisturbed run."""
    undisturbed, job = Job(folder, agents, 1, rounds), Job(folder, agents, 2, rounds)
    execute(undisturbed)
    command, environment = command_of(job, "--max-restarts", "1")
    torchrun = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    )
    while not list(job.out.glob("checkpoint-*.1-of-2.safetensors")):
        if torchrun.poll() is not None:
            errors = torchrun.communicate()[1][-3000:]
            sys.exit(f"Expected a checkpoint before the run ends, got none. Increase --rounds.\n{errors}")
        time.sleep(0.01)
    start = time.perf_counter()
    os.kill(process_of_rank(torchrun.pid, 1), signal.SIGKILL)
    lines: list[str] = []
    for line in torchrun.stderr or ():
        if "lost another rank" in line:
            print(f"rank 0 reports after {time.perf_counter() - start:.1f} s: {line.strip()}")
        lines.append(line)
    if torchrun.wait():
        sys.exit("".join(lines)[-3000:])
    print(f"the second start ended {time.perf_counter() - start:.1f} s after the kill")
    print("equal to an undisturbed run:", "yes" if are_equal(undisturbed.out, job.out) else "NO")


def process_of_rank(torchrun: int, rank: int) -> int:
    """Return the process number of a rank that the process `torchrun` has started."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    variable = f"RANK={rank}".encode()
    return next(
        int(child)
        for child in children
        if variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )


def execute(job: Job) -> list[RankUsage]:
    """Execute a job; return the duration and peak memory of each rank."""
    command, environment = command_of(job)
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    if completed.returncode:
        sys.exit(completed.stderr[-3000:])
    files = [Path(f"{job.usage_prefix}{rank}") for rank in range(job.ranks)]
    return [RankUsage(*json.loads(file.read_text())) for file in files]


def command_of(job: Job, *torchrun_options: str) -> tuple[list[str], dict[str, str]]:
    """Write the files that a job needs; return its command and its environment."""
    records = job.folder / f"records-{job.agents}.npz"
    if not records.exists():
        random = np.random.default_rng(0)
        np.savez(
            records,
            train_inputs=random.random((job.agents * RECORDS_PER_AGENT, FEATURES), np.float32),
            train_labels=random.integers(0, CLASSES, job.agents * RECORDS_PER_AGENT),
            test_inputs=random.random((TEST_RECORDS, FEATURES), np.float32),
            test_labels=random.integers(0, CLASSES, TEST_RECORDS),
        )
    settings = {
        "data.name": records, "model.name": "ranks_model:make", "topology.kind": "regular",
        "topology.agents": job.agents, "topology.degree": 4, "method.name": "dsgd", "rounds": job.rounds,
        "privacy.guarantee": "worst-case", "train.evaluate_every": job.rounds,
        "train.checkpoint_every": 20, "train.rows": job.rows,
    }  # fmt: skip
    arguments = ["run", "--out", str(job.out)]
    for key, value in settings.items():
        arguments += ["--set", f"{key}={value}"]
    program = job.folder / "rank_program.py"
    program.write_text(RANK_PROGRAM)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks)]
    launcher = [*torchrun, *torchrun_options] if job.ranks > 1 else []
    command = [sys.executable, *launcher, str(program), json.dumps(arguments)]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return command, {**os.environ, "USAGE_PREFIX": job.usage_prefix, "OMP_NUM_THREADS": threads}


if __name__ == "__main__":
    main()

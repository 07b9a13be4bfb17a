"""What the exact view costs: time and memory of the jobs people run, and how both grow.

Each job runs in a process of its own with one thread, so that its peak memory is its own. `cpu` is the time
of that process, `wall` what passed meanwhile; they differ on a busy machine. Limits are on `wall`.

    python benchmarks/view.py [--quick] [--json]

`neighbours`: all neighbour pairs, random graph of 30 at rate 0.2, T=1000. `large`: 300 agents of mean degree
6, T=200, 20 observers. The rest vary n, the mean degree and T one at a time, 4 observers each. `--quick` runs
everything at a tenth of the rounds. `state` is the mean number of rows that the filter carries.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

LIMITS = {  # job -> seconds, bytes
    "neighbours, aligned": (30, 2 << 30),
    "neighbours, upper": (180, 2 << 30),
    "large, aligned": (480, 4 << 30),
    "large, upper": (480, 4 << 30),
}


@dataclass(frozen=True)
class Job:
    name: str
    agents: int
    degree: float
    rounds: int
    observers: int
    bound: str


def jobs(quick: bool) -> list[Job]:
    def of(name: str, agents: int, degree: float, rounds: int, observers: int) -> list[Job]:
        rounds = max(5, rounds // 10) if quick else rounds
        return [Job(f"{name}, {b}", agents, degree, rounds, observers, b) for b in ("aligned", "upper")]

    return [
        *of("neighbours", 30, 0.2 * 29, 1000, 30),
        *of("large", 300, 6, 200, 20),
        *(job for n in (25, 50, 100, 200) for job in of(f"n={n}", n, 6, 200, 4)),
        *(job for k in (4, 8, 16) for job in of(f"degree={k}", 60, k, 200, 4)),
        *(job for T in (250, 500, 1000, 2000, 6000) for job in of(f"T={T}", 30, 5.8, T, 4)),
    ]


def measure(job: Job) -> dict[str, float]:
    """Runs one job in this process."""
    import numpy as np

    from topdp import topology
    from topdp.plan import schedules
    from topdp.privacy.basics.exposure import exposure
    from topdp.privacy.observers.observer_filter import observed_rounds
    from topdp.privacy.observers.view import view
    from topdp.protocols import TopSynchronous

    graph = topology.random(job.agents, job.degree / (job.agents - 1), seed=0)
    rates = schedules.learning_rates(0.5, job.rounds, "none")
    schedule = schedules.schedule(rates, np.ones(job.rounds + 1), "gradient")
    plan = TopSynchronous(0.25).plan(graph, schedule, np.ones(job.agents), seed=0)
    exposed = exposure(job.agents, 1.0)
    observers = range(0, job.agents, job.agents // job.observers)[: job.observers]
    wall, cpu = time.perf_counter(), time.process_time()
    found = view(plan, exposed, observers, bound=job.bound)  # type: ignore[arg-type]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    mu = found.lower if found.upper is None else found.upper
    carried = [s.kept for s in observed_rounds(plan, np.arange(job.agents) == observers[0])]
    return {
        "rows": plan.rows,
        "state": float(np.mean(carried)),
        "pairs": int(found.asked.sum()),
        "worst_over_claim": float(np.nanmax(mu) ** 2 / plan.releases),
        "upper_over_lower": float(np.nanmax(mu / found.lower)),
        "wall": wall,
        "cpu": cpu,
        "memory": memory,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(Job(**json.loads(arguments.one)))))
        return 0

    out = sys.stderr if arguments.json else sys.stdout
    print(
        f"{'job':<22}{'rows':>6}{'state':>7}{'pairs':>6}{'cpu s':>9}{'wall s':>9}{'MB':>7}"
        f"{'μ²/claim':>10}{'up/low':>8}  limit",
        file=out,
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    results = []
    missed = False
    for job in jobs(arguments.quick):
        command = [sys.executable, __file__, "--one", json.dumps(asdict(job))]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        numbers = json.loads(done.stdout)
        limit = ""
        if job.name in LIMITS and not arguments.quick:
            seconds, memory = LIMITS[job.name]
            kept = numbers["wall"] < seconds and numbers["memory"] < memory
            missed |= not kept
            limit = f"{seconds} s, {memory >> 20} MB: {'kept' if kept else 'MISSED'}"
        print(
            f"{job.name:<22}{numbers['rows']:>6}{numbers['state']:>7.0f}{numbers['pairs']:>6}"
            f"{numbers['cpu']:>9.2f}{numbers['wall']:>9.2f}{numbers['memory'] / 2**20:>7.0f}"
            f"{numbers['worst_over_claim']:>10.3f}{numbers['upper_over_lower']:>8.3f}  {limit}",
            file=out,
            flush=True,
        )
        results.append({**asdict(job), **numbers})
    if arguments.json:
        print(json.dumps({"quick": arguments.quick, "jobs": results}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

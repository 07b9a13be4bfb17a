"""Duration of adaptive answers, and how far the bounds lie above the exact answer.

    python benchmarks/accounts.py                # the default job: the quick bound, then the precise bound
    python benchmarks/accounts.py large          # 1,000 agents of degree 4, 500 rounds: every pair
    python benchmarks/accounts.py huge           # 10,000 agents, 500 rounds: a sample of 100 owners
    python benchmarks/accounts.py tightness      # bounds over exact answers, for several α and ball radii
    python benchmarks/accounts.py large --agents 200 --rounds 50

The environment variable TOPDP_CORES limits the number of cores.

**Guarantees.** `huge` bounds what coalitions learn about the sampled owners. It states nothing about the
other owners, so its result is no guarantee for the plan.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from topdp import topology
from topdp.plan import Plan, Schedule
from topdp.privacy import exposure
from topdp.privacy.observers._estimate_readers import estimate_readers
from topdp.privacy.observers._neighbourhoods import affordable_ball_rows, neighbourhood_bound
from topdp.privacy.observers._parallel_map import cores
from topdp.privacy.observers._reader_layout import RowFlow
from topdp.privacy.query import Query
from topdp.protocols import TopSynchronous

DEFAULT_ALPHA = 0.25
TIGHTNESS_ALPHAS = (0.1, 0.25, 0.5, 0.75)
TIGHTNESS_OWNERS = list(range(10))
BALL_ROWS_BY_RADIUS = (0, 20, 80, 160)  # limits on hidden rows for balls of radius 0, 1, 2 and 3 at degree 4


def top_plan(graph: topology.Topology, rounds: int, alpha: float = DEFAULT_ALPHA) -> Plan:
    schedule = Schedule(rate=np.full(rounds + 1, 0.1), noise=np.full(rounds + 1, 0.1))
    return TopSynchronous(alpha).plan(graph, schedule, np.full(graph.agents, 5.0), seed=0)


class Stopwatch:
    """The wall time and the CPU time since its construction, in seconds."""

    def __init__(self) -> None:
        self.wall_start, self.cpu_start = time.perf_counter(), time.process_time()

    def __str__(self) -> str:
        wall, cpu = time.perf_counter() - self.wall_start, time.process_time() - self.cpu_start
        return f"{wall:.2f} s wall time, {cpu:.2f} s CPU time"


def default(options: argparse.Namespace) -> dict[str, Any]:
    """Time the quick and the precise bound on a random graph."""
    agents = options.agents or 30
    plan = top_plan(topology.random(agents, 0.2, seed=0), options.rounds or 150)
    flow, exposed, observers = RowFlow(plan), exposure(agents, 1.0), [(j,) for j in range(agents)]
    stopwatch = Stopwatch()
    quick = estimate_readers(flow, exposed, observers, bound="quick").worst()
    results: dict[str, Any] = {"quick bound": str(stopwatch)}
    stopwatch = Stopwatch()
    precise = estimate_readers(flow, exposed, observers).worst()
    results["precise bound"] = str(stopwatch)
    results["quick over precise bound, largest"] = f"{float((quick / precise).max()):.4f}"
    return results


def large(options: argparse.Namespace) -> dict[str, Any]:
    """Time the bound on every pair of a large graph."""
    agents = options.agents or 1000
    plan = top_plan(topology.regular(agents, 4, seed=0), options.rounds or 500)
    query = Query(colluders=options.colluders)
    stopwatch = Stopwatch()
    flow = RowFlow(plan)
    view = neighbourhood_bound(flow, exposure(agents, 1.0), query, room=affordable_ball_rows(flow, query))
    return {"bound": str(stopwatch), "largest μ": float(view.worst().max()), "note": view.note}


def huge(options: argparse.Namespace) -> dict[str, Any]:
    """Time the plan of a very large graph, and the bound for a sample of owners."""
    agents, sample = options.agents or 10_000, options.sample
    stopwatch = Stopwatch()
    plan = top_plan(topology.regular(agents, 4, seed=0), options.rounds or 500)
    results: dict[str, Any] = {"plan": str(stopwatch)}
    stopwatch = Stopwatch()
    owners = np.sort(np.random.default_rng(0).choice(agents, sample, replace=False))
    query = Query(colluders=options.colluders)
    view = neighbourhood_bound(RowFlow(plan), exposure(agents, 1.0), query, owners.tolist())
    results["bound"] = str(stopwatch)
    mu = view.worst()[owners]
    results["smallest and largest μ"] = [float(mu.min()), float(mu.max())]
    results["scope"] = f"{sample} of {agents} owners, every coalition; nothing is stated about other owners"
    return results


def tightness(options: argparse.Namespace) -> dict[str, Any]:
    """Divide the bounds of balls by the exact answer."""
    agents = options.agents or 60
    ratios: dict[str, Any] = {}
    for alpha in TIGHTNESS_ALPHAS:
        plan = top_plan(topology.regular(agents, 4, seed=0), options.rounds or 60, alpha)
        flow, exposed = RowFlow(plan), exposure(agents, 1.0)
        exact = estimate_readers(flow, exposed, [(j,) for j in range(agents)]).worst()
        for radius, rows in enumerate(BALL_ROWS_BY_RADIUS):
            bound = neighbourhood_bound(flow, exposed, owners=TIGHTNESS_OWNERS, room=rows).worst()
            ratio = (bound / exact)[TIGHTNESS_OWNERS]
            ratios[f"α = {alpha}, radius {radius}"] = f"{ratio.min():.4f} to {ratio.max():.4f}"
    return ratios


JOBS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "default": default,
    "large": large,
    "huge": huge,
    "tightness": tightness,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("job", nargs="?", default="default", choices=JOBS)
    parser.add_argument("--agents", type=int, help="by default the number that the job states")
    parser.add_argument("--rounds", type=int, help="by default the number that the job states")
    parser.add_argument("--colluders", type=int, default=1, help="for `large` and `huge`")
    parser.add_argument("--sample", type=int, default=100, help="the number of owners in `huge`")
    options = parser.parse_args()
    for name, value in JOBS[options.job](options).items():
        print(f"{name}: {value}")
    print(f"on {cores()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())

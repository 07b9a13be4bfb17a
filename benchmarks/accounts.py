"""What does the adaptive answer cost? Wall and processor seconds, and how far bounds are above the answer.

    python benchmarks/accounts.py default        # the default job: the quick bound, then the answer
    python benchmarks/accounts.py large          # 1,000 agents, each with 4 links, 500 rounds: every pair
    python benchmarks/accounts.py huge           # 10,000 agents, 500 rounds: a sample of 100 owners
    python benchmarks/accounts.py tightness      # bounds over exact answers, by alpha and size of balls
    python benchmarks/accounts.py large --agents 200 --rounds 50 --workers 1 --json

A sample says what the owners in it learn at most, and nothing of the others: no guarantee.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
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


def plan_of(graph: topology.Topology, rounds: int, alpha: float) -> Plan:
    steps = Schedule(rate=np.full(rounds + 1, 0.1), noise=np.full(rounds + 1, 0.1))
    return TopSynchronous(alpha).plan(graph, steps, np.full(graph.agents, 5.0), seed=0)


class Clock:
    """Seconds by the wall and of processors."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "wall": round(time.perf_counter() - self.wall, 2),
            "processor": round(time.process_time() - self.processor, 2),
        }


def default(chosen: argparse.Namespace) -> dict[str, Any]:
    n = chosen.agents or 30
    plan = plan_of(topology.random(n, 0.2, seed=0), chosen.rounds or 150, chosen.alpha)
    ways, exposed, alone = RowFlow(plan), exposure(n, 1.0), [(j,) for j in range(n)]
    clock = Clock()
    quick = estimate_readers(ways, exposed, alone, bound="quick", workers=chosen.workers)
    first, clock = clock.read(), Clock()
    found = estimate_readers(ways, exposed, alone, workers=chosen.workers)
    above = float((quick.worst() / found.worst()).max()) - 1
    return {"quick bound": first, "answer": clock.read(), "quick bound is above it by": above}


def large(chosen: argparse.Namespace) -> dict[str, Any]:
    n = chosen.agents or 1000
    plan = plan_of(topology.regular(n, 4, seed=0), chosen.rounds or 500, chosen.alpha)
    clock = Clock()
    ways = RowFlow(plan)
    room = affordable_ball_rows(ways, Query(colluders=chosen.colluders))
    found = neighbourhood_bound(ways, exposure(n, 1.0), chosen.colluders, room=room, workers=chosen.workers)
    return {"seconds": clock.read(), "largest mu": float(found.worst().max()), "how": found.note}


def huge(chosen: argparse.Namespace) -> dict[str, Any]:
    n, some = chosen.agents or 10_000, chosen.sample
    clock = Clock()
    plan = plan_of(topology.regular(n, 4, seed=0), chosen.rounds or 500, chosen.alpha)
    written, clock = clock.read(), Clock()
    owners = np.random.default_rng(0).choice(n, some, replace=False)
    found = neighbourhood_bound(
        RowFlow(plan), exposure(n, 1.0), chosen.colluders, np.sort(owners).tolist(), workers=chosen.workers
    )
    what = f"a sample: {some} of {n} owners, and every coalition against each; nothing is said of the others"
    mu = found.worst()[owners]
    return {
        "plan": written,
        "seconds": clock.read(),
        "mu from, to": [float(mu.min()), float(mu.max())],
        "what": what,
    }


def tightness(chosen: argparse.Namespace) -> dict[str, Any]:
    n, some = chosen.agents or 60, list(range(10))
    result: dict[str, Any] = {}
    for alpha in (0.1, 0.25, 0.5, 0.75):
        plan = plan_of(topology.regular(n, 4, seed=0), chosen.rounds or 60, alpha)
        ways, exposed = RowFlow(plan), exposure(n, 1.0)
        exact = estimate_readers(ways, exposed, [(j,) for j in range(n)], workers=chosen.workers).worst()[
            some
        ]
        for links, room in enumerate((0, 20, 80, 160)):
            bound = neighbourhood_bound(ways, exposed, owners=some, room=room, workers=chosen.workers)
            ratio = bound.worst()[some] / exact
            result[f"alpha {alpha}, {links} links"] = [round(float(r), 4) for r in (ratio.min(), ratio.max())]
            print(f"alpha {alpha}, {links} links", *result[f"alpha {alpha}, {links} links"], flush=True)
    return result


JOBS = {"default": default, "large": large, "huge": huge, "tightness": tightness}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--agents", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--alpha", type=float, default=0.25)
    parser.add_argument("--colluders", type=int, default=1)
    parser.add_argument("--sample", type=int, default=100, help="owners that are looked at by `huge`")
    parser.add_argument("--workers", type=int, default=None, help="default all cores")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    chosen = parser.parse_args()
    found = JOBS[chosen.job](chosen)
    for name, value in found.items():
        print(f"{name}: {value}")
    print(f"on {chosen.workers or cores()} cores")
    if chosen.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

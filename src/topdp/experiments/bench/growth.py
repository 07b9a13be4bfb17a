"""How time and memory of a round grow with agents, parameters, degree and rounds, one of them at a time.

Each job runs in this process, and smaller ones come first; with a limit of minutes, what is left out is said.
Memory is by how much the peak of a job lies above what the process held before: rows, records, plan and
activations.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from topdp.base.progress import Progress, silent
from topdp.experiments.bench.bench_job import Data, Job, engine_of
from topdp.experiments.bench.turn_timing import clock

SMALL = Job(agents=100, batch=8, inputs=78, hidden=100, degree=1)
"""9,000 parameters: what of it takes time is not one product alone."""

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")

LEAST = 0.5
"""Seconds that each job is timed for, if its rounds last that long."""


@dataclass(frozen=True)
class Point:
    """One job of a series: what grew, and what a round took."""

    series: str
    value: int
    seconds: float  # of a round
    megabytes: float | None  # None: this system does not say
    agents_per_second: float

    def to_json(self) -> dict[str, Any]:
        return {
            "series": self.series,
            "value": self.value,
            "seconds": self.seconds,
            "megabytes": self.megabytes,
            "agents_per_second": self.agents_per_second,
        }


def series(largest: float = 1.0) -> dict[str, list[tuple[int, Job]]]:
    """The jobs of each series, from small to large; `largest` < 1 leaves out those above that share."""
    few = Job(agents=4, batch=16)
    widths = [w for w in (12, 126, 1258, 12578) if w <= 12578 * largest]
    return {
        "agents": [
            (n, replace(SMALL, agents=n, degree=min(4, n - 1)))
            for n in (10, 30, 100, 300, 1000, 3000, 10_000)
            if n <= 10_000 * largest
        ],
        "parameters": [
            (job.parameters, job) for job in (replace(few, hidden=width, degree=2) for width in widths)
        ],
        "degree": [(k, replace(SMALL, degree=k)) for k in (1, 2, 4, 8, 16, 32, 64) if k <= 64 * largest],
        "rounds": [
            (t, replace(SMALL, rounds=t)) for t in (10, 100, 1000, 10_000, 100_000) if t <= 1e5 * largest
        ],
    }


def grow(minutes: float, progress: Progress = silent, largest: float = 1.0) -> tuple[list[Point], list[str]]:
    """Points of all series, and the jobs for which there was no time."""
    _measured("what is loaded and compiled once", 2, replace(SMALL, agents=2))
    begun, found, left_out = perf_counter(), [], []
    for name, value, job in _in_turn(series(largest)):
        if perf_counter() - begun > 60 * minutes:
            left_out.append(f"{value:,} {name}")
            continue
        progress(f"{value:,} {name}")
        found.append(_measured(name, value, job))
    return found, left_out


def _in_turn(all_series: dict[str, list[tuple[int, Job]]]) -> Iterator[tuple[str, int, Job]]:
    """The smallest jobs of all series first, so that a short time leaves something of each."""
    for rank in range(max(map(len, all_series.values()))):
        for name, jobs in all_series.items():
            if rank < len(jobs):
                yield name, *jobs[rank]


def _measured(name: str, value: int, job: Job) -> Point:
    (now, _), before = clock(), _memory_from_here()
    data = Data.of(job)
    engine = engine_of(job, data, job.noise_multiplier)
    state = engine.advance(engine.resume(0, data.rows))
    best, spent = float("inf"), 0.0
    while state.releases < engine.plan.releases and (spent < LEAST or best == float("inf")):
        begun = now()
        state = engine.advance(state)
        best = min(best, now() - begun)
        spent += now() - begun
    held = None if before is None else max(0.0, _status("VmHWM") - before)
    return Point(name, value, best, held, job.agents / best)


def _memory_from_here() -> float | None:
    """Megabytes that this process holds; its peak counts anew. None where the system does not say."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what earlier jobs have left would be used again, and not be seen
        CLEAR.write_text("5")
        return _status("VmRSS")
    except (OSError, AttributeError):
        return None


def _status(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return 1024e-6 * int(line.split()[1])


def exponents(points: list[Point]) -> dict[str, float]:
    """For each series, k where time grows as value^k over the upper half of its points."""
    found = {}
    for name in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == name]
        upper = own[-max(2, (len(own) + 1) // 2) :]
        if len(upper) > 1:
            x, y = np.log([p.value for p in upper]), np.log([p.seconds for p in upper])
            found[name] = float(np.polyfit(x, y, 1)[0])
    return found

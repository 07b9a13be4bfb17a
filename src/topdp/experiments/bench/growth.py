"""Growth of a round's time and memory with agents, parameters, degree and rounds, one of them at a time.

Each job runs in this process; smaller jobs come first. Jobs that do not begin before the time limit are left
out and reported. Memory is the peak of a job minus what the process held before the job. It contains rows,
records, plan and activations.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from time import perf_counter

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from topdp.base.progress import Progress, silent
from topdp.experiments.bench.bench_job import BenchData, BenchJob, bench_engine, clock
from topdp.runs.pictures.chart_style import BLUE, RED, house_style, save

SMALL_JOB = BenchJob(agents=100, batch=8, inputs=78, hidden=100, degree=1)
"""It has 9,000 parameters, so that no single matrix product dominates the time."""

CLEAR_REFS_FILE, STATUS_FILE = Path("/proc/self/clear_refs"), Path("/proc/self/status")

MIN_TIMED_SECONDS = 0.5
"""The least time over which each job is measured, if its rounds last that long."""


@dataclass(frozen=True, kw_only=True)
class GrowthPoint:
    """One job of a series: the quantity that grows, and the cost of a round."""

    series: str
    value: int
    seconds: float  # of a round
    megabytes: float | None  # None if the system does not report it
    agents_per_second: float


def series() -> dict[str, list[tuple[int, BenchJob]]]:
    """Return the jobs of each series with the value that grows, from small to large."""
    wide = [BenchJob(agents=4, batch=16, degree=2, hidden=width) for width in (12, 126, 1258, 12578)]
    crowds = (10, 30, 100, 300, 1000, 3000, 10_000)
    return {
        "agents": [(n, replace(SMALL_JOB, agents=n, degree=4)) for n in crowds],
        "parameters": [(job.parameters, job) for job in wide],
        "degree": [(k, replace(SMALL_JOB, degree=k)) for k in (1, 2, 4, 8, 16, 32, 64)],
        "rounds": [(t, replace(SMALL_JOB, rounds=t)) for t in (10, 100, 1000, 10_000, 100_000)],
    }


def measure_growth(minutes: float, progress: Progress = silent) -> tuple[list[GrowthPoint], list[str]]:
    """Return the points of all series, and the jobs that were left out for lack of time.

    The smallest jobs of all series come first, so that every series has points even if the time is short.
    """
    _measure("warm-up", 2, replace(SMALL_JOB, agents=2))  # loads and compiles what all jobs use
    started, points, left_out = perf_counter(), [], []
    named = [[(name, value, job) for value, job in jobs] for name, jobs in series().items()]
    for name, value, job in filter(None, chain.from_iterable(zip_longest(*named))):
        if perf_counter() - started > 60 * minutes:
            left_out.append(f"{value:,} {name}")
            continue
        progress(f"{value:,} {name}")
        points.append(_measure(name, value, job))
    return points, left_out


def _measure(name: str, value: int, job: BenchJob) -> GrowthPoint:
    (now, _), before = clock(), _reset_peak_megabytes()
    data = BenchData.of(job)
    engine = bench_engine(job, data, job.noise_multiplier)
    state = engine.advance(engine.resume(0, data.rows))
    best, spent = float("inf"), 0.0
    while state.releases < engine.plan.releases and (spent < MIN_TIMED_SECONDS or best == float("inf")):
        started = now()
        state = engine.advance(state)
        best = min(best, now() - started)
        spent += now() - started
    megabytes = None if before is None else max(0.0, _status_megabytes("VmHWM") - before)
    return GrowthPoint(
        series=name, value=value, seconds=best, megabytes=megabytes, agents_per_second=job.agents / best
    )


def _reset_peak_megabytes() -> float | None:
    """Reset the recorded peak of this process's memory; return the megabytes in use, or None if unknown."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # otherwise this job would reuse memory that earlier jobs freed
        CLEAR_REFS_FILE.write_text("5")
        return _status_megabytes("VmRSS")
    except (OSError, AttributeError):
        return None


def _status_megabytes(name: str) -> float:
    line = next(line for line in STATUS_FILE.read_text().splitlines() if line.startswith(name))
    return 1024e-6 * int(line.split()[1])


def exponents(points: Sequence[GrowthPoint]) -> dict[str, float]:
    """Return for each series the k for which time grows as value^k, fitted to its upper half of points."""
    powers = {}
    for name in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == name]
        upper = own[-max(2, (len(own) + 1) // 2) :]
        if len(upper) > 1:
            x, y = np.log([p.value for p in upper]), np.log([p.seconds for p in upper])
            powers[name] = float(np.polyfit(x, y, 1)[0])
    return powers


def short_number(value: float) -> str:
    """Abbreviate a power of ten.

    >>> short_number(1000), short_number(1e7), short_number(0.1)
    ('1k', '10M', '0.1')
    """
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def draw(points: Sequence[GrowthPoint], path: Path, title: str) -> Path:
    """Draw one column per series: the time of a round above, peak memory below."""
    names = list(dict.fromkeys(point.series for point in points))
    with house_style():
        figure = Figure(figsize=(2.2 * max(3, len(names)), 4.6))
        figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
        both = figure.subplots(2, len(names), squeeze=False, sharex="col", sharey="row")
        for column, name in enumerate(names):
            own = [point for point in points if point.series == name]
            values = [point.value for point in own]
            time, memory = both[0][column], both[1][column]
            time.loglog(values, [1e3 * point.seconds for point in own], color=BLUE, marker="o")
            peaks = [(point.value, max(1.0, point.megabytes)) for point in own if point.megabytes is not None]
            if peaks:
                memory.loglog(*zip(*peaks, strict=True), color=RED, marker="s")
            memory.set_xlabel({"degree": "rows in a mix"}.get(name, name))
            for axis in (time.xaxis, time.yaxis, memory.xaxis, memory.yaxis):
                axis.set_major_formatter(lambda value, _: short_number(value))
                axis.set_minor_formatter(NullFormatter())
        both[0][0].set_ylabel("ms a round")
        both[1][0].set_ylabel("peak MB")
        return save(figure, path)

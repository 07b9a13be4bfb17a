"""What `topdp bench` found: as JSON, and as tables for people."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from topdp import __version__
from topdp.experiments.bench.bench_job import Job
from topdp.experiments.bench.contestants import OURS, TITLES
from topdp.experiments.bench.floors import Part, Rates
from topdp.experiments.bench.growth import Point, exponents
from topdp.experiments.bench.turn_timing import Turns, clock
from topdp.views.terminal.tables import uncut


def machine() -> dict[str, Any]:
    """On what it was measured."""
    return {
        "topdp": __version__,
        "torch": torch.__version__,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "clock": clock()[1],
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def as_json(
    job: Job, turns: Turns, parts: Sequence[Part], rates: Rates, whole: float, difference: float
) -> dict[str, Any]:
    floor = sum(part.floor for part in parts)
    return {
        "job": asdict(job) | {"parameters": job.parameters},
        "machine": machine(),
        "seconds": turns.to_json(),
        "ratio": {name: turns.ratio(name, OURS) for name in turns.seconds if name != OURS},
        "difference": difference,
        "parts": [part.to_json() for part in parts],
        "rates": asdict(rates),
        "round": {"seconds": whole, "floor": floor, "times_floor": whole / floor},
    }


def contest(found: dict[str, Any]) -> Table:
    """One line a contestant: how long, and how many times ours."""
    about = found["machine"]
    table = uncut(
        "a round by", "best", "median", "times topdp", "in one turn",
        caption=f"{about['clock']}, {about['threads']} thread(s), {about['processor']}; in one turn: median, "
        "and the middle half of all turns",
    )  # fmt: skip
    for name, seconds in found["seconds"].items():
        ratio = found["ratio"].get(name)
        table.add_row(
            TITLES[name],
            f"{1e3 * seconds['best']:.1f} ms",
            f"{1e3 * seconds['median']:.1f} ms",
            "1" if ratio is None else f"{ratio['best']:.2f}",
            "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
        )
    return table


def floors(found: dict[str, Any]) -> Table:
    """One line a part: what it takes alone, and what it takes at least."""
    rates, whole = found["rates"], found["round"]
    table = uncut(
        "part of a round", "alone", "floor", "times", "what it does",
        caption=f"measured: {2e-9 * rates['multiplications']:.0f} GFLOP/s, {1e-9 * rates['bytes']:.0f} GB/s, "
        f"{1e-6 * rates['draws']:.0f} M draws/s",
    )  # fmt: skip
    lines = [(part["part"], part["seconds"], part["floor"], part["because"]) for part in found["parts"]]
    for name, seconds, floor, because in (*lines, ("the round", whole["seconds"], whole["floor"], "")):
        ratio = f"{seconds / floor:.2f}"
        table.add_row(name, f"{1e3 * seconds:.2f} ms", f"{1e3 * floor:.2f} ms", ratio, because)
    return table


def growth_json(points: Sequence[Point], left_out: Sequence[str]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "points": [point.to_json() for point in points],
        "exponents": exponents(list(points)),
        "left_out": list(left_out),
    }


def growth(found: dict[str, Any]) -> Table:
    """One line a job."""
    powers = [f"{name}^{k:.2f}" for name, k in found["exponents"].items()]
    grown = f"time grows as {', '.join(powers)}" if powers else "too few points for a law"
    about = found["machine"]
    table = uncut(
        "what grows", "to", "ms a round", "MB at its peak", "agents a second",
        caption=f"{grown}; {about['clock']}, {about['threads']} thread(s), {about['processor']}",
    )  # fmt: skip
    order = list(dict.fromkeys(point["series"] for point in found["points"]))
    for point in sorted(found["points"], key=lambda p: (order.index(p["series"]), p["value"])):
        held = point["megabytes"]
        table.add_row(
            point["series"],
            f"{point['value']:,}",
            f"{1e3 * point['seconds']:.2f}",
            "unknown" if held is None else f"{held:.1f}",
            f"{point['agents_per_second']:,.0f}",
        )
    return table

"""Results of `topdp bench` as JSON, and as tables for people."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from topdp import __version__
from topdp.experiments.bench.bench_job import BenchJob, Turns, clock
from topdp.experiments.bench.contestants import CONTESTANT_TITLES, TOPDP
from topdp.experiments.bench.floors import Rates, RoundPart
from topdp.experiments.bench.growth import GrowthPoint, exponents
from topdp.views.terminal.tables import uncut


def machine() -> dict[str, Any]:
    """Return a description of the machine and of the versions that were measured."""
    return {
        "topdp": __version__,
        "torch": torch.__version__,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "clock": clock()[1],
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def bench_json(
    job: BenchJob, turns: Turns, parts: Sequence[RoundPart], rates: Rates, whole: float, difference: float
) -> dict[str, Any]:
    floor = sum(part.floor for part in parts)
    return {
        "job": asdict(job) | {"parameters": job.parameters},
        "machine": machine(),
        "seconds": turns.to_json(),
        "ratio": {name: turns.ratio(name, TOPDP) for name in turns.seconds if name != TOPDP},
        "difference": difference,
        "parts": [asdict(part) for part in parts],
        "rates": asdict(rates),
        "round": {"seconds": whole, "floor": floor, "times_floor": whole / floor},
    }


def contest_table(results: dict[str, Any]) -> Table:
    """Return a table with one line per contestant: its times, and their ratio to topdp's."""
    about = results["machine"]
    table = uncut(
        "a round by", "best", "median", "times topdp", "in one turn",
        caption=f"{about['clock']}, {about['threads']} thread(s), {about['processor']}; in one turn: median, "
        "and the middle half of all turns",
    )  # fmt: skip
    for name, seconds in results["seconds"].items():
        ratio = results["ratio"].get(name)
        table.add_row(
            CONTESTANT_TITLES[name],
            f"{1e3 * seconds['best']:.1f} ms",
            f"{1e3 * seconds['median']:.1f} ms",
            "1" if ratio is None else f"{ratio['best']:.2f}",
            "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
        )
    return table


def floors_table(results: dict[str, Any]) -> Table:
    """Return a table with one line per part of a round: its time and its floor."""
    rates, whole = results["rates"], results["round"]
    table = uncut(
        "part of a round", "alone", "floor", "times", "what it does",
        caption=f"measured: {2e-9 * rates['multiplications']:.0f} GFLOP/s, {1e-9 * rates['bytes']:.0f} GB/s, "
        f"{1e-6 * rates['draws']:.0f} M draws/s",
    )  # fmt: skip
    lines = [(part["part"], part["seconds"], part["floor"], part["because"]) for part in results["parts"]]
    for name, seconds, floor, because in (*lines, ("the round", whole["seconds"], whole["floor"], "")):
        ratio = f"{seconds / floor:.2f}"
        table.add_row(name, f"{1e3 * seconds:.2f} ms", f"{1e3 * floor:.2f} ms", ratio, because)
    return table


def growth_json(points: Sequence[GrowthPoint], left_out: Sequence[str]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "points": [asdict(point) for point in points],
        "exponents": exponents(points),
        "left_out": list(left_out),
    }


def growth_table(results: dict[str, Any]) -> Table:
    """Return a table with one line per job."""
    powers = [f"{name}^{k:.2f}" for name, k in results["exponents"].items()]
    law = f"time grows as {', '.join(powers)}" if powers else "too few points to fit a power"
    about = results["machine"]
    table = uncut(
        "what grows", "to", "ms a round", "peak MB", "agents a second",
        caption=f"{law}; {about['clock']}, {about['threads']} thread(s), {about['processor']}",
    )  # fmt: skip
    order = list(dict.fromkeys(point["series"] for point in results["points"]))
    for point in sorted(results["points"], key=lambda p: (order.index(p["series"]), p["value"])):
        megabytes = point["megabytes"]
        table.add_row(
            point["series"],
            f"{point['value']:,}",
            f"{1e3 * point['seconds']:.2f}",
            "unknown" if megabytes is None else f"{megabytes:.1f}",
            f"{point['agents_per_second']:,.0f}",
        )
    return table

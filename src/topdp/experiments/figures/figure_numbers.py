"""The numbers of a figure as CSV: written from stored runs, read back for pictures and verdicts.

One row for each panel, line, x, seed and statistic over agents (mean, min, max); one column for each
evaluated round, for panels with x only the last. Pictures and verdicts depend on this file alone, so that
they can be made again without the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topdp.errors import InputError
from topdp.experiments.figure_runner import FigureRuns
from topdp.experiments.figures.paper_figure import FigureNumbers, Panel, Place
from topdp.experiments.run_store import REDRAW_REMEDY, Curve, csv_rows, write_csv
from topdp.runs.config import RunConfig

KEY_COLUMNS = ["panel", "line", "x", "seed", "sigma", "over_agents"]
OVER_AGENTS = ("mean", "min", "max")


def write_numbers(panels: Sequence[Panel], runs: FigureRuns, path: Path) -> None:
    """Write all numbers of a figure under one lens to `path`, with the σ of each run."""
    lines = []
    for place, config in _places(panels):
        curve = runs[config]
        lines.append((place, runs.noise.sigma(config), curve if place[2] is None else curve[-1:]))
    rounds = sorted({point["round"] for _, _, curve in lines for point in curve})
    table: list[list[object]] = [[*KEY_COLUMNS, *rounds]]
    for (title, label, x, seed), sigma, curve in lines:
        at = {point["round"]: point for point in curve}
        for over in OVER_AGENTS:
            values = [at[t][over] if t in at else "" for t in rounds]
            table.append([title, label, "" if x is None else x, seed, f"{sigma:.6g}", over, *values])
    write_csv(path, table)


def read_numbers(lens: str, panels: Sequence[Panel], path: Path) -> FigureNumbers:
    """Read what `write_numbers` wrote; raise InputError if the file is damaged or incomplete."""
    curves: dict[Place, Curve] = {}
    with csv_rows(path, "the numbers of a figure") as table:
        if (table.fieldnames or [])[: len(KEY_COLUMNS)] != KEY_COLUMNS:
            raise ValueError(f"its columns must begin with {', '.join(KEY_COLUMNS)}")
        for row in table:
            x = float(row["x"]) if row["x"] else None
            place = row["panel"], row["line"], x, int(row["seed"])
            at = {int(key): float(value) for key, value in row.items() if key not in KEY_COLUMNS and value}
            curve = curves.setdefault(place, [{"round": t} for t in at])
            for point, value in zip(curve, at.values(), strict=True):
                point[row["over_agents"]] = value
    for place, _ in _places(panels):
        if not all("mean" in point for point in curves.get(place, [{}])):
            raise InputError(
                f"Expected the line {place} in {path}, but the file comes from other settings.{REDRAW_REMEDY}"
            )
    return FigureNumbers(lens, panels, curves)


def _places(panels: Sequence[Panel]) -> list[tuple[Place, RunConfig]]:
    return [
        ((panel.title, label, None if panel.x is None else panel.x[at], config.seed), config)
        for panel in panels
        for label, points in panel.lines.items()
        for at, seeds in enumerate(points)
        for config in seeds
    ]

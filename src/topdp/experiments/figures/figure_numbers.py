"""The numbers of a figure as CSV: written from kept runs, and read back for pictures and verdicts.

One row for each panel, line, x, seed and mean, min or max over the agents; one column for each round that was
evaluated, of panels with x the last. Pictures and verdicts are made from the file alone, so that they can be
made again where the runs are not.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from topdp.base.files import write_atomically
from topdp.errors import InputError
from topdp.experiments.figure_runner import KeptRuns
from topdp.experiments.figures.paper_figure import FigureNumbers, Panel, Place
from topdp.experiments.run_store import Curve
from topdp.runs.config import RunConfig

ABOUT = ["panel", "line", "x", "seed", "sigma", "over_agents"]
OVER_AGENTS = ("mean", "min", "max")
REMEDY = " Make it by topdp reproduce without --redraw."


def write_numbers(panels: Sequence[Panel], runs: KeptRuns, path: Path) -> None:
    """Every number of a figure under one lens, with the σ it was made with."""
    kept = [(place, runs.noise.sigma(c), _shown(place, runs[c])) for place, c in _places(panels)]
    rounds = sorted({point["round"] for _, _, curve in kept for point in curve})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*ABOUT, *rounds])
    for (title, label, x, seed), sigma, curve in kept:
        at = {point["round"]: point for point in curve}
        for over in OVER_AGENTS:
            values = [at[t][over] if t in at else "" for t in rounds]
            table.writerow([title, label, "" if x is None else x, seed, f"{sigma:.6g}", over, *values])
    write_atomically(path, text.getvalue())


def read_numbers(lens: str, panels: Sequence[Panel], path: Path) -> FigureNumbers:
    """What `write_numbers` wrote; refused if it is not all there."""
    curves: dict[Place, Curve] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in _expect_columns(csv.DictReader(file)):
                x = float(row["x"]) if row["x"] else None
                place = row["panel"], row["line"], x, int(row["seed"])
                at = {int(key): float(value) for key, value in row.items() if key not in ABOUT and value}
                curve = curves.setdefault(place, [{"round": t} for t in at])
                for point, value in zip(curve, at.values(), strict=True):
                    point[row["over_agents"]] = value
    except FileNotFoundError:
        raise InputError(f"Expected the numbers of a figure in {path}, which is not there.{REMEDY}") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"Expected the numbers of a figure in {path}: {error}.{REMEDY}") from error
    for place, _ in _places(panels):
        if not all("mean" in point for point in curves.get(place, [{}])):
            raise InputError(
                f"Expected {path} to have the line {place}: it was not made with these settings."
            )
    return FigureNumbers(lens, panels, curves)


def _expect_columns(table: csv.DictReader[str]) -> csv.DictReader[str]:
    columns = table.fieldnames or []
    if columns[: len(ABOUT)] != ABOUT:
        raise ValueError(f"its columns must begin with {', '.join(ABOUT)}")
    return table


def _places(panels: Sequence[Panel]) -> list[tuple[Place, RunConfig]]:
    return [
        ((panel.title, label, None if panel.x is None else panel.x[at], config.seed), config)
        for panel in panels
        for label, points in panel.lines.items()
        for at, seeds in enumerate(points)
        for config in seeds
    ]


def _shown(place: Place, curve: Curve) -> Curve:
    return curve if place[2] is None else curve[-1:]

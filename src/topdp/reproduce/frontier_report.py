"""The frontier's numbers as CSV, and the picture and the table that are made from that file alone."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple, get_type_hints

from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from topdp.errors import InputError
from topdp.files import write_whole
from topdp.report.style import data_title, house_style, look, percent_axis, save
from topdp.reproduce.figures.numbers import REMEDY
from topdp.reproduce.figures.picture import ENDINGS
from topdp.reproduce.lenses import Scale

METHODS = ("plain", "top")
AGAINST = {
    "view": "against every other agent alone, in training whose gradients do not react",
    "adaptive": "against every other agent alone, whatever gradients do",
}
"""What the ε of a frontier covers, by guarantee."""


class FrontierRow(NamedTuple):
    """What one method reaches at one budget, and with which setting."""

    data: str
    method: str
    epsilon: float
    guarantee: str  # which the ε is of
    accuracy: float
    spread: float  # largest minus smallest of the seeds
    by_seed: str
    rounds: int
    learning_rate: float
    clip: float
    alpha: float
    mode: str
    epsilon_all_others: float  # of the same runs
    settings_tried: int

    def setting(self) -> str:
        numbers = (self.rounds, self.learning_rate, self.clip, self.alpha)
        return ", ".join([*(f"{number:g}" for number in numbers), self.mode])


def write_rows(rows: list[FrontierRow], path: Path) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(FrontierRow._fields)
    table.writerows(rows)
    write_whole(path, text.getvalue())


def read_rows(path: Path) -> list[FrontierRow]:
    kinds = get_type_hints(FrontierRow)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [
                FrontierRow(**{key: kind(row[key]) for key, kind in kinds.items()})
                for row in csv.DictReader(file)
            ]
    except FileNotFoundError:
        raise InputError(f"Expected a frontier in {path}, which is not there.{REMEDY}") from None
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"Expected a frontier in {path}: {error!r}.{REMEDY}") from error
    if {(row.epsilon, method) for row in rows for method in METHODS} != {row[2:0:-1] for row in rows}:
        raise InputError(f"Expected each budget in {path} with each of {', '.join(METHODS)}.{REMEDY}")
    if {row.guarantee for row in rows} not in [{name} for name in AGAINST]:
        raise InputError(f"Expected one guarantee in {path}, of {', '.join(AGAINST)}.{REMEDY}")
    return rows


def draw(rows: list[FrontierRow], scale: Scale, stem: Path) -> None:
    guarantee = rows[0].guarantee
    with house_style():
        picture = Picture()
        axis = picture.subplots()
        best = {
            epsilon: max(row.accuracy for row in rows if row.epsilon == epsilon)
            for epsilon in {row.epsilon for row in rows}
        }
        for method in METHODS:
            points = sorted((row.epsilon, row.accuracy) for row in rows if row.method == method)
            axis.plot(*zip(*points, strict=True), label=method, **look(method))
            for x, y in points:
                shift = (0, 6) if y == best[x] else (0, -13)
                axis.annotate(
                    f"{100 * y:.1f}", (x, y), shift, textcoords="offset points", ha="center", fontsize=8
                )
        axis.set(xlabel=f"true ε ({guarantee}, δ = 1e-5)", ylabel="mean test accuracy", xscale="log")
        title = f"{data_title(rows[0].data)}: the best of each method at equal {guarantee} ε{scale.remark}"
        seeds = "1 seed" if len(scale.seeds) == 1 else f"{len(scale.seeds)} seeds"
        said = f"{scale.agents} agents, full batches, {seeds}; settings chosen on a validation split"
        axis.set_title(title, fontsize=10, pad=20)
        axis.text(0, 1.02, said, transform=axis.transAxes, fontsize=8)
        ticks = sorted(best)
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
        axis.xaxis.set_minor_locator(NullLocator())
        percent_axis(axis)
        axis.margins(y=0.12)
        axis.legend(loc="lower right")
        for ending in ENDINGS:
            save(picture, stem.with_name(stem.name + ending))


def table(name: str, rows: list[FrontierRow], scale: Scale) -> str:
    guarantee = rows[0].guarantee
    fewest, most = (f(row.settings_tried for row in rows) for f in (min, max))
    lines = [
        f"### {rows[0].data}: the best honest setting of each method",
        "",
        f"![{name}]({name}.png)",
        "",
        f"{'Small runs. ' if scale.quick else ''}Mean test accuracy (%); seeds: {len(scale.seeds)}. Settings "
        f"tried on the validation split for each method and budget: at least {fewest}, at most {most}. ε "
        f"({guarantee}) is {AGAINST[guarantee]}; the same runs have the ε beside it against all others "
        "together.",
        "",
        f"| ε ({guarantee}) | plain | top | plain: ε of all others | top: ε of all others "
        "| plain: rounds, λ, clip, α, mode | top: rounds, λ, clip, α, mode |",
        "|---|---|---|---|---|---|---|",
    ]
    by = {(row.epsilon, row.method): row for row in rows}
    for epsilon in dict.fromkeys(row.epsilon for row in rows):
        two = [by[epsilon, method] for method in METHODS]
        ends = " | ".join(f"{100 * row.accuracy:.1f}" for row in two)
        together = " | ".join(f"{row.epsilon_all_others:.2f}" for row in two)
        chosen = " | ".join(row.setting() for row in two)
        lines.append(f"| {epsilon:g} | {ends} | {together} | {chosen} |")
    return "\n".join(lines) + "\n"

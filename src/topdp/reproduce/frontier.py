"""Beyond the paper: the best accuracy each method reaches at a true view ε, on three data sets.

Settings are chosen on a validation split, one seed; the chosen ones are run again on all training records
with three seeds and tested once. Full local batches, linearly falling step size, noise calibrated to the
exact view.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator, PercentFormatter

from topdp.config import RunConfig, parse
from topdp.report.style import house_style, look, save
from topdp.reproduce.runner import Runs, Say
from topdp.reproduce.settings import Scale

BUDGETS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Grid:
    """What is tried: every combination. `alpha` by method."""

    data: str
    rounds: tuple[int, ...]
    rates: tuple[float, ...]
    clips: tuple[float, ...]
    alphas: Mapping[str, tuple[float, ...]]
    budgets: tuple[float, ...] = BUDGETS

    def __len__(self) -> int:
        pairs = sum(len(a) for a in self.alphas.values())
        return len(self.budgets) * pairs * len(self.rounds) * len(self.rates) * len(self.clips)

    def points(self, method: str) -> Iterator[tuple[int, float, float, float]]:
        return itertools.product(self.rounds, self.rates, self.clips, self.alphas[method])


ALPHAS = {"plain": (0.5, 0.75), "top": (0.25, 0.125)}
FULL = (
    # rates are per unit of clip: λ·C is what moves a clipped gradient
    Grid("mnist", (300, 600), (2.0, 4.0, 8.0), (0.5, 2.0), ALPHAS),
    Grid("fashion-mnist", (300, 600), (2.0, 4.0, 8.0), (0.5, 2.0), ALPHAS),
    Grid("cifar10", (150,), (2.0, 4.0), (1.0,), {"plain": (0.5,), "top": (0.25,)}, (1.0, 4.0, 8.0)),
)
QUICK = (Grid("mnist", (30,), (2.0, 4.0), (2.0,), {"plain": (0.5,), "top": (0.25,)}, (1.0, 4.0)),)
VALIDATION = 1 / 6  # of each agent's records


def make(scale: Scale, runs: Runs, out: Path, say: Say) -> None:
    """Tunes, runs, draws and writes the frontier of every data set."""
    grids = QUICK if scale.name != "full" else FULL
    lines: list[dict[str, Any]] = []
    for grid in grids:
        say(f"frontier of {grid.data}: {len(grid)} settings to choose from")
        tried = {
            (method, budget, point): _config(scale, grid, method, budget, point, 0, tuning=True)
            for method in grid.alphas
            for budget in grid.budgets
            for point in grid.points(method)
        }
        runs.make(tried.values())
        best = {
            (method, budget): max(
                grid.points(method), key=lambda p: runs[tried[method, budget, p]][-1]["mean"]
            )
            for method in grid.alphas
            for budget in grid.budgets
        }
        final = {
            (key, seed): _config(scale, grid, *key, point, seed, tuning=False)
            for key, point in best.items()
            for seed in scale.seeds
        }
        runs.make(final.values())
        for (method, budget), point in best.items():
            ends = [runs[final[(method, budget), seed]][-1]["mean"] for seed in scale.seeds]
            rounds, rate, clip, alpha = point
            lines.append(
                {
                    "data": grid.data, "method": method, "epsilon": budget,
                    "accuracy": round(float(np.mean(ends)), 5), "spread": round(float(np.ptp(ends)), 5),
                    "rounds": rounds, "learning_rate": rate / clip, "clip": clip, "alpha": alpha,
                    "settings_tried": len(list(grid.points(method))),
                }
            )  # fmt: skip
    with (out / "frontier.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)
    _draw(lines, out)
    (out / "frontier.md").write_text(_words(lines), encoding="utf-8")


def _config(
    scale: Scale,
    grid: Grid,
    method: str,
    epsilon: float,
    point: tuple[int, float, float, float],
    seed: int,
    tuning: bool,
) -> RunConfig:
    rounds, rate, clip, alpha = point
    records = scale.records or {"cifar10": 50_000}.get(grid.data, 60_000) // scale.agents
    tree: dict[str, Any] = {
        "seed": 1000 + seed if tuning else seed,
        "rounds": rounds,
        "topology": {"agents": scale.agents, "connection": scale.connection or 0.2},
        "method": {"name": method, "alpha": alpha},
        "privacy": {"epsilon": epsilon, "clip": clip},
        "data": {
            "name": scale.data.get(grid.data, grid.data),
            "records": records,
            **({"validation": VALIDATION} if tuning else {}),
        },
        "model": {"name": "cnn" if grid.data == "cifar10" else "mlp"},
        "train": {"learning_rate": rate / clip, "evaluate_every": rounds},
    }
    return parse(tree, "frontier")


def _draw(lines: list[dict[str, Any]], out: Path) -> None:
    sets = list(dict.fromkeys(line["data"] for line in lines))
    with house_style():
        picture = Picture(figsize=(3.6 * len(sets) + 0.6, 3.6))
        axes = picture.subplots(1, len(sets), squeeze=False)
        for data, axis in zip(sets, axes[0], strict=True):
            for method in ("plain", "top"):
                points = sorted(
                    (line["epsilon"], line["accuracy"])
                    for line in lines
                    if (line["data"], line["method"]) == (data, method)
                )
                axis.plot(*zip(*points, strict=True), label=method, **look(method))
            axis.set(title=data, xlabel="true view ε (δ = 1e-5)", xscale="log")
            ticks = sorted({line["epsilon"] for line in lines if line["data"] == data})
            axis.xaxis.set_major_locator(FixedLocator(ticks))
            axis.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[0, 0].set_ylabel("mean test accuracy")
        axes[0, 0].legend(loc="lower right")
        picture.suptitle("What each method reaches at the same true privacy", x=0.01, ha="left", fontsize=11)
        for ending in (".png", ".svg"):
            save(picture, out / f"frontier{ending}")


def _words(lines: list[dict[str, Any]]) -> str:
    rows = ["## The frontier: best honest setting of each method", "", "![frontier](frontier.png)", ""]
    rows += [
        "| data | ε (view) | plain | top | settings of top (rounds, λ, clip, α) |",
        "|---|---|---|---|---|",
    ]
    by = {(line["data"], line["epsilon"], line["method"]): line for line in lines}
    for data, epsilon in dict.fromkeys((line["data"], line["epsilon"]) for line in lines):
        plain, top = by[data, epsilon, "plain"], by[data, epsilon, "top"]
        chosen = f"{top['rounds']}, {top['learning_rate']:g}, {top['clip']:g}, {top['alpha']:g}"
        ends = " | ".join(f"{100 * line['accuracy']:.1f}" for line in (plain, top))
        rows.append(f"| {data} | {epsilon:g} | {ends} | {chosen} |")
    tried = {f"{line['data']} {line['method']}": line["settings_tried"] for line in lines}
    rows += [
        "",
        "Settings tried per budget on the validation split: "
        + ", ".join(f"{k} {v}" for k, v in tried.items())
        + ".",
    ]
    return "\n".join(rows) + "\n"

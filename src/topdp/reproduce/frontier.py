"""Beyond the paper: the best accuracy each method reaches at a true view ε, on three data sets.

Settings are chosen on a validation split (`tuning`); the chosen ones are run again on all training records
with three other seeds and tested once. Full local batches, linearly falling step size, noise calibrated to
the exact view.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from topdp.report.style import house_style, look, percent_axis, save
from topdp.reproduce.runner import Runs
from topdp.reproduce.settings import Scale
from topdp.reproduce.store import Say
from topdp.reproduce.tuning import Key, Point, Search, Seeds, tune
from topdp.settings.config import RunConfig, parse

DIGITS = Search(
    rounds=(200, 400, 800),
    rate=2.0,
    clips=(0.5, 2.0, 8.0),
    alphas=(0.75, 0.5, 0.25, 0.125, 0.0625),
    modes=("sync", "async"),
    seeds=(1000, 1001, 1002),
)
FULL = {
    "mnist": DIGITS,
    "fashion-mnist": DIGITS,
    # One mode, one α and two seeds, because runs are long: in figure 8 both methods do better asynchronously,
    # where in figure 1 α hardly matters.
    "cifar10": Search((100, 200, 400), 1.0, (0.5, 2.0), (0.25,), ("async",), (1000, 1001)),
}
SMALL = Search((30,), 4.0, (2.0,), (0.25,), ("sync", "async"), (1000,), budgets=(1.0, 4.0))
QUICK = {
    "mnist": SMALL,
    "fashion-mnist": SMALL,
    "cifar10": replace(SMALL, rounds=(10,), modes=("async",)),
}
VALIDATION = 1 / 6  # of each agent's records

NAMES = [f"frontier-{data}" for data in FULL]


def make(name: str, scale: Scale, runs: Runs, out: Path, say: Say) -> list[RunConfig]:
    """Tunes, runs, draws and writes the frontier of one data set; returns all runs that it took."""
    data = name.removeprefix("frontier-")
    scale = scale.of(data)
    taken: list[RunConfig] = []

    def ends(configs: list[RunConfig]) -> list[float]:
        taken.extend(configs)
        runs.make(configs)
        return [runs[config][-1]["mean"] for config in configs]

    def on_validation_split(settings: list[tuple[Key, Point]], seeds: Seeds) -> list[float]:
        configs = [_config(scale, data, *setting, seed, VALIDATION) for setting in settings for seed in seeds]
        return list(np.reshape(ends(configs), (-1, len(seeds))).mean(axis=1))

    say(f"{name}: choosing settings on the validation split")
    best = tune((FULL if scale.name == "full" else QUICK)[data], on_validation_split)
    final = [_config(scale, data, f.key, f.point, seed) for f in best for seed in scale.seeds]
    tested, all_others = (
        np.reshape(values, (len(best), -1))
        for values in (ends(final), runs.calibrations.against_all_others(final))
    )
    lines = []
    for (key, point, tried), accuracy, epsilon in zip(best, tested, all_others, strict=True):
        lines.append(
            {
                "data": data, "method": key.method, "epsilon": key.epsilon,
                "accuracy": round(float(accuracy.mean()), 5), "spread": round(float(np.ptp(accuracy)), 5),
                "by_seed": " ".join(f"{value:.5f}" for value in accuracy),
                "rounds": point.rounds, "learning_rate": point.rate / point.clip, "clip": point.clip,
                "alpha": point.alpha, "mode": key.mode,
                "epsilon_all_others": float(np.ceil(100 * epsilon.max()) / 100),
                "settings_tried": tried,
            }
        )  # fmt: skip
    with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)
    _draw(name, lines, scale, out)
    (out / f"{name}.md").write_text(_words(name, lines, scale), encoding="utf-8")
    return taken


def _config(
    scale: Scale, data: str, key: Key, point: Point, seed: int, validation: float | None = None
) -> RunConfig:
    rounds, rate, clip, alpha = point
    tree: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "topology": {"agents": scale.agents, "connection": scale.connection or 0.2},
        "method": {"name": key.method, "mode": key.mode, "alpha": alpha},
        "privacy": {"epsilon": key.epsilon, "clip": clip},
        "data": {
            "name": scale.data.get(data, data),
            **({"records": scale.records} if scale.records else {}),
            **({"validation": validation} if validation else {}),
        },
        "model": {"name": "cnn" if data == "cifar10" else "mlp"},
        "train": {"learning_rate": rate / clip, "evaluate_every": rounds},
    }
    return parse(tree, "frontier")


def _draw(name: str, lines: list[dict[str, Any]], scale: Scale, out: Path) -> None:
    with house_style():
        picture = Picture()
        axis = picture.subplots()
        best = {
            epsilon: max(line["accuracy"] for line in lines if line["epsilon"] == epsilon)
            for epsilon in {line["epsilon"] for line in lines}
        }
        for method in ("plain", "top"):
            points = sorted((line["epsilon"], line["accuracy"]) for line in lines if line["method"] == method)
            axis.plot(*zip(*points, strict=True), label=method, **look(method))
            for x, y in points:
                shift = (0, 6) if y == best[x] else (0, -13)
                axis.annotate(
                    f"{100 * y:.1f}", (x, y), shift, textcoords="offset points", ha="center", fontsize=8
                )
        axis.set(xlabel="true view ε (δ = 1e-5)", ylabel="mean test accuracy", xscale="log")
        axis.set_title(f"{lines[0]['data']}: the best of each method{scale.remark}", fontsize=10)
        ticks = sorted({line["epsilon"] for line in lines})
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
        axis.xaxis.set_minor_locator(NullLocator())
        percent_axis(axis)
        axis.margins(y=0.12)
        axis.legend(loc="lower right")
        for ending in (".png", ".svg"):
            save(picture, out / f"{name}{ending}")


def _words(name: str, lines: list[dict[str, Any]], scale: Scale) -> str:
    fewest, most = (f(line["settings_tried"] for line in lines) for f in (min, max))
    rows = [
        f"### {lines[0]['data']}: the best honest setting of each method",
        "",
        f"![{name}]({name}.png)",
        "",
        f"{'Small runs. ' if scale.quick else ''}Mean test accuracy (%); seeds: {len(scale.seeds)}. Settings "
        f"tried on the validation split for each method and budget: at least {fewest}, at most {most}. ε "
        "(view) is against every other agent alone; the same runs have the ε beside it against all others "
        "together.",
        "",
        "| ε (view) | plain | top | plain: ε of all others | top: ε of all others "
        "| plain: rounds, λ, clip, α, mode | top: rounds, λ, clip, α, mode |",
        "|---|---|---|---|---|---|---|",
    ]
    by = {(line["epsilon"], line["method"]): line for line in lines}
    for epsilon in dict.fromkeys(line["epsilon"] for line in lines):
        two = [by[epsilon, method] for method in ("plain", "top")]
        ends = " | ".join(f"{100 * line['accuracy']:.1f}" for line in two)
        together = " | ".join(f"{line['epsilon_all_others']:.2f}" for line in two)
        keys = ("rounds", "learning_rate", "clip", "alpha")
        chosen = " | ".join(", ".join([*(f"{line[key]:g}" for key in keys), line["mode"]]) for line in two)
        rows.append(f"| {epsilon:g} | {ends} | {together} | {chosen} |")
    return "\n".join(rows) + "\n"

"""`topdp reproduce`: figures in; pictures, CSV files and verdicts out. Resumable: runs are kept by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch

from topdp.config import ConfigError, RunConfig, did_you_mean
from topdp.reproduce import (
    fig1_alpha,
    fig2_budget,
    fig3_connection,
    fig4_agents,
    fig5_decay,
    fig6_topology,
    fig7_strategies,
    fig8_cifar,
    frontier,
)
from topdp.reproduce.figure import Measured, PaperFigure, draw, write_csv
from topdp.reproduce.runner import Runs
from topdp.reproduce.settings import LENSES, Scale
from topdp.reproduce.store import Say

FIGURES: dict[str, PaperFigure] = {
    module.FIGURE.number: module.FIGURE
    for module in (
        fig1_alpha,
        fig2_budget,
        fig3_connection,
        fig4_agents,
        fig5_decay,
        fig6_topology,
        fig7_strategies,
        fig8_cifar,
    )
}
NAMES = [*FIGURES, *frontier.NAMES]


def chosen(which: str) -> list[str]:
    """`all`, or names separated by commas."""
    names = NAMES if which == "all" else [part.strip() for part in which.split(",")]
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"Expected a figure, got {name!r}.{did_you_mean(name, [*NAMES, 'all'])}")
    return names


def reproduce(
    names: Iterable[str], lenses: Iterable[str], scale: Scale, device: str, out: Path, say: Say
) -> dict[str, float]:
    """Makes the figures under `out`; returns the seconds that the runs of each took on the device.

    Figures share runs: "all" counts each once. Calibrations are the processor's, and not counted.
    """
    runs = Runs(out / "runs", device, lambda config: _test_records(scale, config), say)
    if runs.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # tf32 in matrix products: three times the speed
    seconds: dict[str, float] = {}
    names, lenses = list(names), list(lenses)
    figures = [FIGURES[name] for name in names if name in FIGURES]
    used: list[RunConfig] = []
    for lens in lenses:  # all at once: fuller stacks
        runs.make(config for figure in figures for config in _configs(figure, lens, scale))
    for name in names:
        if name in frontier.NAMES:
            made = {name: frontier.make(name, scale, runs, out, say)}
        else:
            made = {f"figure{name}-{lens}": _configs(FIGURES[name], lens, scale) for lens in lenses}
            _figure(FIGURES[name], lenses, scale, runs, out)
        for stem, configs in made.items():
            seconds[stem] = _note(out, stem, configs, scale, runs)
            used += configs
        say(f"{name}: {sum(seconds[stem] for stem in made):.1f} s of runs")
    seconds["all"] = runs.made(used)["seconds"]
    return seconds


def _configs(figure: PaperFigure, lens: str, scale: Scale) -> list[RunConfig]:
    return [config for panel in figure.panels(scale, lens) for config in panel.configs()]


def _figure(figure: PaperFigure, lenses: list[str], scale: Scale, runs: Runs, out: Path) -> None:
    for lens in lenses:
        measured = Measured(lens, figure.panels(scale, lens), runs)
        stem = out / f"figure{figure.number}-{lens}"
        write_csv(measured, stem.with_suffix(".csv"))
        for ending in (".png", ".svg"):
            draw(measured, f"Figure {figure.number}: {figure.title}", scale.epochs, stem.with_suffix(ending))
        stem.with_suffix(".md").write_text(_verdicts(figure, measured, stem.name), encoding="utf-8")


def _verdicts(figure: PaperFigure, measured: Measured, name: str) -> str:
    lines = [
        f"### Figure {figure.number}, {LENSES[measured.lens]}",
        "",
        f"![Figure {figure.number}: {figure.title}]({name}.png)",
        "",
        "| claim | verdict | measured (%) |",
        "|---|---|---|",
    ]
    for claim in figure.claims:
        if measured.lens in claim.lenses:
            verdict, text = claim.verdict(measured)
            lines.append(f"| {claim.sentence} | **{verdict}** | {text} |")
    return "\n".join(lines) + "\n"


def _note(out: Path, stem: str, configs: list[RunConfig], scale: Scale, runs: Runs) -> float:
    """Keeps what made a result beside it; returns the seconds of its runs."""
    file = out / "made.json"
    made = json.loads(file.read_text()) if file.exists() else {}
    figure, _, lens = stem.removeprefix("figure").partition("-")
    what = f"{figure} --lens {lens}" if figure in FIGURES else stem
    command = f"topdp reproduce {what}" + (" --quick" if scale.name == "quick" else "")
    made[stem] = {"command": command, "seeds": list(scale.seeds), **runs.made(configs)}
    file.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    return float(made[stem]["seconds"])


def _test_records(scale: Scale, config: RunConfig) -> int:
    return scale.of("cifar10" if config.model.name == "cnn" else "mnist").test_records

"""`topdp reproduce`: figures in; pictures, CSV files and verdicts out. Resumable: runs are kept by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from topdp.reproduce import frontier
from topdp.reproduce.figures import (
    fig1_alpha,
    fig2_budget,
    fig3_connection,
    fig4_agents,
    fig5_decay,
    fig6_topology,
    fig7_strategies,
    fig8_cifar,
)
from topdp.reproduce.figures.figure import Measured, PaperFigure, draw, write_csv
from topdp.reproduce.runner import Runs
from topdp.reproduce.settings import LENSES, Scale
from topdp.reproduce.store import Say
from topdp.settings.config import ConfigError, RunConfig, did_you_mean

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
QUICK = " --quick"  # at the end of a command
NOT_THE_PAPER = "Small runs: these verdicts are about them, not about the paper."


@dataclass(frozen=True)
class Verdict:
    """What became of one claim under one lens."""

    figure: str
    lens: str
    claim: str
    verdict: str
    measured: str


@dataclass(frozen=True)
class Reproduced:
    """The seconds that the runs of each figure took on the device ("all": each run once), and the verdicts.

    Calibrations are the processor's, and not counted.
    """

    seconds: dict[str, float]
    verdicts: list[Verdict]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def chosen(which: str) -> list[str]:
    """`all`, or names separated by commas."""
    names = NAMES if which == "all" else [part.strip() for part in which.split(",")]
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"Expected a figure, got {name!r}.{did_you_mean(name, [*NAMES, 'all'])}")
    return names


def reproduce(
    names: Iterable[str], lenses: Iterable[str], scale: Scale, device: str, out: Path, say: Say
) -> Reproduced:
    """Makes the figures under `out`."""
    _expect_own_folder(out, scale)
    runs = Runs(out / "runs", device, lambda config: _test_records(scale, config), say)
    if runs.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # tf32 in matrix products: three times the speed
    seconds: dict[str, float] = {}
    names, lenses = list(names), list(lenses)
    figures = [FIGURES[name] for name in names if name in FIGURES]
    used: list[RunConfig] = []
    verdicts: list[Verdict] = []
    for lens in lenses:  # all at once: fuller stacks
        runs.make(config for figure in figures for config in _configs(figure, lens, scale))
    for name in names:
        if name in frontier.NAMES:
            made = {name: frontier.make(name, scale, runs, out, say)}
        else:
            made = {f"figure{name}-{lens}": _configs(FIGURES[name], lens, scale) for lens in lenses}
            verdicts += _figure(FIGURES[name], lenses, scale, runs, out)
        for stem, configs in made.items():
            seconds[stem] = _note(out, stem, configs, scale, runs)
            used += configs
        say(f"{name}: {sum(seconds[stem] for stem in made):.1f} s of runs")
    seconds["all"] = runs.made(used)["seconds"]
    return Reproduced(seconds, verdicts)


def _expect_own_folder(out: Path, scale: Scale) -> None:
    """Not one with other things in it, nor with results of other scale under the same names."""
    made, runs = out / "made.json", out / "runs"
    # Runs of ours are files; `topdp run` makes a folder of the same name, with a folder for each run.
    own = runs.is_dir() and all(file.suffix in (".json", ".part") for file in runs.iterdir())
    if out.is_dir() and any(out.iterdir()) and not own:
        raise ConfigError(f"--out: expected a new or empty folder, or one of topdp reproduce, got {out}.")
    others = json.loads(made.read_text()).values() if made.exists() else ()
    if any(note["command"].endswith(QUICK) != scale.quick for note in others):
        held = "full runs" if scale.quick else "quick runs"
        raise ConfigError(f"--out: {out} holds results of {held}, which would be overwritten: name another.")


def _configs(figure: PaperFigure, lens: str, scale: Scale) -> list[RunConfig]:
    return [config for panel in figure.panels(scale, lens) for config in panel.configs()]


def _figure(figure: PaperFigure, lenses: list[str], scale: Scale, runs: Runs, out: Path) -> list[Verdict]:
    verdicts = []
    for lens in lenses:
        measured = Measured(lens, figure.panels(scale, lens), runs)
        stem = out / f"figure{figure.number}-{lens}"
        write_csv(measured, stem.with_suffix(".csv"))
        for ending in (".png", ".svg"):
            title = f"Figure {figure.number}: {figure.title}"
            draw(measured, title + scale.remark, scale.epochs, stem.with_suffix(ending))
        found = [
            Verdict(figure.number, lens, claim.sentence, *claim.verdict(measured))
            for claim in figure.claims
            if lens in claim.lenses
        ]
        stem.with_suffix(".md").write_text(_words(figure, lens, found, stem.name, scale), encoding="utf-8")
        verdicts += found
    return verdicts


def _words(figure: PaperFigure, lens: str, verdicts: list[Verdict], name: str, scale: Scale) -> str:
    lines = [
        f"### Figure {figure.number}, {LENSES[lens]}",
        "",
        f"![Figure {figure.number}: {figure.title}]({name}.png)",
        "",
        *([NOT_THE_PAPER, ""] if scale.quick else []),
        "| claim | verdict | measured (%) |",
        "|---|---|---|",
    ]
    lines += [f"| {found.claim} | **{found.verdict}** | {found.measured} |" for found in verdicts]
    return "\n".join(lines) + "\n"


def _note(out: Path, stem: str, configs: list[RunConfig], scale: Scale, runs: Runs) -> float:
    """Keeps what made a result beside it; returns the seconds of its runs."""
    file = out / "made.json"
    made = json.loads(file.read_text()) if file.exists() else {}
    figure, _, lens = stem.removeprefix("figure").partition("-")
    what = f"{figure} --lens {lens}" if figure in FIGURES else stem
    command = f"topdp reproduce {what}" + (QUICK if scale.quick else "")
    made[stem] = {"command": command, "seeds": list(scale.seeds), **runs.made(configs)}
    file.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    return float(made[stem]["seconds"])


def _test_records(scale: Scale, config: RunConfig) -> int:
    return scale.of("cifar10" if config.model.name == "cnn" else "mnist").test_records

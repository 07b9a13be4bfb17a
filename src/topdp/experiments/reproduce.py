"""`topdp reproduce`: figures in; CSV files, pictures and verdicts out.

Resumable, because runs are kept by name. Pictures and verdicts are made from the CSV files, so they can be
made again where the runs are not (`redraw`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from topdp.base.files import write_atomically
from topdp.experiments import frontier
from topdp.experiments.figure_runner import KeptRuns
from topdp.experiments.figures import FIGURES
from topdp.experiments.figures.figure_numbers import read_numbers, write_numbers
from topdp.experiments.figures.figure_picture import draw
from topdp.experiments.figures.paper_figure import PaperFigure
from topdp.experiments.lenses import LENSES, Scale
from topdp.experiments.run_store import Say, read_json
from topdp.runs.config import ConfigError, RunConfig, did_you_mean

NAMES = [*FIGURES, *frontier.NAMES]
QUICK = " --quick"  # at the end of a command
NOT_THE_PAPER = "Small runs: these verdicts are about them, not about the paper."


@dataclass(frozen=True)
class ClaimVerdict:
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
    verdicts: list[ClaimVerdict]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def named_figures(which: str) -> list[str]:
    """`all`, or names separated by commas."""
    return NAMES if which == "all" else _known("a figure", which, [*NAMES, "all"])


def named_lenses(which: str) -> list[str]:
    """Names separated by commas."""
    return _known("a lens", which, list(LENSES))


def _known(what: str, which: str, known: list[str]) -> list[str]:
    names = [part.strip() for part in which.split(",")]
    for name in names:
        if name not in known or name == "all":
            raise ConfigError(f"Expected {what}, got {name!r}.{did_you_mean(name, known)}")
    return names


def reproduce(
    names: Iterable[str],
    lenses: Iterable[str],
    scale: Scale,
    device: str,
    out: Path,
    say: Say,
    seconds_left: float = math.inf,
) -> Reproduced:
    """Makes the figures under `out`; after `seconds_left` no more runs are begun."""
    _expect_own_folder(out, scale)
    until = time.monotonic() + seconds_left
    runs = KeptRuns(out / "runs", device, lambda config: _test_records(scale, config), say, until)
    if runs.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # tf32 in matrix products: three times the speed
    seconds: dict[str, float] = {}
    names, lenses = list(names), list(lenses)
    used: list[RunConfig] = []
    verdicts: list[ClaimVerdict] = []
    for lens in lenses:  # all at once: fuller stacks
        runs.make(
            config for name in names if name in FIGURES for config in FIGURES[name].configs(scale, lens)
        )
    for name in names:
        if name in frontier.NAMES:
            made = {name: frontier.make(name, scale, runs, out, say)}
        else:
            figure = FIGURES[name]
            made = {_stem(figure, lens): figure.configs(scale, lens) for lens in lenses}
            for lens in lenses:
                write_numbers(figure.panels(scale, lens), runs, out / f"{_stem(figure, lens)}.csv")
                verdicts += _redraw(figure, lens, scale, out)
        for stem, configs in made.items():
            seconds[stem] = _note(out, stem, configs, scale, runs)
            used += configs
        say(f"{name}: {sum(seconds[stem] for stem in made):.1f} s of runs")
    seconds["all"] = runs.made(used)["seconds"]
    return Reproduced(seconds, verdicts)


def redraw(names: Iterable[str], lenses: Iterable[str], scale: Scale, out: Path) -> Reproduced:
    """Pictures and verdicts of the CSV files in `out`; nothing is run."""
    _expect_own_folder(out, scale)
    lenses = list(lenses)
    verdicts: list[ClaimVerdict] = []
    for name in names:
        if name in frontier.NAMES:
            frontier.redraw(name, scale, out)
        else:
            verdicts += [v for lens in lenses for v in _redraw(FIGURES[name], lens, scale, out)]
    return Reproduced({}, verdicts)


def _expect_own_folder(out: Path, scale: Scale) -> None:
    """Not one with other things in it, nor with results of other scale under the same names."""
    runs = out / "runs"
    # Runs of ours are files; `topdp run` makes a folder of the same name, with a folder for each run.
    own = runs.is_dir() and all(
        file.suffix == ".json" or file.name.startswith(".")  # one that was being written when it was stopped
        for file in runs.iterdir()
    )
    if out.is_dir() and any(out.iterdir()) and not own:
        raise ConfigError(f"--out: expected a new or empty folder, or one of topdp reproduce, got {out}.")
    others = read_json(out / "made.json").values()
    if any(note["command"].endswith(QUICK) != scale.quick for note in others):
        held = "full runs" if scale.quick else "quick runs"
        raise ConfigError(f"--out: {out} holds results of {held}, which would be overwritten: name another.")


def _stem(figure: PaperFigure, lens: str) -> str:
    return f"figure{figure.number}-{lens}"


def _redraw(figure: PaperFigure, lens: str, scale: Scale, out: Path) -> list[ClaimVerdict]:
    """The picture and the verdicts of one lens, from its CSV file."""
    stem = out / _stem(figure, lens)
    numbers = read_numbers(lens, figure.panels(scale, lens), stem.with_suffix(".csv"))
    draw(numbers, f"Figure {figure.number}: {figure.title}{scale.remark}", scale.epochs, stem)
    verdicts = [
        ClaimVerdict(figure.number, lens, claim.sentence, *claim.verdict(numbers))
        for claim in figure.claims
        if lens in claim.lenses
    ]
    write_atomically(stem.with_suffix(".md"), _table(figure, lens, verdicts, scale))
    return verdicts


def _table(figure: PaperFigure, lens: str, verdicts: list[ClaimVerdict], scale: Scale) -> str:
    stem = _stem(figure, lens)
    lines = [
        f"### Figure {figure.number}: {figure.title}",
        "",
        f"Lens `{lens}` ({LENSES[lens]}). Numbers: [{stem}.csv]({stem}.csv). Picture: {stem}.png, drawn from "
        f"them by `{_command(stem, scale)} --redraw --out .` in this folder.",
        "",
        *([NOT_THE_PAPER, ""] if scale.quick else []),
        "| claim | verdict | measured (%) |",
        "|---|---|---|",
    ]
    lines += [f"| {found.claim} | **{found.verdict}** | {found.measured} |" for found in verdicts]
    return "\n".join(lines) + "\n"


def _command(stem: str, scale: Scale) -> str:
    figure, _, lens = stem.removeprefix("figure").partition("-")
    what = f"{figure} --lens {lens}" if figure in FIGURES else stem
    return f"topdp reproduce {what}" + (QUICK if scale.quick else "")


def _note(out: Path, stem: str, configs: list[RunConfig], scale: Scale, runs: KeptRuns) -> float:
    """Keeps what made a result beside it; returns the seconds of its runs."""
    file = out / "made.json"
    made = read_json(file)
    made[stem] = {"command": _command(stem, scale), "seeds": list(scale.seeds), **runs.made(configs)}
    write_atomically(file, json.dumps(made, indent=1, sort_keys=True) + "\n")
    return float(made[stem]["seconds"])


def _test_records(scale: Scale, config: RunConfig) -> int:
    return scale.of("cifar10" if config.model.name == "cnn" else "mnist").test_records

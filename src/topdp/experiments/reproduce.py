"""The stages of `topdp reproduce`: from names of figures to CSV files, pictures and verdicts.

An interrupted reproduction can continue, because runs are stored by name. Pictures and verdicts depend on the
CSV files alone, so `redraw` makes them again without the runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from topdp.base.files import write_atomically
from topdp.base.progress import Progress
from topdp.experiments import frontier, readings
from topdp.experiments.figure_runner import FigureRuns
from topdp.experiments.figures.drawn_figures import DRAWN_FIGURES
from topdp.experiments.figures.figure_picture import draw
from topdp.experiments.figures.figures_three_to_twelve import FIGURES
from topdp.experiments.figures.paper_figure import ClaimVerdict, read_numbers, write_numbers
from topdp.experiments.lenses import LENSES, Scale
from topdp.experiments.run_store import read_json, write_json
from topdp.runs.config import ConfigError, RunConfig, did_you_mean

# Results that are no figures of the paper, by name: modules with `make` and `redraw`.
TABLES = {**dict.fromkeys(frontier.FRONTIERS, frontier), readings.NAME: readings}
# The titles of everything that `topdp reproduce` makes, by name, with the figures in the order of the paper.
TITLES = {name: figure.title for name, figure in (DRAWN_FIGURES | FIGURES).items()}
TITLES = dict(sorted(TITLES.items(), key=lambda item: int(item[0].removeprefix("fig"))))
TITLES |= {
    name: f"Each method at equal true privacy: {frontier.data_of(name)}" for name in frontier.FRONTIERS
}
TITLES[readings.NAME] = "The main claim under other readings of the paper"
FIGURE_NAMES = list(TITLES)
SKETCH = {"figure": "fig1", "caption": "A sketch of the two modes", "command": "none: it shows no data"}
# The names of figures in earlier versions, which counted only figures with runs.
FORMER_NAMES = {
    "1": "fig3", "2": "fig4", "3": "fig5", "4": "fig6", "5": "fig7", "6": "fig9", "7": "fig10 and fig11",
    "8": "fig12",
}  # fmt: skip
NOISE_REMARK = (
    "The noise is on the gradient, inside the step: -λ(ḡ + noise). The paper prints it on the estimate, "
    "outside the step."
)
QUICK_OPTION = " --quick"
QUICK_REMARK = "Small runs: these verdicts are about them, not about the paper."


@dataclass(frozen=True)
class Reproduction:
    """The verdicts, and the seconds that the runs of each figure took, without calibrations.

    Under the key "all" of `seconds`, a run that several figures share counts only once.
    """

    seconds: dict[str, float]
    verdicts: list[ClaimVerdict]


def named_figures(which: str) -> list[str]:
    """Return the figures that `which` names: `all`, or names separated by commas."""
    return FIGURE_NAMES if which == "all" else _parse_names("a figure", which, [*FIGURE_NAMES, "all"])


def captions() -> list[dict[str, str]]:
    """Return for each figure its name, what it shows, and the command that makes it."""
    return [
        SKETCH,
        *(
            {"figure": name, "caption": title, "command": f"topdp reproduce {name}"}
            for name, title in TITLES.items()
        ),
    ]


def named_lenses(which: str) -> list[str]:
    """Return the lenses that `which` names, separated by commas."""
    return _parse_names("a lens", which, list(LENSES))


def _parse_names(what: str, which: str, choices: list[str]) -> list[str]:
    names = [part.strip() for part in which.split(",")]
    for name in names:
        if name in FORMER_NAMES:
            raise ConfigError(
                f"Expected {what}, got {name!r}. Figures now have the paper's own numbers: figure {name} is "
                f"now {FORMER_NAMES[name]}. `topdp reproduce` lists all."
            )
        if name == SKETCH["figure"]:
            raise ConfigError(f"Expected {what}, got {name!r}, which is a sketch without data. Name another.")
        if name not in choices or name == "all":
            raise ConfigError(f"Expected {what}, got {name!r}.{did_you_mean(name, choices)}")
    return names


def reproduce(
    names: Sequence[str],
    lenses: Sequence[str],
    scale: Scale,
    device: str,
    out: Path,
    progress: Progress,
    seconds_left: float = math.inf,
) -> Reproduction:
    """Make the figures `names` under each of `lenses`, and write them to `out`.

    Return their verdicts and times. After `seconds_left` seconds no more runs start. A frontier or a table is
    then made from the finished runs; for figures, raise OutOfTime.
    """
    _expect_own_folder(out, scale)
    until = time.monotonic() + seconds_left
    runs = FigureRuns(
        out / "runs", device, test_records=scale.test_records_of, progress=progress, until=until
    )
    if runs.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # tf32 in matrix products triples the speed
    seconds: dict[str, float] = {}
    used: list[RunConfig] = []
    verdicts: list[ClaimVerdict] = []
    for lens in lenses:  # all figures together, to fill the stacks
        runs.execute(
            config for name in names if name in FIGURES for config in FIGURES[name].configs(scale, lens)
        )
    for name in names:
        if name in DRAWN_FIGURES:
            DRAWN_FIGURES[name].draw(name, scale.agents, out)
            continue
        if name in TABLES:
            configs_by_stem = {name: TABLES[name].make(name, scale, runs, out, progress)}
        else:
            figure = FIGURES[name]
            configs_by_stem = {_stem(name, lens): figure.configs(scale, lens) for lens in lenses}
            for lens in lenses:
                write_numbers(figure.panels(scale, lens), runs, out / f"{_stem(name, lens)}.csv")
                verdicts += _redraw(name, lens, scale, out)
        for stem, configs in configs_by_stem.items():
            seconds[stem] = _write_provenance(out, stem, configs, scale, runs)
            used += configs
        progress(f"{name}: {sum(seconds[stem] for stem in configs_by_stem):.1f} s of runs")
    seconds["all"] = runs.provenance(used)["seconds"]
    return Reproduction(seconds, verdicts)


def redraw(names: Sequence[str], lenses: Sequence[str], scale: Scale, out: Path) -> Reproduction:
    """Make pictures and verdicts from the CSV files in `out`, without any runs."""
    _expect_own_folder(out, scale)
    verdicts: list[ClaimVerdict] = []
    for name in names:
        if name in DRAWN_FIGURES:
            DRAWN_FIGURES[name].draw(name, scale.agents, out)
        elif name in TABLES:
            TABLES[name].redraw(name, scale, out)
        else:
            verdicts += [v for lens in lenses for v in _redraw(name, lens, scale, out)]
    return Reproduction({}, verdicts)


def _expect_own_folder(out: Path, scale: Scale) -> None:
    """Raise ConfigError if `out` contains other files, or results of another scale."""
    runs = out / "runs"
    # Here runs are files. `topdp run` makes a folder of the same name, with a folder for each run.
    own = runs.is_dir() and all(
        file.suffix == ".json" or file.name.startswith(".")  # a temporary file of an interrupted write
        for file in runs.iterdir()
    )
    if out.is_dir() and any(out.iterdir()) and not own:
        raise ConfigError(f"--out: expected a new or empty folder, or figures of topdp reproduce, got {out}.")
    notes = read_json(out / "made.json").values()
    if any(note["command"].endswith(QUICK_OPTION) != scale.quick for note in notes):
        content = "full runs" if scale.quick else "quick runs"
        raise ConfigError(
            f"--out: {out} contains results of {content}, which would be overwritten. Choose another folder."
        )


def _stem(name: str, lens: str) -> str:
    return f"{name}-{lens}"


def _heading(name: str) -> str:
    return f"Figure {name.removeprefix('fig')}: {FIGURES[name].title}"


def _redraw(name: str, lens: str, scale: Scale, out: Path) -> list[ClaimVerdict]:
    """Draw the picture of one lens from its CSV file; write and return the verdicts."""
    figure, stem = FIGURES[name], out / _stem(name, lens)
    numbers = read_numbers(lens, figure.panels(scale, lens), stem.with_suffix(".csv"))
    draw(numbers, _heading(name) + scale.remark, scale.epochs, stem)
    verdicts = list(figure.verdicts(name, numbers))
    write_atomically(stem.with_suffix(".md"), _table(name, lens, verdicts, scale))
    return verdicts


def _table(name: str, lens: str, verdicts: list[ClaimVerdict], scale: Scale) -> str:
    stem = _stem(name, lens)
    lines = [
        f"### {_heading(name)}",
        "",
        f"Lens `{lens}` ({LENSES[lens]}). Numbers: [{stem}.csv]({stem}.csv). Picture: {stem}.png, drawn from "
        f"them by `{_command(stem, scale)} --redraw --out .` in this folder.",
        "",
        NOISE_REMARK,
        "",
        *([QUICK_REMARK, ""] if scale.quick else []),
        "| claim | verdict | measured (%) |",
        "|---|---|---|",
    ]
    lines += [f"| {v.claim} | **{v.verdict}** | {v.measured} |" for v in verdicts]
    return "\n".join(lines) + "\n"


def _command(stem: str, scale: Scale) -> str:
    name, _, lens = stem.partition("-")
    what = f"{name} --lens {lens}" if name in FIGURES else stem
    return f"topdp reproduce {what}" + (QUICK_OPTION if scale.quick else "")


def _write_provenance(
    out: Path, stem: str, configs: list[RunConfig], scale: Scale, runs: FigureRuns
) -> float:
    """Record in made.json how a result was made; return the seconds of its runs."""
    file = out / "made.json"
    notes = read_json(file)
    note = {"command": _command(stem, scale), "seeds": list(scale.seeds)}
    notes[stem] = note | runs.provenance(configs)
    write_json(file, notes)
    return float(notes[stem]["seconds"])

"""A table of readings: whether `top` is above `plain` under each reading of what the paper leaves open.

Every reading changes one choice of a short run in the paper's setting. Both methods are compared in three
ways: with the same σ, with the σ that each method's own published analysis asks for, and with the σ at which
each is calibrated to the same adaptive ε (`EQUALITIES`). All three are at ε = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, get_type_hints

from topdp.base.files import write_atomically
from topdp.base.progress import Progress
from topdp.data.catalogue import CATALOGUE
from topdp.errors import InputError
from topdp.experiments.figure_runner import FigureRuns, OutOfTime
from topdp.experiments.lenses import PAPER_EPOCHS, Scale
from topdp.experiments.run_store import REDRAW_REMEDY, csv_rows, read_json, run_name, write_json
from topdp.plan import Full
from topdp.privacy.answers import ADAPTIVE
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.published.calibrations import CALIBRATIONS
from topdp.runs.config import RunConfig, parse
from topdp.runs.methods import METHODS
from topdp.runs.planning import query_of
from topdp.runs.resolve import resolve
from topdp.runs.sweep_summary import write_csv_lines

NAME = "readings"
BASELINE = "plain"
SHARE_OF_PAPER = 20  # runs have 1/20 of the paper's epochs, so that the table takes an hour on a processor
CHANCE = 0.15  # with ten classes, a method below this accuracy has not learned
BUDGET = {"epsilon": 1.0, "delta": 1e-5}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A reading of one choice. `changes`: the values of keys that differ from our reading, by section.

    `length`: the number of rounds, relative to the other readings. `seeds`: how many of the seeds are run.
    """

    choice: str
    reading: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: str = "mnist"
    proposed: tuple[str, ...] = ("top",)
    length: float = 1.0
    seeds: int | None = None

    def rounds(self, scale: Scale) -> int:
        epochs = max(1, scale.epochs // SHARE_OF_PAPER)
        return max(1, round(self.length * epochs * scale.rounds_per_epoch))

    def configs(self, scale: Scale, method: str, sigma: Sigma) -> list[RunConfig]:
        """Return the configurations of all seeds, with the σ that `sigma` returns for each."""
        seeds = scale.seeds[: self.seeds]
        unscaled = [self._config(scale.of(self.data), method, seed, self.rounds(scale)) for seed in seeds]
        return [_with_sigma(config, sigma(config)) for config in unscaled]

    def _config(self, scale: Scale, method: str, seed: int, rounds: int) -> RunConfig:
        tree: dict[str, Any] = {
            "seed": seed,
            "rounds": rounds,
            "topology": {"agents": scale.agents, "connection": scale.connection or 0.2},
            # The noise of top-dp decays after the same share of a run as in the paper.
            "method": {
                "name": method,
                "alpha": 0.25,
                "noise_schedule": {"period": max(1, round(10 * rounds / PAPER_EPOCHS))},
            },
            "privacy": {**BUDGET, "clip": 4.0, "guarantee": ADAPTIVE.name, "allow_slow": True},
            "data": {
                "name": scale.data.get(self.data, self.data),
                "batch": {"cycle": scale.batch},
                "records": _records(scale, self.data),
            },
            "model": {"name": "cnn" if self.data == "cifar10" else "mlp"},
            "train": {
                "learning_rate": 0.05,
                "fading": "sqrt-epoch",
                "rounds_per_epoch": scale.rounds_per_epoch,
                "evaluate_every": rounds,
            },
        }
        for section, values in self.changes.items():
            tree[section] |= values
        return parse(tree, f"{self.choice}: {self.reading}")


Sigma = Callable[[RunConfig], float]
"""A function from a configuration without σ to its σ."""


def readings() -> list[Reading]:
    """Return all readings; the first is ours."""
    return [
        Reading(choice="our reading", reading="batches of 20, fading by epochs, random graph, synchronous"),
        Reading(choice="noise on", reading="the estimate", changes={"method": {"noise_on": "estimate"}}),
        Reading(choice="batch", reading="one record", changes={"data": {"batch": {"cycle": 1}}}),
        Reading(
            choice="asynchronous pairs",
            reading="not the last partner, until the row is new",
            changes={"method": {"mode": "async", "rematch": "after-new-row"}},
        ),
        Reading(
            choice="asynchronous pairs",
            reading="not the partner of the last round",
            changes={"method": {"mode": "async", "rematch": "next-round"}},
        ),
        Reading(choice="star", reading="a leaf has one hub", changes={"topology": {"kind": "star"}}),
        Reading(
            choice="star",
            reading="a leaf has both hubs",
            changes={"topology": {"kind": "star", "attach": "all"}},
        ),
        Reading(choice="mesh", reading="circle with far edges", changes={"topology": {"kind": "mesh"}}),
        Reading(choice="mesh", reading="grid", changes={"topology": {"kind": "grid"}}),
        Reading(choice="fading", reading="linear", changes={"train": {"fading": "linear"}}),
        Reading(choice="fading", reading="none", changes={"train": {"fading": "none"}}),
        Reading(choice="data", reading="CIFAR-10", data="cifar10", proposed=("top", "top-dp"), seeds=1),
        # A round with all records costs as much as ten rounds with batches of 20.
        Reading(choice="batch", reading="all records", changes={"data": {"batch": "full"}}, length=1 / 3),
        Reading(choice="T", reading="twice the rounds", length=2.0),
    ]


@dataclass(eq=False)
class AdaptiveNoise:
    """The σ at which the adaptive ε meets the budget, stored in a JSON file by names of configurations."""

    file: Path
    progress: Progress

    def __call__(self, config: RunConfig) -> float:
        stored = read_json(self.file)
        name = run_name(config)
        if name not in stored:
            self.progress(f"calibrating {config.method.name}, seed {config.seed}")
            run, privacy = resolve(config), config.privacy
            assert run.epsilon is not None  # the configuration does not state σ
            query = query_of(config)
            noise = calibrate(
                run.write_plan, run.analysis, privacy.guarantee, run.epsilon, privacy.delta, query
            )
            stored[name] = _rounded_up(float(noise.deviation[0] / privacy.clip))
            write_json(self.file, stored)
        return float(stored[name])


def _published(rule: str, config: RunConfig) -> float:
    """Return σ by a published analysis under the paper's sensitivity C/|D_i|, whatever batches are."""
    assert config.data.records is not None
    delta, epsilon = BUDGET["delta"], BUDGET["epsilon"]
    batches = Full(config.data.records)
    return _rounded_up(CALIBRATIONS[rule].calibrate(epsilon, delta, config.rounds + 1, batches).sigma)


def _claimed(config: RunConfig) -> float:
    """Return σ by the method's own published analysis: Theorem 1 for the proposed methods."""
    return _published("theorem1" if METHODS[config.method.name].reuses_noise else "tight", config)


def equalities(adaptive: Sigma) -> dict[str, Sigma]:
    """Return the three comparisons: for each, the σ of a configuration. `adaptive`: that of the proved ε."""
    return dict(zip(EQUALITIES, (partial(_published, "tight"), _claimed, adaptive), strict=True))


EQUALITIES = {
    "σ": "both have the least σ with ε = 1 under the paper's sensitivity C/|D_i|",
    "claimed ε": "each method's own published analysis gives ε = 1: Theorem 1 for top and top-dp, the exact "
    "account for plain, both under C/|D_i|. With one analysis for both, equal claimed ε is equal σ",
    "proved ε": "the adaptive ε of each is 1, with the real batches: what each other agent learns, whatever "
    "the gradients do",
}


@dataclass(frozen=True, kw_only=True)
class ReadingRow:
    """A proposed method and the plain rule under one reading and one equality. Accuracies are fractions."""

    choice: str
    reading: str
    rounds: int
    equal: str
    proposed: str
    sigma_proposed: float  # σ is the mean over seeds
    sigma_plain: float
    accuracy_proposed: str  # by seed
    accuracy_plain: str

    @property
    def differences(self) -> list[float]:
        """The accuracy of the proposed method minus that of the plain rule, by seed."""
        pairs = zip(_numbers(self.accuracy_proposed), _numbers(self.accuracy_plain), strict=True)
        return [proposed - plain for proposed, plain in pairs]

    @property
    def verdict(self) -> str:
        if max(*_numbers(self.accuracy_proposed), *_numbers(self.accuracy_plain)) < CHANCE:
            return "neither learns"
        above = [difference > 0 for difference in self.differences]
        return "holds" if all(above) else "seeds differ" if any(above) else "does not hold"


def make(name: str, scale: Scale, runs: FigureRuns, out: Path, progress: Progress) -> list[RunConfig]:
    """Make the table, and return the configurations of all runs used.

    The table is written after each comparison, so that it can be read while others run.
    """
    ways = equalities(AdaptiveNoise(runs.folder / "readings-sigma.json", progress))
    rows: list[ReadingRow] = []
    used: list[RunConfig] = []
    try:
        for reading in readings():
            for equal, sigma in ways.items():
                progress(f"{name}: {reading.choice}, {reading.reading}, equal {equal}")
                methods = (*reading.proposed, BASELINE)
                configs = {method: reading.configs(scale, method, sigma) for method in methods}
                for seeds in configs.values():  # on a processor, small stacks are twice as fast as large ones
                    runs.execute(seeds)
                used += [config for seeds in configs.values() for config in seeds]
                rows += _rows(reading, equal, configs, runs)
                lines = [[column.name for column in fields(ReadingRow)], *map(astuple, rows)]
                write_csv_lines(out / f"{name}.csv", lines)
                redraw(name, scale, out)
    except OutOfTime as error:
        progress(f"{name}: {error} Results so far are written; the same command continues.")
    return used


def redraw(name: str, scale: Scale, out: Path) -> None:
    """Write the table from the CSV file in `out`."""
    write_atomically(out / f"{name}.md", table(read_rows(out / f"{name}.csv"), scale))


def read_rows(path: Path) -> list[ReadingRow]:
    types = get_type_hints(ReadingRow)
    with csv_rows(path, "the readings") as lines:
        rows = [ReadingRow(**{key: types[key](row[key]) for key in types}) for row in lines]
        counts = [len(row.differences) for row in rows]  # of the seeds; a damaged list raises an error here
    if not rows or min(counts) == 0:
        raise InputError(f"Expected rows with accuracies in {path}, got none.{REDRAW_REMEDY}")
    return rows


def table(rows: Sequence[ReadingRow], scale: Scale) -> str:
    text = [
        "### Does a reading matter?",
        "",
        f"{'Small runs. ' if scale.quick else ''}{scale.agents} agents, α = .25, ε = 1, δ = 1e-5. Each row "
        "changes one choice of our reading. Accuracy (%): mean over agents and seeds, and in brackets the "
        "largest minus the smallest seed. The claim, the method above plain, holds if it does with every "
        f"seed; neither learns if all accuracies are below {CHANCE:.0%}. What is equal:",
        "",
        *(f"- **{equal}**: {meaning}." for equal, meaning in EQUALITIES.items()),
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *map(_line, rows),
    ]
    return "\n".join(text) + "\n"


COLUMNS = (
    "choice", "reading", "rounds", "equal", "method", "its σ", "σ of plain", "its accuracy", "plain",
    "difference", "claim",
)  # fmt: skip


def _line(row: ReadingRow) -> str:
    cells = [
        row.choice,
        row.reading,
        row.rounds,
        row.equal,
        row.proposed,
        f"{row.sigma_proposed:.4g}",
        f"{row.sigma_plain:.4g}",
        _percents(_numbers(row.accuracy_proposed)),
        _percents(_numbers(row.accuracy_plain)),
        f"{100 * fmean(row.differences):+.1f}",
        row.verdict,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _percents(values: Sequence[float]) -> str:
    return f"{100 * fmean(values):.1f} ({100 * (max(values) - min(values)):.1f})"


def _rows(
    reading: Reading, equal: str, configs: Mapping[str, Sequence[RunConfig]], runs: FigureRuns
) -> Iterator[ReadingRow]:
    plain = configs[BASELINE]
    for method in reading.proposed:
        own = configs[method]
        yield ReadingRow(
            choice=reading.choice,
            reading=reading.reading,
            rounds=own[0].rounds,
            equal=equal,
            proposed=method,
            sigma_proposed=fmean(map(runs.noise.sigma, own)),
            sigma_plain=fmean(map(runs.noise.sigma, plain)),
            accuracy_proposed=" ".join(f"{runs[config][-1]['mean']:.5f}" for config in own),
            accuracy_plain=" ".join(f"{runs[config][-1]['mean']:.5f}" for config in plain),
        )


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split()]


def _records(scale: Scale, data: str) -> int:
    """Return the number of records of each agent."""
    share = CATALOGUE[data].shapes["train_inputs"][0] // scale.agents
    return min(share, scale.records or share)


def _with_sigma(config: RunConfig, sigma: float) -> RunConfig:
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"sigma": sigma})})


def _rounded_up(sigma: float) -> float:
    """Return σ rounded up to five digits, so that the CSV file has it in full and no ε grows."""
    unit = 10.0 ** (math.floor(math.log10(sigma)) - 4)
    return float(f"{math.ceil(sigma / unit) * unit:.5g}")

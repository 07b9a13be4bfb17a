"""Beyond the paper: the accuracy each method reaches at the same adaptive ε, by data set and model.

Settings are chosen on a validation split (`tuning`); the chosen ones are run again on all training records
with three other seeds and tested once. Full local batches, linearly falling step size, noise calibrated to
the exact adaptive answer. Who takes part is in `contenders`; CSV, picture and table are `frontier_report`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from topdp.base.files import write_atomically
from topdp.experiments import frontier_report
from topdp.experiments.contenders import Contender, contenders, frontier_run
from topdp.experiments.figure_runner import KeptRuns, OutOfTime
from topdp.experiments.frontier_report import FrontierRow
from topdp.experiments.lenses import GUARANTEES, Scale
from topdp.experiments.run_store import Say, run_name
from topdp.experiments.tuning import BestSetting, Candidate, Case, SearchSpace, tune
from topdp.runs.config import RunConfig

SCATTERED = SearchSpace(rounds=(300, 800), rate=108.0, growth=0.75, clips=(0.5,), exponents=(0.5, 0.0))
CARRIED = SearchSpace(
    rounds=(300, 800), rate=108.0, growth=0.75, clips=(0.5,), exponents=(0.5,), gossip=(6,), turns=0
)
MLP = SearchSpace(rounds=(300, 800), rate=2.0, growth=1.0, clips=(2.0, 0.5), exponents=(0.5, 0.0))
FULL = {
    "mnist": {"scattering + linear": SCATTERED, "mlp": MLP},
    "fashion-mnist": {"scattering + linear": CARRIED},
    "cifar10": {"scattering + linear": CARRIED},
}
SMALL = SearchSpace(
    rounds=(20,), rate=4.0, growth=0.5, clips=(1.0,), exponents=(0.5, 0.0), gossip=(2,),
    budgets=(1.0, 4.0), anchors=(1.0, 4.0), turns=1,
)  # fmt: skip
QUICK = {data: {"scattering + linear": SMALL, "mlp": SMALL} for data in FULL}
VALIDATION = 1 / 6  # of all training records

NAMES = [f"frontier-{data}" for data in FULL]


def make(name: str, scale: Scale, runs: KeptRuns, out: Path, say: Say) -> list[RunConfig]:
    """Tunes, runs, draws and writes the frontier of one data set; returns all runs that it took.

    Model by model: when time is up, what there is is written down.
    """
    data = data_of(name)
    scale = scale.of(data)
    spaces = (FULL if scale.name == "full" else QUICK)[data]
    rows: list[FrontierRow] = []
    taken: list[RunConfig] = []
    try:
        for model, space in spaces.items():
            search = _Search(data, model, space, scale, runs, taken)
            say(f"{name}: {model}: choosing settings on the validation split")
            best = search.tuned()
            say(f"{name}: {model}: the chosen settings with other seeds, on all training records")
            try:
                search.run_to_the_end(best)
            finally:
                rows += search.rows(best)
    except OutOfTime as stopped:
        say(f"{name}: {stopped} What there is is written; the same command goes on.")
    if rows:
        frontier_report.write_rows(rows, out / f"{name}.csv")
        redraw(name, scale, out)
    return [config for config in taken if config in runs]


def redraw(name: str, scale: Scale, out: Path) -> None:
    """The picture and the table, from the CSV file in `out`."""
    rows, scale = frontier_report.read_rows(out / f"{name}.csv"), scale.of(data_of(name))
    frontier_report.draw(rows, scale, out / name)
    write_atomically(out / f"{name}.md", frontier_report.table(name, rows, scale))


def data_of(name: str) -> str:
    return name.removeprefix("frontier-")


class _Search:
    """The frontier of one model on one data set."""

    def __init__(
        self,
        data: str,
        model: str,
        space: SearchSpace,
        scale: Scale,
        runs: KeptRuns,
        taken: list[RunConfig],
    ) -> None:
        self.data, self.model, self.space, self.scale = data, model, space, scale
        self.runs, self.taken = runs, taken
        self.contenders = contenders(scale.agents)

    def tuned(self) -> list[BestSetting]:
        knobs = {name: one.knobs for name, one in self.contenders.items()}
        return tune(self.space, knobs, frozenset({"no-noise"}), self._on_validation_split)

    def run_to_the_end(self, best: Sequence[BestSetting]) -> None:
        self._ends([config for one in best for config in self._finals(one)])

    def rows(self, best: Sequence[BestSetting]) -> list[FrontierRow]:
        """Of the settings whose runs are all there."""
        done = [one for one in best if all(config in self.runs for config in self._finals(one))]
        noisy = [config for one in done if math.isfinite(one.case.epsilon) for config in self._finals(one)]
        learned = dict(zip(map(run_name, noisy), self.runs.noise.epsilon_of_all_others(noisy), strict=True))
        rows = []
        for one in done:
            finals = self._finals(one)
            accuracies = [self.runs[config][-1]["mean"] for config in finals]
            most = max(learned.get(run_name(config), math.inf) for config in finals)
            rows.append(
                FrontierRow.of(
                    self.data, self.model, finals[0], one.case.epsilon, GUARANTEES["honest"], accuracies,
                    math.ceil(100 * most) / 100 if math.isfinite(most) else most, one.tried,
                )
            )  # fmt: skip
        return rows

    def _finals(self, one: BestSetting) -> list[RunConfig]:
        return [self._config(one.case, one.candidate, seed) for seed in self.scale.seeds]

    def _config(
        self, case: Case, candidate: Candidate, seed: int, validation: float | None = None
    ) -> RunConfig:
        contender: Contender = self.contenders[case.contender]
        return frontier_run(
            self.scale, self.data, self.model, contender, case.epsilon, candidate, seed, validation
        )

    def _on_validation_split(self, settings: list[tuple[Case, Candidate]]) -> list[float]:
        config = partial(self._config, validation=VALIDATION)
        configs = [config(*setting, seed) for setting in settings for seed in self.space.seeds]
        return list(np.reshape(self._ends(configs), (-1, len(self.space.seeds))).mean(axis=1))

    def _ends(self, configs: list[RunConfig]) -> list[float]:
        self.taken.extend(configs)
        self.runs.make(configs)
        return [self.runs[config][-1]["mean"] for config in configs]

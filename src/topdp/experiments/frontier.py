"""The frontier: the accuracy that each method reaches at the same adaptive ε, by data set and model.

The contenders are methods with their fixed settings; `tuning` chooses the others on a validation split. The
chosen settings run again on all training records with three other seeds and are tested once. Batches are
full, the step size falls linearly, and the noise is calibrated to the exact adaptive answer.
`frontier_report` writes the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from topdp.base.files import write_atomically
from topdp.base.progress import Progress
from topdp.experiments import frontier_report
from topdp.experiments.figure_runner import FigureRuns, OutOfTime
from topdp.experiments.frontier_report import FrontierRow
from topdp.experiments.lenses import Scale
from topdp.experiments.run_store import run_name
from topdp.experiments.tuning import BestSetting, Candidate, Case, Knob, SearchSpace, tune
from topdp.runs.config import RunConfig, parse


@dataclass(frozen=True)
class Contender:
    """A method, the coalition size that its ε is against, its fixed settings, and what the search tunes."""

    method: str
    colluders: int = 1
    fixed: dict[str, Any] = field(default_factory=dict)
    knobs: frozenset[Knob] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.method}, {self.colluders} collude" if self.colluders > 1 else self.method


def contenders(agents: int) -> dict[str, Contender]:
    """Return the contenders by name. Only for `correlated` does ε depend on the size of the coalition."""
    schedule_knobs: frozenset[Knob] = frozenset({"rounds", "exponent"})
    all_knobs: frozenset[Knob] = schedule_knobs | {"gossip"}
    # An earlier search chose the fixed settings. The plain rule was best in the asynchronous mode at every
    # budget. Top-DP was nearly always best in the synchronous mode and with the most rounds; the account of
    # one of its plans takes minutes.
    entrants = [
        Contender("no-noise", fixed={"alpha": 0.5}, knobs=frozenset({"rounds"})),
        Contender(
            "plain", fixed={"mode": "async", "alpha": 0.5, "rematch": "next-round"}, knobs=schedule_knobs
        ),
        Contender("top", fixed={"alpha": 0.5}),
        Contender("dsgd", knobs=schedule_knobs),
        Contender("muffliato", knobs=all_knobs),
        *(Contender("correlated", c, _secrets(agents, c), all_knobs) for c in coalitions(agents)),
        Contender("central", 0, knobs=schedule_knobs),
    ]
    return {contender.name: contender for contender in entrants}


def coalitions(agents: int) -> list[int]:
    """Return the coalition sizes: one agent, three agents, and half of the agents."""
    return sorted({1, min(3, agents // 2), agents // 2})


def _secrets(agents: int, colluders: int) -> dict[str, Any]:
    """Return the settings of pair secrets that `auto` chooses for 30 agents.

    If there are few agents, or if the coalition is large, each agent shares secrets with all other agents.
    """
    if colluders <= 3 and agents - 1 > SECRET_PARTNERS:
        return {"secrets_degree": SECRET_PARTNERS, "pair_noise": 7.0}
    return {"secrets": "all", "secrets_degree": agents - 1, "pair_noise": 3.8}


SECRET_PARTNERS = 16

CONTENDER_MODELS: dict[str, dict[str, Any]] = {
    "scattering + linear": {"data": {"features": "scattering"}, "model": {"name": "linear"}},
    "mlp": {"model": {"name": "mlp"}},
}


LINEAR_SPACE = SearchSpace(rounds=(300, 800), rate=108.0, growth=0.75, clips=(0.5,), exponents=(0.5, 0.0))
RATES_ONLY_SPACE = replace(LINEAR_SPACE, exponents=(0.5,), gossip=(6,), turns=0)
MLP_SPACE = SearchSpace(rounds=(300, 800), rate=2.0, growth=1.0, clips=(2.0, 0.5), exponents=(0.5, 0.0))
FULL_SPACES = {
    "mnist": {"scattering + linear": LINEAR_SPACE, "mlp": MLP_SPACE},
    "fashion-mnist": {"scattering + linear": RATES_ONLY_SPACE},
    "cifar10": {"scattering + linear": RATES_ONLY_SPACE},
}
QUICK_SPACE = SearchSpace(
    rounds=(20,), rate=4.0, growth=0.5, clips=(1.0,), exponents=(0.5, 0.0), gossip=(2,),
    budgets=(1.0, 4.0), anchors=(1.0, 4.0), turns=1,
)  # fmt: skip
QUICK_SPACES = {data: {"scattering + linear": QUICK_SPACE, "mlp": QUICK_SPACE} for data in FULL_SPACES}
VALIDATION_SHARE = 1 / 6  # of all training records

FRONTIERS = [f"frontier-{data}" for data in FULL_SPACES]


def make(name: str, scale: Scale, runs: FigureRuns, out: Path, progress: Progress) -> list[RunConfig]:
    """Make the frontier `name`, which covers one data set, and return the configurations of all runs used.

    For one model after the other, tune the settings and execute the runs. Then draw the results and write
    them to `out`. If the time limit passes, write the results obtained so far.
    """
    data = data_of(name)
    scale = scale.of(data)
    spaces = (FULL_SPACES if scale.name == "full" else QUICK_SPACES)[data]
    rows: list[FrontierRow] = []
    used: list[RunConfig] = []
    try:
        for model, space in spaces.items():
            search = ModelFrontier(data=data, model=model, space=space, scale=scale, runs=runs, used=used)
            progress(f"{name}: {model}: choosing settings on the validation split")
            best = search.tune()
            progress(
                f"{name}: {model}: running the chosen settings with other seeds, on all training records"
            )
            try:
                search.execute([config for setting in best for config in search.finals(setting)])
            finally:
                rows += search.rows(best)
    except OutOfTime as error:
        progress(f"{name}: {error} Results so far are written; the same command continues.")
    if rows:
        frontier_report.write_rows(rows, out / f"{name}.csv")
        redraw(name, scale, out)
    return [config for config in used if config in runs]


def redraw(name: str, scale: Scale, out: Path) -> None:
    """Draw the picture and write the table from the CSV file in `out`."""
    rows, scale = frontier_report.read_rows(out / f"{name}.csv"), scale.of(data_of(name))
    frontier_report.draw(rows, scale, out / name)
    write_atomically(out / f"{name}.md", frontier_report.table(name, rows, scale))


def data_of(name: str) -> str:
    return name.removeprefix("frontier-")


@dataclass(kw_only=True)
class ModelFrontier:
    """The frontier of one model on one data set. It appends every run that it uses to `used`."""

    data: str
    model: str
    space: SearchSpace
    scale: Scale
    runs: FigureRuns
    used: list[RunConfig]

    def __post_init__(self) -> None:
        self.contenders = contenders(self.scale.agents)

    def tune(self) -> list[BestSetting]:
        knobs = {name: contender.knobs for name, contender in self.contenders.items()}
        return tune(self.space, knobs, frozenset({"no-noise"}), self._validation_accuracies)

    def rows(self, best: Sequence[BestSetting]) -> Iterator[FrontierRow]:
        """Yield a row for each setting whose runs are all finished."""
        done = [setting for setting in best if all(config in self.runs for config in self.finals(setting))]
        private = [setting for setting in done if math.isfinite(setting.case.epsilon)]
        noisy = [config for setting in private for config in self.finals(setting)]
        epsilons = dict(zip(map(run_name, noisy), self.runs.noise.epsilon_of_all_others(noisy), strict=True))
        for setting in done:
            finals = self.finals(setting)
            epsilon_all_others = max(epsilons.get(run_name(config), math.inf) for config in finals)
            if math.isfinite(epsilon_all_others):
                epsilon_all_others = math.ceil(100 * epsilon_all_others) / 100
            accuracies = self._accuracies(finals)
            yield FrontierRow.of(self.data, self.model, setting, finals[0], accuracies, epsilon_all_others)

    def finals(self, setting: BestSetting) -> list[RunConfig]:
        return [self.config(setting.case, setting.candidate, seed) for seed in self.scale.seeds]

    def config(
        self, case: Case, candidate: Candidate, seed: int, validation: float | None = None
    ) -> RunConfig:
        """Return the configuration of one run; its noise is calibrated later.

        For a method without noise, the ε of `case` is infinite, and the configuration has no budget.
        `validation`: the share of training records on which the run is tested; if None, the test set is used.
        """
        contender, scale, parts = self.contenders[case.contender], self.scale, CONTENDER_MODELS[self.model]
        tuned: dict[str, Any] = {"gossip": candidate.gossip} if "gossip" in contender.knobs else {}
        if "exponent" in contender.knobs:
            power = {"kind": "power", "exponent": candidate.exponent}
            tuned["noise_schedule"] = power if candidate.exponent else {"kind": "constant"}
        budget = {"epsilon": case.epsilon} if math.isfinite(case.epsilon) else {}
        tree: dict[str, Any] = {
            "seed": seed,
            "noise_seed": seed,
            "rounds": candidate.rounds,
            "topology": {"agents": scale.agents, "connection": scale.connection or 0.2},
            "method": {"name": contender.method, **contender.fixed, **tuned},
            "privacy": {"clip": candidate.clip, "colluders": contender.colluders, **budget},
            "data": {
                "name": scale.data.get(self.data, self.data),
                **({"records": scale.records} if scale.records else {}),
                **({"validation": validation} if validation else {}),
                **parts.get("data", {}),
            },
            "model": parts["model"],
            "train": {"learning_rate": candidate.rate / candidate.clip, "evaluate_every": candidate.rounds},
        }
        return parse(tree, "frontier")

    def _validation_accuracies(self, settings: list[tuple[Case, Candidate]]) -> list[float]:
        config = partial(self.config, validation=VALIDATION_SHARE)
        configs = [config(*setting, seed) for setting in settings for seed in self.space.seeds]
        self.execute(configs)
        return list(np.reshape(self._accuracies(configs), (-1, len(self.space.seeds))).mean(axis=1))

    def execute(self, configs: list[RunConfig]) -> None:
        self.used.extend(configs)
        self.runs.execute(configs)

    def _accuracies(self, configs: list[RunConfig]) -> list[float]:
        return [self.runs[config][-1]["mean"] for config in configs]

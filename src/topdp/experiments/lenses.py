"""The paper's setting, and three lenses: three ways to choose noise and batches for each figure.

- `printed`: every method uses the noise that its own published analysis asks for; for the proposed method
  this is Theorem 1. All assume the paper's sensitivity C/|D_i|, although batches have 20 records.
- `same`: every method uses the same full-scale σ, the least that the paper's sensitivity allows. The paper
  evidently ran this.
- `honest`: batches are full, and every method is calibrated to the same true ε. It is the `adaptive` ε: what
  each other agent learns, whatever the gradients do.

Each figure lists the runs that it needs; `figure_runner` executes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from topdp.data.catalogue import CATALOGUE
from topdp.plan import Full
from topdp.privacy.answers import ADAPTIVE, CLAIMED
from topdp.privacy.published.calibrations import CALIBRATIONS
from topdp.runs.config import RunConfig, parse
from topdp.runs.methods import METHODS

MODES = ("sync", "async")
LENSES = {
    "printed": "as printed: each method's own noise, Theorem 1's for the proposed one",
    "same": "the same full-scale noise for every method",
    "honest": "equal true privacy: every method calibrated to the same adaptive ε, full batches",
}
LENS_GUARANTEES = {"printed": CLAIMED.name, "same": CLAIMED.name, "honest": ADAPTIVE.name}
"""The answer to which the ε of each lens belongs. For `same`, ε follows from σ by the paper's sensitivity."""

PAPER_EPOCHS = 60
BASELINES = ("li18", "li18-ma", "udp", "optimal")
PROPOSED = "top-dp"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of the runs of all figures, such as full or quick."""

    name: str
    agents: int
    epochs: int
    rounds_per_epoch: int  # under the lenses printed and same
    honest_rounds: int  # under the lens honest
    seeds: tuple[int, ...]
    batch: int
    connection: float | None = None  # the connection rate; None: that of the figure
    records: int | None = None  # per agent; None: all records
    test_records: int = 10_000
    evaluations: int | None = None  # None: one per epoch, or twenty under the lens honest
    cifar: dict[str, int] = field(default_factory=dict)  # fields that differ for CIFAR-10
    data: dict[str, str] = field(default_factory=dict)  # replacements for data sets, for tests

    @property
    def rounds(self) -> int:
        return self.epochs * self.rounds_per_epoch

    @property
    def quick(self) -> bool:
        return self.name == "quick"

    @property
    def remark(self) -> str:
        """The suffix for titles of pictures."""
        return " (quick: small runs, one seed)" if self.quick else ""

    def of(self, data: str) -> Scale:
        return replace(self, **self.cifar) if data == "cifar10" else self  # type: ignore[arg-type]

    def test_records_of(self, config: RunConfig) -> int:
        return self.of("cifar10" if config.model.name == "cnn" else "mnist").test_records


FULL_SCALE = Scale(
    name="full", agents=30,
    epochs=PAPER_EPOCHS, rounds_per_epoch=100, honest_rounds=200, seeds=(0, 1, 2), batch=20,
    cifar={"evaluations": 12},
)  # fmt: skip
QUICK_SCALE = Scale(
    name="quick", agents=10, epochs=6,
    rounds_per_epoch=10, honest_rounds=40, seeds=(0,), batch=20, connection=0.5,
    records=200, test_records=1000, cifar={"epochs": 2, "honest_rounds": 10, "records": 60},
)  # fmt: skip


def figure_run(
    scale: Scale,
    lens: str,
    method: str,
    seed: int,
    *,
    mode: str = "sync",
    alpha: float = 0.25,
    epsilon: float = 1.0,
    data: str = "mnist",
    agents: int | None = None,
    topology: dict[str, Any] | None = None,
    decay: tuple[float, float] = (0.9, 10.0),
) -> RunConfig:
    """Return the configuration of one run of a figure. Under the lens `honest`, σ is calibrated later.

    `decay`: the factor γ by which the noise decays, and the period in epochs of the paper's run. `topology`:
    settings that replace the random graph.
    """
    scale = scale.of(data)
    agents = scale.agents if agents is None else round(agents * scale.agents / 30)
    graph = {"connection": scale.connection or 0.2, **(topology or {})}
    honest = lens == "honest"
    rounds = scale.honest_rounds if honest else scale.rounds
    evaluations = scale.evaluations or (20 if honest else scale.epochs)
    # The noise decays after the same share of a run as in the paper, however long the run is.
    period = max(1, round(decay[1] * rounds / PAPER_EPOCHS))
    if not METHODS[method].noisy:
        epsilon = 1.0  # so that all budgets share one run
    tree: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "topology": {"agents": agents, **graph},
        "method": {
            "name": method,
            "mode": mode,
            "alpha": alpha,
            "noise_schedule": {"factor": decay[0], "period": period},
        },
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "clip": 4.0},
        "data": {
            "name": scale.data.get(data, data),
            "batch": "full" if honest else {"cycle": scale.batch},
            **({"records": scale.records} if scale.records else {}),
        },
        "model": {"name": "cnn" if data == "cifar10" else "mlp"},
        "train": {
            "learning_rate": 0.5 if honest else 0.05,
            "fading": "linear" if honest else "sqrt-epoch",
            "rounds_per_epoch": scale.rounds_per_epoch,
            "evaluate_every": max(1, rounds // evaluations),
        },
    }
    if not honest and METHODS[method].noisy:
        tree["privacy"]["sigma"] = _sigma(scale, lens, method, agents, epsilon, data)
    return parse(tree, f"{lens} {method}")


def _sigma(scale: Scale, lens: str, method: str, agents: int, epsilon: float, data: str) -> float:
    """Return σ under the paper's own sensitivity C/|D_i|. As in the paper, it ignores the decay of noise."""
    records = CATALOGUE[data].shapes["train_inputs"][0] // agents
    records = min(records, scale.records or records)
    rule = "tight" if lens == "same" else METHODS[method].calibration or "theorem1"
    return _published_sigma(rule, epsilon, scale.rounds + 1, records)


@cache
def _published_sigma(rule: str, epsilon: float, releases: int, records: int) -> float:
    return CALIBRATIONS[rule].calibrate(epsilon, 1e-5, releases, Full(records)).sigma


def methods_by_label(lens: str) -> dict[str, str]:
    """Return the method of each line of a panel, by label.

    Under `same` and `honest` all baselines are the same as `plain`, so one line shows them.
    """
    if lens == "printed":
        return {name: name for name in ("no-noise", *BASELINES, PROPOSED)}
    return {"no-noise": "no-noise", "every baseline": "plain", PROPOSED: PROPOSED}


def method_lines(
    scale: Scale, lens: str, *points: dict[str, Any], methods: Mapping[str, str] | None = None
) -> dict[str, list[list[RunConfig]]]:
    """Return the lines of a panel: a map from each label to the runs of all seeds for each point.

    `points`: one dictionary per x, with arguments of `figure_run`. `methods` maps labels to methods; the
    default is `methods_by_label(lens)`.
    """
    return {
        label: [
            [figure_run(scale, lens, method, seed, **settings) for seed in scale.seeds] for settings in points
        ]
        for label, method in (methods or methods_by_label(lens)).items()
    }

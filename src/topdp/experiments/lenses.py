"""The paper's setting, and three lenses: three ways to choose noise and batches for each figure.

- `printed`: every method uses the noise that its own published analysis asks for; for the proposed method
  this is Theorem 1. All assume the paper's sensitivity C/|D_i|, although batches have 20 records.
- `same`: every method uses the same full-scale σ, the least that the paper's sensitivity allows. The paper
  evidently ran this.
- `honest`: batches are full, and every method is calibrated to the same true ε. It is the `adaptive` ε: what
  each other agent learns, whatever the gradients do.

Under every lens the noise stands inside the step, on the gradient; the paper prints it on the estimate.

Each figure lists the runs that it needs; `figure_runner` executes them. `lens_run` is one such run, from a
preset and a lens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from topdp.plan import Full
from topdp.plan.batches import Adjacency
from topdp.privacy.answers import ADAPTIVE, CLAIMED
from topdp.privacy.published.calibrations import CALIBRATIONS
from topdp.runs import config as configs
from topdp.runs.config import ConfigError, RunConfig, did_you_mean, parse
from topdp.runs.methods import METHODS
from topdp.runs.named_records import record_counts
from topdp.runs.run_outline import RunOutline, budgets, deltas, method_of, named_graph

MODES = ("sync", "async")
LENSES = {
    "printed": "each method's own published noise, Theorem 1's for the proposed one",
    "same": "the same full-scale noise for every method",
    "honest": "equal true privacy: every method calibrated to the same adaptive ε, full batches",
}
HONEST = "honest"
LENS_GUARANTEES = {"printed": CLAIMED.name, "same": CLAIMED.name, HONEST: ADAPTIVE.name}
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


PAPER_PRESET = "paper-"
"""The presets of the paper's setting begin with this. The rest of the name is the data set and the mode."""


def lens_run(preset: str, lens: str, changes: Sequence[str] = ()) -> RunConfig:
    """Return the run of a figure that a preset and a lens name, with `key=value` changes.

    The noise of the lens is chosen last, for the method, budget, agents and rounds after the changes.
    """
    if lens not in LENSES:
        raise ConfigError(f"--lens: expected a lens, got {lens!r}.{did_you_mean(lens, list(LENSES))}")
    paper_presets = [name for name in configs.presets() if name.startswith(PAPER_PRESET)]
    if preset not in paper_presets:
        raise ConfigError(
            f"--lens: expected a preset of the paper's setting, got {preset!r}. Use --preset with one of "
            f"{', '.join(paper_presets)}."
        )
    data = configs.read(preset=preset).data.name
    settings = lens_settings(FULL_SCALE.of(data), lens) | {
        # A budget is of this answer. Without a lens the presets are calibrated to `view`.
        "privacy": {"guarantee": LENS_GUARANTEES[lens], "allow_slow": lens == HONEST}
    }
    of_lens = [f"{key}={json.dumps(value)}" for key, value in configs.dotted(settings).items()]
    config = configs.read(preset=preset, changes=[*of_lens, *changes])
    if not any(change.partition("=")[0].strip() == "noise_seed" for change in changes):
        config = config.model_copy(update={"noise_seed": config.seed})  # as in the figures
    return with_lens_noise(config, lens)


def lens_settings(scale: Scale, lens: str, decay: tuple[float, float] = (0.9, 10.0)) -> dict[str, Any]:
    """Return the settings, besides noise, in which the runs of a lens differ from those of the others.

    `decay`: the factor γ by which the noise decays, and the period in epochs of the paper's run.
    """
    honest = lens == HONEST
    rounds = scale.honest_rounds if honest else scale.rounds
    evaluations = scale.evaluations or (20 if honest else scale.epochs)
    # The noise decays after the same share of a run as in the paper, however long the run is.
    period = max(1, round(decay[1] * rounds / PAPER_EPOCHS))
    return {
        "rounds": rounds,
        "method": {
            "noise_schedule": {"factor": decay[0], "period": period},
            # The stored figures were made with this reading of Algorithm 2 (docs/paper.md).
            "rematch": "next-round",
        },
        "data": {"batch": "full" if honest else {"cycle": scale.batch}},
        "train": {
            "learning_rate": 0.5 if honest else 0.05,
            "fading": "linear" if honest else "sqrt-epoch",
            "rounds_per_epoch": scale.rounds_per_epoch,
            "evaluate_every": max(1, rounds // evaluations),
        },
    }


def with_lens_noise(config: RunConfig, lens: str) -> RunConfig:
    """Return `config` with the σ of the lens, unless it states σ or has no noise.

    Under the lens `honest`, σ stays open: it is calibrated before the run.
    """
    method = method_of(config)
    if lens == HONEST or config.privacy.sigma is not None or not method.noisy:
        return config
    if "async" not in method.modes or config.data.partition != "iid":
        raise ConfigError(
            f"--lens {lens}: expected a method of the paper and equal shards (data.partition = iid), got "
            f"{method.name!r} and {config.data.partition!r}. Change them, or use --lens {HONEST}."
        )
    # As in the paper, σ ignores the decay of the noise, and the sensitivity is C/|D_i| for any batch.
    rule = "tight" if lens == "same" else method.calibration or config.method.calibration or "theorem1"
    privacy = config.privacy
    agents = named_graph(config).agents if config.topology.kind == "file" else config.topology.agents
    records = _equal_share(config.data.model_dump_json(exclude_none=True), agents)
    own_budgets = isinstance(privacy.epsilon, list) or isinstance(privacy.delta, list)
    sigmas = [
        _published_sigma(rule, epsilon, delta, config.rounds + 1, records, privacy.adjacency)
        for epsilon, delta in zip(
            budgets(config, agents).tolist(), deltas(config, agents).tolist(), strict=True
        )
    ]
    sigma = sigmas if own_budgets else sigmas[0]
    return config.model_copy(update={"privacy": privacy.model_copy(update={"sigma": sigma})})


@cache
def _equal_share(data: str, agents: int) -> int:
    """Return the number of records of each agent. `data`: the section of a configuration, as JSON.

    Cached, because files of records are read to count them.
    """
    tree = {"topology": {"kind": "ring", "agents": agents}, "data": json.loads(data)}
    return min(record_counts(RunOutline.of(parse(tree))))


@cache
def _published_sigma(
    rule: str, epsilon: float, delta: float, releases: int, records: int, adjacency: Adjacency
) -> float:
    return CALIBRATIONS[rule].calibrate(epsilon, delta, releases, Full(records), adjacency).sigma


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

    `agents`: at full scale. `topology`: settings that replace the random graph. `decay`: as in
    `lens_settings`.
    """
    scale = scale.of(data)
    agents = scale.agents if agents is None else round(agents * scale.agents / 30)
    settings = lens_settings(scale, lens, decay)
    if not METHODS[method].noisy:
        epsilon = 1.0  # so that all budgets share one run
    records = {"records": scale.records} if scale.records else {}
    tree: dict[str, Any] = settings | {
        "seed": seed,
        "noise_seed": seed,
        "topology": {"agents": agents, "connection": scale.connection or 0.2, **(topology or {})},
        "method": settings["method"] | {"name": method, "mode": mode, "alpha": alpha},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "clip": 4.0},
        "data": settings["data"] | {"name": scale.data.get(data, data), **records},
        "model": {"name": "cnn" if data == "cifar10" else "mlp"},
    }
    return with_lens_noise(parse(tree, f"{lens} {method}"), lens)


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

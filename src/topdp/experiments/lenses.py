"""The paper's setting, and the three lenses through which each figure is seen.

`printed`: every method with the noise its own analysis asks for, the proposed one with Theorem 1's; all under
the sensitivity the paper uses, C/|D_i|, though batches are of 20. `same`: one full-scale σ for every method,
the least that the paper's sensitivity allows; what the paper evidently ran. `honest`: full local batches, and
every method calibrated to the same true ε: `adaptive`, what each other agent learns whatever gradients do.

Which runs a figure needs is said by the figure; how they are executed, by `runner`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from topdp.data.catalogue import CATALOGUE
from topdp.plan import Full
from topdp.privacy.answers import ADAPTIVE, CLAIMED
from topdp.privacy.published import CALIBRATIONS
from topdp.runs.config import RunConfig, parse
from topdp.runs.methods import METHODS

LENSES = {
    "printed": "as printed: each method's own noise, Theorem 1's for the proposed one",
    "same": "the same full-scale noise for every method",
    "honest": "equal true privacy: every method calibrated to the same adaptive ε, full batches",
}
GUARANTEES = {"printed": CLAIMED.name, "same": CLAIMED.name, "honest": ADAPTIVE.name}
"""What the ε of a lens is; that of `same` is what the paper's sensitivity would make of that noise."""

EPOCHS = 60  # of the paper's runs
BASELINES = ("li18", "li18-ma", "udp", "optimal")
PROPOSED = "top-dp"


@dataclass(frozen=True)
class Scale:
    """How large the runs are."""

    name: str
    agents: int
    epochs: int
    rounds_per_epoch: int  # of the paper's runs
    honest_rounds: int
    seeds: tuple[int, ...]
    batch: int
    connection: float | None = None  # None: what the figure asks for
    records: int | None = None
    test_records: int = 10_000
    evaluations: int | None = None  # None: one an epoch, twenty under the honest lens
    cifar: dict[str, int] = field(default_factory=dict)  # what differs for CIFAR-10
    data: dict[str, str] = field(default_factory=dict)  # data sets by other names, for tests

    @property
    def rounds(self) -> int:
        return self.epochs * self.rounds_per_epoch

    @property
    def quick(self) -> bool:
        return self.name == "quick"

    @property
    def remark(self) -> str:
        """For the titles of pictures."""
        return " (quick: small runs, one seed)" if self.quick else ""

    def of(self, data: str) -> Scale:
        return replace(self, **self.cifar) if data == "cifar10" else self  # type: ignore[arg-type]


FULL = Scale(
    "full", agents=30, epochs=EPOCHS, rounds_per_epoch=100, honest_rounds=200, seeds=(0, 1, 2), batch=20,
    cifar={"evaluations": 12},
)  # fmt: skip
QUICK = Scale(
    "quick", agents=10, epochs=6, rounds_per_epoch=10, honest_rounds=40, seeds=(0,), batch=20, connection=0.5,
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
    """One run of a figure; its σ is still to be calibrated under the honest lens. `decay`: (γ, epochs)."""
    scale = scale.of(data)
    agents = scale.agents if agents is None else round(agents * scale.agents / 30)
    graph = {"connection": scale.connection or 0.2, **(topology or {})}
    honest = lens == "honest"
    rounds = scale.honest_rounds if honest else scale.rounds
    evaluations = scale.evaluations or (20 if honest else scale.epochs)
    # However long a run is, the noise decays after the same share of it as in the paper's.
    period = max(1, round(decay[1] * rounds / EPOCHS))
    if not METHODS[method].noisy:
        epsilon = 1.0  # one run serves all budgets
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
    """σ under the paper's own sensitivity C/|D_i|; the decay counted as free, as it does."""
    records = CATALOGUE[data].shapes["train_inputs"][0] // agents
    records = min(records, scale.records or records)
    rule = "tight" if lens == "same" else METHODS[method].calibration or "theorem1"
    return _published_sigma(rule, epsilon, scale.rounds + 1, records)


@cache
def _published_sigma(rule: str, epsilon: float, releases: int, records: int) -> float:
    return CALIBRATIONS[rule].calibrate(epsilon, 1e-5, releases, Full(records)).sigma


def methods_by_label(lens: str) -> dict[str, str]:
    """The lines of a figure. Under `same` and `honest` all baselines are one and the same, the plain rule."""
    if lens == "printed":
        return {name: name for name in ("no-noise", *BASELINES, PROPOSED)}
    return {"no-noise": "no-noise", "every baseline": "plain", PROPOSED: PROPOSED}

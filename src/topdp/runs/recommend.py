"""Which method and which settings for a number of agents, a graph, records, a budget and colluders. No data.

The noise that each method leaves in the average follows from its account and its plan; that is most of what
decides how accurate a model becomes. Settings of the training itself are from trials of ours, and said so.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from topdp.base.progress import Progress, silent
from topdp.data.catalogue import CATALOGUE
from topdp.errors import TopdpError
from topdp.privacy.answers import ADAPTIVE
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.query import Query
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.auto_values import noise_shares
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.methods import METHODS
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import budgets
from topdp.topology import Topology

COMPARED_METHODS = ("plain", "dsgd", "muffliato", "correlated")
COMPARED_ROUNDS = 20  # rounds after which noise is compared

PLAIN_STEPS = {
    "learning_rate": 1.0,
    "fading": "none",
    "warmup": 0,
    "optimiser": "sgd",
    "weight_decay": 0.0,
    "average": 0.0,
}
"""Methods are compared by the noise that equal, plain steps leave: what comes after the noise is the same."""

STEP_TIMES_ROUNDS = 65_000.0
"""λ·T at ε = 1 and 60,000 records of length 1, clip ½: from trials on MNIST and Fashion-MNIST."""

MAX_STEP = 450.0  # λ beyond which training swings
RECOMMENDED_ROUNDS = 300


@dataclass(frozen=True, kw_only=True)
class Option:
    """What one method costs here. `noise` None: it cannot be used, and `reason` says why."""

    method: str
    noise: float | None  # variance in the average, over that of pooled records
    between: float | None  # of an agent's estimate around the average, likewise
    sent: int  # estimates to each neighbour in a round
    reason: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Recommendation:
    """The options, best first, and the changes to a configuration that follow from the first."""

    options: list[Option]
    changes: dict[str, Any]
    reasons: list[str]

    def details(self, given: Sequence[str] = ()) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "options": [asdict(option) for option in self.options],
            "changes": self.changes,
            "reasons": self.reasons,
            "command": self.command(given),
        }

    def command(self, given: Sequence[str] = ()) -> str:
        """Return the command to run.

        `given`: the arguments of the question, of which changed keys are dropped.
        """
        kept, words = list[str](), iter(given)
        for word in words:
            pair = [word, next(words, "")] if word == "--set" else [word]
            if word != "--set" or pair[1].partition("=")[0].strip() not in self.changes:
                kept += pair
        changes = (part for key, value in self.changes.items() for part in ("--set", f"{key}={value}"))
        return shlex.join(["topdp", "run", *kept, *changes])


def recommend(
    config: RunConfig,
    graph: Topology,
    counts: tuple[int, ...],
    progress: Progress = silent,
) -> Recommendation:
    """Recommend a method for the agents, graph, records, budget and colluders of `config`."""
    if METHODS[config.method.name].pools:
        raise ConfigError("method.name: central has no graph to recommend a method for. Remove it.")
    options = []
    for number, name in enumerate(COMPARED_METHODS, 1):
        progress(f"calibrating {name}, method {number} of {len(COMPARED_METHODS)}")
        options.append(_option(config, graph, counts, name))
    options.sort(key=_rank)
    best = options[0]
    if best.noise is None:
        raise ConfigError(f"No method fits: {best.reason}")
    changes: dict[str, Any] = {"method.name": best.method, **best.settings}
    reasons = [best.reason]
    if config.data.name in CATALOGUE:
        changes |= _training(config, sum(counts), reasons)
    return Recommendation(options, changes, reasons)


def _option(config: RunConfig, graph: Topology, counts: tuple[int, ...], name: str) -> Option:
    method = config.method.model_copy(update={"name": name, "mode": "sync"})
    asked = config.model_copy(
        update={
            "method": method,
            "rounds": COMPARED_ROUNDS,
            "train": config.train.model_copy(update=PLAIN_STEPS),
            "data": config.data.model_copy(update={"batch": "full"}),
        }
    )
    try:
        run = resolve(asked, graph, counts)
        privacy, epsilon = run.config.privacy, budgets(asked, graph.agents)
        noise = calibrate(
            run.write_plan, run.analysis, ADAPTIVE.name, epsilon, privacy.delta,
            Query(colluders=privacy.colluders), noise_shares(run),
        )  # fmt: skip
    except TopdpError as error:
        return Option(method=name, noise=None, between=None, sent=0, reason=str(error), settings={})
    plan = run.write_plan(noise.deviation)
    left, each = residual_noise(plan), plan.releases_per_round
    pooled = pooled_noise(run.config, counts, float(epsilon.min()))
    average, between = float(left.average[-1]) / pooled, float(left.between[-1]) / pooled
    settings, reason = {}, f"{name} leaves {average:.3g} times the noise of pooled records in the average"
    if METHODS[name].shares_noise:
        c = run.config.method
        settings = {
            "method.secrets_degree": c.secrets_degree,
            "method.gossip": c.gossip,
            "privacy.colluders": privacy.colluders,
        }
        reason += (
            f", with {c.secrets_degree} partners for each agent, against any {privacy.colluders} that collude"
        )
    elif METHODS[name].gossips:
        settings = {"method.gossip": run.config.method.gossip}
    return Option(
        method=name,
        noise=average,
        between=between,
        sent=max(1, each - 1),
        reason=reason + ".",
        settings=settings,
    )


def pooled_noise(config: RunConfig, counts: tuple[int, ...], epsilon: float) -> float:
    """The variance that pooled records would leave after as many steps, for the smallest of the budgets."""
    central = config.model_copy(
        update={
            "method": config.method.model_copy(update={"name": "central", "mode": "sync"}),
            "privacy": config.privacy.model_copy(update={"colluders": 0, "epsilon": epsilon, "sigma": None}),
        }
    )
    run = resolve(central, counts=(sum(counts),))
    delta, query = config.privacy.delta, Query(colluders=0)
    noise = calibrate(run.write_plan, run.analysis, ADAPTIVE.name, np.array([epsilon]), delta, query)
    return float(residual_noise(run.write_plan(noise.deviation)).average[-1])


def _rank(option: Option) -> tuple[bool, float, int]:
    """Return the sort key: least noise first; if noise differs by less than 5%, fewest messages first."""
    if option.noise is None:
        return True, math.inf, 0
    return False, round(math.log(option.noise) / math.log(1.05)), option.sent


def _training(config: RunConfig, records: int, reasons: list[str]) -> dict[str, Any]:
    epsilon = float(np.min(np.asarray(config.privacy.epsilon)))
    step = min(STEP_TIMES_ROUNDS * epsilon * (records / 60_000) / RECOMMENDED_ROUNDS, MAX_STEP)
    reasons.append(
        "Images: public scattering features and a linear model need the fewest rounds; a step of "
        f"{step:.3g} over {RECOMMENDED_ROUNDS} rounds with clip 0.5 follows our trials on MNIST and "
        "Fashion-MNIST, in proportion to ε and records. Try half and twice of it with "
        "data.validation."
    )
    return {
        "data.features": "scattering",
        "model.name": "linear",
        "privacy.clip": 0.5,
        "rounds": RECOMMENDED_ROUNDS,
        "train.learning_rate": float(f"{step:.3g}"),
    }

"""Recommend a method and settings for given agents, a graph, record counts, a budget and colluders.

Records are read only if they are a user's own files, for the shape of one record and the type of its target.

Methods are compared by the residual noise in the average of the estimates, which mostly decides how accurate
a model becomes. It follows from the account and the plan of a method. The settings of the training follow the
job (`job_settings.py`).
"""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from topdp.base.progress import Progress, silent
from topdp.errors import TopdpError
from topdp.privacy.answers import ADAPTIVE
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.query import Query
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.auto_values import noise_shares, with_keys
from topdp.runs.config import AUTO, ConfigError, RunConfig
from topdp.runs.job_method import with_job_method
from topdp.runs.job_records import RecordKind
from topdp.runs.methods import METHODS, POOLED, Method
from topdp.runs.named_model import WORD_COUNTS
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline, budgets, method_of, strictest_budget
from topdp.topology import Topology

COMPARED_METHODS = [method for method in METHODS.values() if method.comparable]
COMPARED_ROUNDS = 20  # rounds after which the noise is compared

MIN_SCATTERED_SIDE = 8  # of images with scattering features

# The training settings of the comparison: equal, plain steps, so that only the noise of methods differs.
PLAIN_STEPS = {
    "learning_rate": 1.0,
    "fading": "none",
    "warmup": 0,
    "optimiser": "sgd",
    "weight_decay": 0.0,
    "average": 0.0,
}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One method, with its residual noise and its messages. `noise` None: it cannot be used; see `reason`."""

    method: str
    noise: float | None  # the variance of the average of all estimates, relative to pooled records
    between: float | None  # the variance of an agent's estimate around the average, relative to the same
    sent: int  # the number of estimates that an agent sends to each neighbour in a round
    reason: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Recommendation:
    """The options, best first, and the changes to a configuration that follow from the best option."""

    options: list[Option]
    changes: dict[str, Any]
    reasons: list[str]

    def details(self, given: Sequence[str] = ()) -> dict[str, Any]:
        """Return the JSON object that `--json` prints. `given`: as for `command`."""
        return {
            "options": [asdict(option) for option in self.options],
            "changes": self.changes,
            "reasons": self.reasons,
            "command": self.command(given),
        }

    def command(self, given: Sequence[str] = ()) -> str:
        """Return the `topdp run` command with the recommended settings.

        `given`: the arguments that the user gave. Those that set a recommended key, or a mode that no
        recommended method has, are left out.
        """
        replaced = {*self.changes, "method.mode"}
        arguments, words = list[str](), iter(given)
        for word in words:
            pair = [word, next(words, "")] if word == "--set" else [word]
            if word != "--set" or pair[1].partition("=")[0].strip() not in replaced:
                arguments += pair
        changes = (part for key, value in self.changes.items() for part in ("--set", f"{key}={value}"))
        return shlex.join(["topdp", "run", *arguments, *changes])


def recommend(
    config: RunConfig,
    graph: Topology,
    counts: tuple[int, ...],
    progress: Progress = silent,
) -> Recommendation:
    """Return the recommended method and settings, for counts[i] records of agent i and the budget and
    colluders of `config`. Raise ConfigError if no method fits.
    """
    config = with_job_method(config, graph.agents)
    if (method := method_of(config)).pools:
        raise ConfigError(f"method.name: expected a method on a graph, got {method.name!r}. Remove it.")
    options = []
    for number, method in enumerate(COMPARED_METHODS, 1):
        progress(f"calibrating {method.name}, method {number} of {len(COMPARED_METHODS)}")
        options.append(_option(config, graph, counts, method))
    options.sort(key=_rank)
    best = options[0]
    if best.noise is None:
        raise ConfigError(f"Expected settings that some method can use, got none: {best.reason}")
    changes: dict[str, Any] = {"method.name": best.method, **best.settings}
    reasons = [best.reason]
    changes |= _training(_with_changes(config, changes), graph, counts, reasons)
    return Recommendation(options, changes, reasons)


def _option(config: RunConfig, graph: Topology, counts: tuple[int, ...], method: Method) -> Option:
    name = method.name
    compared = config.model_copy(
        update={
            "method": config.method.model_copy(update={"name": name, "mode": "sync"}),
            "privacy": config.privacy.model_copy(update={"clip": 1.0}),  # noise scales with it
            "rounds": COMPARED_ROUNDS,
            "train": config.train.model_copy(update=PLAIN_STEPS),
            "data": config.data.model_copy(update={"batch": "full"}),
        }
    )
    try:
        run = resolve(compared, graph, counts)
        privacy, epsilon = run.config.privacy, budgets(compared, graph.agents)
        noise = calibrate(
            run.write_plan, run.analysis, ADAPTIVE.name, epsilon, privacy.delta,
            Query(colluders=privacy.colluders), noise_shares(run),
        )  # fmt: skip
    except TopdpError as error:
        return Option(method=name, noise=None, between=None, sent=0, reason=str(error), settings={})
    plan = run.write_plan(noise.deviation)
    residual, releases = residual_noise(plan), plan.releases_per_round
    pooled = pooled_noise(run.config, counts) * run.total_weight**2
    average, between = float(residual.average[-1]) / pooled, float(residual.between[-1]) / pooled
    settings, reason = {}, f"{name} leaves {average:.3g} times the noise of pooled records in the average"
    if method.shares_noise:
        c = run.config.method
        settings = {
            "method.secrets_degree": c.secrets_degree,
            "method.gossip": c.gossip,
            "privacy.colluders": privacy.colluders,
        }
        reason += (
            f", with {c.secrets_degree} partners for each agent, against any {privacy.colluders} that collude"
        )
    elif method.gossips:
        settings = {"method.gossip": run.config.method.gossip}
    return Option(
        method=name,
        noise=average,
        between=between,
        sent=max(1, releases - 1),
        reason=reason + ".",
        settings=settings,
    )


def pooled_noise(config: RunConfig, counts: tuple[int, ...]) -> float:
    """Return the variance of the residual noise that one agent with all records would have after as many
    rounds, with the strictest budget of an agent.
    """
    epsilon, delta = strictest_budget(config)
    central = config.model_copy(
        update={
            "method": config.method.model_copy(update={"name": POOLED.name, "mode": "sync"}),
            "privacy": config.privacy.model_copy(
                update={"colluders": 0, "epsilon": epsilon, "delta": delta, "sigma": None}
            ),
        }
    )
    run = resolve(central, counts=(sum(counts),))
    query = Query(colluders=0)
    noise = calibrate(run.write_plan, run.analysis, ADAPTIVE.name, np.array([epsilon]), delta, query)
    return float(residual_noise(run.write_plan(noise.deviation)).average[-1])


def _rank(option: Option) -> tuple[bool, float, int]:
    """Return the sort key: least noise first, and fewest messages first if noise differs by less than 5%."""
    if option.noise is None:
        return True, math.inf, 0
    return False, round(math.log(option.noise) / math.log(1.05)), option.sent


def _training(
    config: RunConfig, graph: Topology, counts: tuple[int, ...], reasons: list[str]
) -> dict[str, Any]:
    """Return features, model, loss and the settings that follow the job (`job_settings.py`)."""
    kind = RecordKind.of(RunOutline.of(config, graph))
    changes: dict[str, Any] = {}
    if ":" in config.model.name:
        why = f"The model is your own, {config.model.name}."
    elif kind.is_text:
        changes["model.name"] = WORD_COUNTS
        why = "Texts: a linear model of word counts needs little budget."
    elif kind.is_image and min(kind.shape[1:]) >= MIN_SCATTERED_SIDE:
        changes |= {"data.features": "scattering", "model.name": "linear"}
        why = "Images: public scattering features and a linear model need little budget."
    else:
        changes["model.name"] = "affine"
        why = "Tables: a linear model needs little budget."
    if kind.classes is None:
        changes["train.loss"] = "mse"
    if config.train.optimiser == "adam":
        changes["train.optimiser"] = "sgd"
    automatic = {"rounds": AUTO, "privacy.clip": AUTO, "train.learning_rate": AUTO}
    sync = {"method.mode": "sync"}
    run = resolve(_with_changes(config, changes | automatic | sync), graph, counts).config
    changes |= {
        "privacy.clip": run.privacy.clip,
        "rounds": run.rounds,
        "train.learning_rate": run.train.learning_rate,
    }
    reasons.append(
        f"{why} Rounds, clip and step follow from ε, the number of records and the model (docs/defaults.md). "
        "Also try half and twice this step, with data.validation."
    )
    return changes


def _with_changes(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """Return the configuration with changes by dotted keys."""
    sections: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        sections[section][name] = value
    return with_keys(config.model_copy(update=sections.pop("", {})), **sections)

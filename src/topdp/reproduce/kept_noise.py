"""The noise of the honest lens: one account a plan at ε = 1, kept by name; all else follows by scaling.

For the figures and the frontier, whose accounts take hours when they are computed afresh; a run by itself is
calibrated by `runs/planning.py`.

**Guarantees.** σ is that of `privacy.calibrate`: the least with which no other agent alone learns more than
the budget, whatever gradients do (adaptive, sound bound), one record of one agent added or removed, full
batches of equal shards, the noise inside the step. Whatever does not follow from the kept σ by exact scaling
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from topdp.errors import InputError
from topdp.files import write_whole
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.calibrate import calibrate
from topdp.privacy.observers.worst_case import worst_case
from topdp.reproduce.lenses import GUARANTEES
from topdp.reproduce.processes import in_processes
from topdp.reproduce.store import Say, read_json, run_name
from topdp.runs.planning import plan_writer
from topdp.settings import build
from topdp.settings.config import RunConfig, parse

UNIT_RECORDS = 100
LITTLE_WORK = 2e4  # rounds times agents: accounts that take less are not worth starting processes for


class KeptNoise:
    """σ of configurations, in one JSON file: name of the configuration at ε = 1 -> σ."""

    def __init__(self, file: Path, say: Say) -> None:
        self.file = file
        self.say = say
        self.known: dict[str, float] = read_json(file)

    def calibrate(self, configs: Iterable[RunConfig]) -> None:
        """Whatever is not known yet."""
        units = {run_name(unit): unit for unit in map(_at_unit_budget, configs) if unit is not None}
        missing = [unit for key, unit in units.items() if key not in self.known]
        # The longest first, so that none is waited for alone at the end.
        missing.sort(key=lambda unit: unit.rounds * unit.topology.agents**3, reverse=True)
        worthwhile = sum(unit.rounds * unit.topology.agents for unit in missing) > LITTLE_WORK
        for done, (unit, sigma) in enumerate(in_processes(_sigma_of, missing, worthwhile), 1):
            self.known[run_name(unit)] = sigma
            if worthwhile or done == len(missing):
                write_whole(self.file, json.dumps(self.known, indent=1, sort_keys=True) + "\n")
            if worthwhile:
                self.say(f"calibrated {done} of {len(missing)} plans")

    def sigma(self, config: RunConfig) -> float:
        """The full-scale σ: as given, zero, or calibrated."""
        unit = _at_unit_budget(config)
        if unit is None:
            sigma = build.sigma(config, 1)
            assert sigma is not None
            return float(sigma[0])
        epsilon = config.privacy.epsilon
        assert isinstance(epsilon, float)
        # The loss scales as 1/noise: σ(ε) = σ(1) μ(1)/μ(ε); and the sensitivity as 1/records.
        delta, records = config.privacy.delta, build.counts(config, config.topology.agents)[0]
        return self.known[run_name(unit)] * _mu(1.0, delta) / _mu(epsilon, delta) * UNIT_RECORDS / records

    def epsilon_of_all_others(self, configs: Sequence[RunConfig]) -> list[float]:
        """ε of each run against all other agents together: its largest over the agents."""
        noisy = [(config, self.sigma(config)) for config in configs]
        worthwhile = sum(config.rounds * config.topology.agents for config in configs) > LITTLE_WORK
        found = {
            run_name(config): e for (config, _), e in in_processes(_epsilon_of_all_others, noisy, worthwhile)
        }
        return [found[run_name(config)] for config in configs]


@cache
def _mu(epsilon: float, delta: float) -> float:
    """Kept, because every read of a run asks for its σ, and budgets are few."""
    return float(mu_of(epsilon, delta))


def _at_unit_budget(config: RunConfig) -> RunConfig | None:
    """The configuration at ε = 1, whose σ gives all others by scaling; None where σ is given or zero."""
    if config.privacy.sigma is not None or not build.method(config).noisy:
        return None
    if config.data.batch != "full" or config.data.partition != "iid" or config.method.noise_on != "gradient":
        raise InputError(
            f"Expected full batches of equal shards with the noise inside the step, got data.batch = "
            f"{config.data.batch!r}, data.partition = {config.data.partition!r}, method.noise_on = "
            f"{config.method.noise_on!r}."
        )
    if config.privacy.adjacency != "add-remove" or config.train.fading == "sqrt-epoch":
        raise InputError(
            f"Expected add-remove adjacency and steps that do not fall by epochs, got privacy.adjacency = "
            f"{config.privacy.adjacency!r}, train.fading = {config.train.fading!r}."
        )
    tree = config.model_dump(exclude_none=True)
    # With the noise inside the step neither clip, step size, data nor model matters to σ; records scale it.
    # Only a stated curvature is in units of the step.
    rate = config.train.learning_rate if build.noise_along(config) == "curvature" else 1.0
    guarantee = GUARANTEES["honest"]
    tree["privacy"] = {"delta": config.privacy.delta, "clip": 1.0, "guarantee": guarantee, "patient": True}
    tree["data"] = {"name": "mnist", "records": UNIT_RECORDS}
    tree["train"] = {"learning_rate": rate, "fading": config.train.fading}
    tree["model"] = {"name": "mlp"}
    return parse(tree, "unit budget")


def _epsilon_of_all_others(noisy: tuple[RunConfig, float]) -> float:
    config, sigma = noisy
    graph = build.graph(config)
    counts = build.counts(config, graph.agents)
    plan = plan_writer(config, graph, counts)(np.full(graph.agents, sigma * config.privacy.clip))
    exposure = build.analysis(config, counts).exposure()
    return float(worst_case(plan, exposure).epsilon(config.privacy.delta).max())


def _sigma_of(config: RunConfig) -> float:
    graph = build.graph(config)
    counts = build.counts(config, graph.agents)
    write_plan, privacy = plan_writer(config, graph, counts), config.privacy
    epsilon = build.per_agent("privacy.epsilon", privacy.epsilon, graph.agents)
    analysis = build.analysis(config, counts)
    found = calibrate(
        write_plan, analysis, privacy.guarantee, epsilon, privacy.delta, patient=privacy.patient
    )
    return float(found.deviation[0] / privacy.clip)

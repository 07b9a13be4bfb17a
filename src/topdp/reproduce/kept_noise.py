"""The noise of the honest lens: one view a plan at ε = 1, kept by name; all else follows by scaling."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.calibrate import calibrate
from topdp.privacy.observers.worst_case import worst_case
from topdp.reproduce.processes import in_processes
from topdp.reproduce.store import Say, name, write
from topdp.runs.planning import plan_writer
from topdp.settings import build
from topdp.settings.config import RunConfig, parse

UNIT_RECORDS = 100
LITTLE_WORK = 2e4  # rounds times agents: views that take less are not worth starting processes for


class Calibrations:
    """σ of configurations, in one JSON file."""

    def __init__(self, file: Path, say: Say) -> None:
        self.file = file
        self.say = say
        self.known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def make(self, configs: Iterable[RunConfig]) -> None:
        """Calibrates whatever is not known yet."""
        units = {name(unit): unit for unit in map(_at_unit_budget, configs) if unit is not None}
        missing = [unit for key, unit in units.items() if key not in self.known]
        worthwhile = sum(unit.rounds * unit.topology.agents for unit in missing) > LITTLE_WORK
        for done, (unit, sigma) in enumerate(in_processes(_sigma_of, missing, worthwhile), 1):
            self.known[name(unit)] = sigma
            if worthwhile or done == len(missing):
                write(self.file, json.dumps(self.known, indent=1, sort_keys=True))
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
        return self.known[name(unit)] * _mu(1.0, delta) / _mu(epsilon, delta) * UNIT_RECORDS / records

    def against_all_others(self, configs: Sequence[RunConfig]) -> list[float]:
        """ε of each run against all other agents together: its largest over the agents."""
        noisy = [(config, self.sigma(config)) for config in configs]
        worthwhile = sum(config.rounds * config.topology.agents for config in configs) > LITTLE_WORK
        found = {name(config): e for (config, _), e in in_processes(_worst_case, noisy, worthwhile)}
        return [found[name(config)] for config in configs]


@cache
def _mu(epsilon: float, delta: float) -> float:
    """Kept, because every read of a run asks for its σ, and budgets are few."""
    return float(mu_of(epsilon, delta))


def _at_unit_budget(config: RunConfig) -> RunConfig | None:
    """The configuration at ε = 1, whose σ gives all others by scaling; None where σ is given or zero."""
    if config.privacy.sigma is not None or not build.method(config).noisy:
        return None
    if config.data.batch != "full" or config.data.partition != "iid" or config.method.noise_on != "gradient":
        raise ValueError("Expected full batches of equal shards with the noise inside the step.")
    if config.privacy.adjacency != "add-remove" or config.train.fading == "sqrt-epoch":
        raise ValueError("Expected add-remove adjacency, and steps that do not fall by epochs.")
    plain_sync = config.method.mode == "sync" and not build.method(config).reuses_noise
    # What all others see of a plain synchronous agent is what each neighbour sees: no view is needed.
    guarantee = "worst-case" if plain_sync else "view"
    tree = config.model_dump(exclude_none=True)
    # With the noise inside the step neither clip, step size, data nor model matters to σ; records scale it.
    tree["privacy"] = {"delta": config.privacy.delta, "clip": 1.0, "guarantee": guarantee, "patient": True}
    tree["data"] = {"name": "mnist", "records": UNIT_RECORDS}
    tree["train"] = {"learning_rate": 1.0, "fading": config.train.fading}
    tree["model"] = {"name": "mlp"}
    return parse(tree, "unit budget")


def _worst_case(noisy: tuple[RunConfig, float]) -> float:
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

"""The noise of the honest lens: one account a plan at ε = 1, kept by name; all else follows by scaling.

For the figures and the frontier, whose accounts take hours when they are computed afresh; a run by itself is
calibrated by `runs/planning.py`.

**Guarantees.** σ is that of `privacy.calibrate`: the least with which no coalition of `privacy.colluders`
agents learns more than the budget, whatever gradients do (adaptive, sound bound), one record of one agent
added or removed, full batches of equal shards, the noise inside the step. Whatever does not follow from the
kept σ by exact scaling is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from topdp.base.files import write_atomically
from topdp.errors import InputError
from topdp.experiments.lenses import GUARANTEES
from topdp.experiments.process_map import in_processes
from topdp.experiments.run_store import Say, read_json, run_name
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.calibrate import calibrate
from topdp.privacy.observers.worst_case import worst_case
from topdp.runs import builders
from topdp.runs.config import RunConfig, parse
from topdp.runs.planning import plan_writer, query_of

UNIT_RECORDS = 100
"""Methods all of whose rows everybody may see: what rounds tell adds up, whatever is between them."""

LITTLE_WORK = 2e4  # accounts that take less are not worth starting processes for


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
        worthwhile = sum(map(_work, missing)) > LITTLE_WORK
        for done, (unit, sigma) in enumerate(in_processes(_sigma_of, missing, worthwhile), 1):
            self.known[run_name(unit)] = sigma
            if worthwhile or done == len(missing):
                write_atomically(self.file, json.dumps(self.known, indent=1, sort_keys=True) + "\n")
            if worthwhile:
                self.say(f"calibrated {done} of {len(missing)} plans")

    def sigma(self, config: RunConfig) -> float:
        """The full-scale σ: as given, zero, or calibrated."""
        unit = _at_unit_budget(config)
        if unit is None:
            sigma = builders.sigma(config, 1)
            assert sigma is not None
            return float(sigma[0])
        epsilon = config.privacy.epsilon
        assert isinstance(epsilon, float)
        # The loss scales as 1/noise: σ(ε) = σ(1) μ(1)/μ(ε); and the sensitivity as 1/records. With the mean
        # of 1/σ_t² at 1, that of R rounds is R times that of one.
        delta = config.privacy.delta
        budget = _mu(1.0, delta) / _mu(epsilon, delta)
        rounds = math.sqrt((config.rounds + 1) / (unit.rounds + 1))
        return self.known[run_name(unit)] * budget * rounds * _records(unit) / _records(config)

    def epsilon_of_all_others(self, configs: Sequence[RunConfig]) -> list[float]:
        """ε of each run against all other agents together: its largest over the agents."""
        units = [_at_unit_budget(config) for config in configs]
        distinct = {run_name(unit): unit for unit in units if unit is not None}
        noisy = [(unit, self.known[name]) for name, unit in distinct.items()]
        worthwhile = sum(_work(unit) for unit, _ in noisy) > LITTLE_WORK
        found = {run_name(unit): mu for (unit, _), mu in in_processes(_mu_of_all_others, noisy, worthwhile)}
        epsilons = []
        for config, unit in zip(configs, units, strict=True):
            epsilon, delta = config.privacy.epsilon, config.privacy.delta
            if unit is None:
                raise InputError("Expected a budget, from which noise follows, got given noise.")
            assert isinstance(epsilon, float)
            # All others learn as many times more at every budget.
            mu = found[run_name(unit)] * _mu(epsilon, delta) / _mu(1.0, delta)
            epsilons.append(float(epsilon_of(mu, delta)))
        return epsilons


@cache
def _mu(epsilon: float, delta: float) -> float:
    """Kept, because every read of a run asks for its σ, and budgets are few."""
    return float(mu_of(epsilon, delta))


def _at_unit_budget(config: RunConfig) -> RunConfig | None:
    """The configuration at ε = 1, whose σ gives all others by scaling; None where σ is given or zero."""
    if config.privacy.sigma is not None or not builders.method(config).noisy:
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
    kind = builders.noise_kind(config)
    method = builders.method(config)
    if "async" not in method.modes:  # all noise is in the gradient releases
        keys = [key for key in method.tuned if key != "gossip"]
        if kind == "steps" or any(tree["method"][key] == "auto" for key in keys):
            raise InputError(
                f"Expected numbers for {', '.join(keys)} and no step decay, got {config.method!r}."
            )
        # With the mean of 1/σ_t² at 1 only the number of rounds matters, and averaging costs nothing.
        tree["rounds"] = 1
        steps = config.method.noise_schedule.model_dump(include={"factor", "period"})  # in kept names, too
        tree["method"] = {**tree["method"], "noise_schedule": {"kind": "constant", **steps}, "gossip": 0}
    # With the noise inside the step neither clip, step size, data nor model matters to σ; records scale it.
    # Only a stated curvature is in units of the step. Rounded rows have no answer where some are hidden.
    rate = config.train.learning_rate if kind == "curvature" else 1.0
    tree["privacy"] = {
        "delta": config.privacy.delta,
        "clip": 1.0,
        "guarantee": GUARANTEES["honest"],
        "colluders": config.privacy.colluders,
        "allow_slow": True,
    }
    tree["data"] = {"name": "mnist", "records": UNIT_RECORDS}
    tree["train"] = {"learning_rate": rate, "fading": config.train.fading, "rows": config.train.rows}
    tree["model"] = {"name": "mlp"}
    return parse(tree, "unit budget")


def _work(unit: RunConfig) -> float:
    """Rounds times agents; far less where every row is seen, and no filter is needed."""
    hidden = builders.method(unit).reuses_noise and unit.method.mode == "sync"
    return unit.rounds * unit.topology.agents / (1 if hidden else 50)


def _records(config: RunConfig) -> int:
    """Of each agent."""
    return builders.counts(config, config.topology.agents)[0]


def _mu_of_all_others(noisy: tuple[RunConfig, float]) -> float:
    config, sigma = noisy
    graph = builders.graph(config)
    counts = builders.counts(config, graph.agents)
    plan = plan_writer(config, graph, counts)(np.full(graph.agents, sigma * config.privacy.clip))
    exposure = builders.analysis(config, counts).exposure()
    return float(worst_case(plan, exposure).mu.max())


def _sigma_of(config: RunConfig) -> float:
    graph = builders.graph(config)
    counts = builders.counts(config, graph.agents)
    write_plan, privacy = plan_writer(config, graph, counts), config.privacy
    epsilon = builders.per_agent("privacy.epsilon", privacy.epsilon, graph.agents)
    analysis = builders.analysis(config, counts)
    found = calibrate(
        write_plan,
        analysis,
        privacy.guarantee,
        epsilon,
        privacy.delta,
        query_of(config),
    )
    return float(found.deviation[0] / privacy.clip)

"""The noise of the lens `honest`: one stored calibration per plan at ε = 1, scaled to all other cases.

The figures and the frontier use it, because their accounts take hours to compute. `runs/planning.py`
calibrates single runs.

**Guarantees.** σ is that of `privacy.calibrate`: the least σ with which no coalition of `privacy.colluders`
agents learns more than the budget, whatever the gradients do (`adaptive`, a sound bound). One record of one
agent is added or removed; batches are full, shards are equal, and the noise is inside the step. A
configuration whose σ does not follow from a stored σ by exact scaling is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from topdp.base.progress import Progress
from topdp.errors import InputError
from topdp.experiments.lenses import HONEST, LENS_GUARANTEES
from topdp.experiments.parallel_plans import map_in_processes
from topdp.experiments.run_store import read_json, run_name, write_json
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.observers.worst_case import worst_case
from topdp.runs.config import RunConfig, parse
from topdp.runs.named_records import record_counts
from topdp.runs.planning import query_of
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline, method_of, noise_kind

UNIT_RECORDS = 100

MIN_PARALLEL_ACCOUNT_WORK = 2e4  # in units of `_work`; for less work, processes cost more than they save


class NoiseStore:
    """The σ of configurations, stored in a JSON file that maps names of configurations at ε = 1 to σ."""

    def __init__(self, file: Path, progress: Progress) -> None:
        self.file = file
        self.progress = progress
        self.unit_sigmas: dict[str, float] = read_json(file)

    def calibrate(self, configs: Iterable[RunConfig]) -> None:
        """Calibrate every configuration whose σ is not stored yet."""
        units = {run_name(unit): unit for unit in map(_at_unit_budget, configs) if unit is not None}
        missing = [unit for key, unit in units.items() if key not in self.unit_sigmas]
        # The longest calibrations come first, so that no long one runs alone at the end.
        missing.sort(key=lambda unit: unit.rounds * unit.topology.agents**3, reverse=True)
        parallel = sum(map(_work, missing)) > MIN_PARALLEL_ACCOUNT_WORK
        for done, (unit, sigma) in enumerate(map_in_processes(_sigma_of, missing, parallel), 1):
            self.unit_sigmas[run_name(unit)] = sigma
            if parallel or done == len(missing):
                write_json(self.file, self.unit_sigmas)
            if parallel:
                self.progress(f"calibrated {done} of {len(missing)} plans")

    def sigma(self, config: RunConfig) -> float:
        """Return the full-scale σ of a run: the configured σ, the calibrated σ, or 0 if there is no noise."""
        unit = _at_unit_budget(config)
        if unit is None:
            sigma = config.privacy.sigma if method_of(config).noisy else 0.0
            return float(np.atleast_1d(np.asarray(sigma, float))[0])
        epsilon, delta = config.privacy.epsilon, config.privacy.delta
        assert isinstance(epsilon, float) and isinstance(delta, float)
        # The loss scales as 1/noise, so σ(ε) = σ(1) μ(1)/μ(ε); the sensitivity scales as 1/records. With the
        # mean of 1/σ_t² fixed at 1, μ² of R rounds is R times that of one round.
        budget = _mu(1.0, delta) / _mu(epsilon, delta)
        rounds = math.sqrt((config.rounds + 1) / (unit.rounds + 1))
        return self.unit_sigmas[run_name(unit)] * budget * rounds * _records(unit) / _records(config)

    def epsilon_of_all_others(self, configs: Sequence[RunConfig]) -> Iterator[float]:
        """Yield for each run the largest ε of an agent, against all other agents together."""
        units = [_at_unit_budget(config) for config in configs]
        distinct = {run_name(unit): unit for unit in units if unit is not None}
        noisy = [(unit, self.unit_sigmas[name]) for name, unit in distinct.items()]
        parallel = sum(_work(unit) for unit, _ in noisy) > MIN_PARALLEL_ACCOUNT_WORK
        results = map_in_processes(_mu_of_all_others, noisy, parallel)
        mu_by_unit = {run_name(unit): mu for (unit, _), mu in results}
        for config, unit in zip(configs, units, strict=True):
            epsilon, delta = config.privacy.epsilon, config.privacy.delta
            assert (
                unit is not None and isinstance(epsilon, float) and isinstance(delta, float)
            )  # its configuration does not state σ
            # The ratio of this μ to the μ of the budget is the same at every budget.
            mu = mu_by_unit[run_name(unit)] * _mu(epsilon, delta) / _mu(1.0, delta)
            yield float(epsilon_of(mu, delta))


@cache
def _mu(epsilon: float, delta: float) -> float:
    """Return μ of a budget. Cached, because every read of a run needs its σ, and there are few budgets."""
    return float(mu_of(epsilon, delta))


def _at_unit_budget(config: RunConfig) -> RunConfig | None:
    """Return the configuration at ε = 1 from whose σ the σ of `config` follows by scaling.

    Return None if `config` states its σ or has no noise. Raise InputError if its σ cannot follow by scaling.
    """
    if config.privacy.sigma is not None or not method_of(config).noisy:
        return None
    if config.data.batch != "full" or config.data.partition != "iid" or config.method.noise_on != "gradient":
        raise InputError(
            "Expected full batches of equal shards with the noise inside the step, got data.batch = "
            f"{config.data.batch!r}, data.partition = {config.data.partition!r}, method.noise_on = "
            f"{config.method.noise_on!r}."
        )
    if config.privacy.adjacency != "add-remove" or config.train.fading == "sqrt-epoch":
        raise InputError(
            "Expected add-remove adjacency and steps that do not fall by epochs, got privacy.adjacency = "
            f"{config.privacy.adjacency!r}, train.fading = {config.train.fading!r}."
        )
    if isinstance(config.privacy.epsilon, list) or isinstance(config.privacy.delta, list):
        raise InputError(
            "Expected one privacy.epsilon and one privacy.delta for all agents, got "
            f"{config.privacy.epsilon} and {config.privacy.delta}."
        )
    if config.privacy.sites_per_person != 1 or config.data.standardise != "none":
        raise InputError(
            "Expected each person at one agent, and inputs as they are, got privacy.sites_per_person = "
            f"{config.privacy.sites_per_person}, data.standardise = {config.data.standardise!r}."
        )
    tree = config.model_dump(exclude_none=True)
    method, kind = method_of(config), noise_kind(config)
    if "async" not in method.modes:  # all rows are public, and all noise is in the gradient releases
        keys = [key for key in method.tuned if key != "gossip"]
        if kind == "steps" or any(tree["method"][key] == "auto" for key in keys):
            raise InputError(
                f"Expected numbers for {', '.join(keys)} and no step decay, got {config.method!r}."
            )
        # With the mean of 1/σ_t² fixed at 1, only the number of rounds matters. Averaging costs no privacy.
        tree["rounds"] = 1
        steps = config.method.noise_schedule.model_dump(include={"factor", "period"})  # part of stored names
        tree["method"] = {**tree["method"], "noise_schedule": {"kind": "constant", **steps}, "gossip": 0}
    # With the noise inside the step, σ does not depend on clip, step size, data or model; the number of
    # records scales it. Only a stated curvature is in units of the step. The type of rows is kept, because
    # accountants refuse rounded rows if some rows are hidden.
    rate = config.train.learning_rate if kind == "curvature" else 1.0
    tree["privacy"] = {
        "delta": config.privacy.delta,
        "clip": 1.0,
        "guarantee": LENS_GUARANTEES[HONEST],
        "colluders": config.privacy.colluders,
        "allow_slow": True,
    }
    tree["data"] = {"name": "mnist", "records": UNIT_RECORDS}
    tree["train"] = {"learning_rate": rate, "fading": config.train.fading, "rows": config.train.rows}
    tree["model"] = {"name": "mlp"}
    return parse(tree, "unit budget")


def _work(unit: RunConfig) -> float:
    """Return an estimate of the work of an account: rounds times agents, far less if all rows are public."""
    hidden = method_of(unit).reuses_noise and unit.method.mode == "sync"
    return unit.rounds * unit.topology.agents / (1 if hidden else 50)


def _records(config: RunConfig) -> int:
    """Return the number of records of each agent."""
    return record_counts(RunOutline.of(config))[0]


def _mu_of_all_others(noisy: tuple[RunConfig, float]) -> float:
    config, sigma = noisy
    run = resolve(config)
    plan = run.write_plan(np.full(run.graph.agents, sigma * config.privacy.clip))
    return float(worst_case(plan, run.analysis.exposure()).mu.max())


def _sigma_of(config: RunConfig) -> float:
    run, privacy = resolve(config), config.privacy
    assert run.epsilon is not None  # a configuration at the unit budget does not state σ
    query = query_of(config)
    noise = calibrate(run.write_plan, run.analysis, privacy.guarantee, run.epsilon, privacy.delta, query)
    return float(noise.deviation[0] / privacy.clip)

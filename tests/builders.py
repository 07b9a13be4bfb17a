"""Small graphs, schedules and data for tests, and all protocols by name."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from topdp import protocols, topology
from topdp.data import Shards
from topdp.plan import Batches, Cycle, Full, Poisson, schedules
from topdp.plan.schedules import Schedule
from topdp.protocols import Central, Correlated, Protocol, UpdateRule
from topdp.runs.config import MethodConfig, RunConfig
from topdp.runs.methods import METHODS
from topdp.runs.planner.observer_cache import ObserverCache
from topdp.runs.planner.setting_answers import COMMAND, PlannerLimits, PlannerQuestion, stages
from topdp.topology import Topology

GRAPHS: dict[str, Topology] = {
    "random": topology.random(12, 0.3, 1),
    "ring": topology.ring(7),
    "star": topology.star(9),
    "tree": topology.tree(10),
    "complete": topology.complete(6),
    "pair": topology.complete(2),
}


def constant_schedule(rounds: int, rate: float = 0.1, noise_on: str = "gradient") -> Schedule:
    rates = schedules.learning_rates(rate, rounds, "none")
    return schedules.schedule(rates, schedules.step_decay(1.0, 1, rounds), noise_on)


def _every_protocol() -> dict[str, Callable[..., Protocol]]:
    """The protocols that topdp.protocols exports, as functions of alpha, by the name in their plans.

    `Central` is not included, because it is no protocol among agents.
    """
    exported = [getattr(protocols, name) for name in protocols.__all__]
    kinds = [kind for kind in exported if inspect.isclass(kind) and issubclass(kind, Protocol)]
    makers = [_of_alpha(kind) for kind in kinds if not inspect.isabstract(kind) and kind is not Central]
    return {
        make(0.5).plan(topology.ring(3), constant_schedule(1), np.ones(3), 0).protocol: make
        for make in makers
    }


def _of_alpha(kind: type[Protocol]) -> Callable[..., Protocol]:
    if issubclass(kind, UpdateRule):
        return kind
    options = {"degree": 4} if kind is Correlated else {}

    def make(alpha: float, **others: object) -> Protocol:
        return kind(**(options | others))

    return make


PROTOCOLS = _every_protocol()
"""The protocols on which contract, stacking, kernels and agents are tested."""

AVERAGING = tuple(name for name, make in PROTOCOLS.items() if hasattr(make(0.5), "gossip"))
"""Protocols with averaging steps between gradients."""

WITH_VIEW = {name: partial(make, gossip=1) if name in AVERAGING else make for name, make in PROTOCOLS.items()}
"""Every protocol, with one plain averaging step where it has any: `view` covers these."""

RULES = tuple(name for name, make in PROTOCOLS.items() if isinstance(make(0.5), UpdateRule))
"""The paper's protocols, which mix by alpha."""


def _settings() -> dict[str, tuple[str, str]]:
    kinds = {type(make(0.5)): name for name, make in PROTOCOLS.items()}
    numbers = {"secrets_degree": 2, "pair_noise": 3.0, "gossip": 2}
    return {
        kinds[type(method.protocol(MethodConfig(mode=mode, **numbers)))]: (
            f"method.name={method.name}",
            f"method.mode={mode}",
        )
        for method in METHODS.values()
        for mode in method.modes
        if method.noisy and method.calibration is None and not method.pools
    }


SETTINGS = _settings()
"""The configuration changes under which each protocol runs."""


def pairwise(*choices: Iterable[object]) -> list[tuple[object, ...]]:
    """Combinations that contain every pair of values from two different lists."""
    every = list(itertools.product(*map(list, choices)))

    def meetings(one: tuple[object, ...]) -> set[object]:
        return set(itertools.combinations(enumerate(one), 2))

    left, chosen = set().union(*map(meetings, every)), []
    while left:
        chosen.append(max(every, key=lambda one: len(meetings(one) & left)))
        left -= meetings(chosen[-1])
    return chosen


def cyclic_pairs(
    first: Iterable[object], second: Iterable[object], times: int
) -> list[tuple[object, object]]:
    """Each of `first` with `times` values of `second`, taken in turn, so that all values of both occur."""
    turns = itertools.cycle(second)
    return [(one, next(turns)) for one in first for _ in range(times)]


def blobs(agents: int, records: int = 40, classes: int = 3, seed: int = 0) -> Shards:
    """Separable 1x4x4 images: each class has a bright spot at a different place."""
    generator = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.integers(0, classes, count)
        inputs = generator.normal(0, 0.3, (count, 1, 4, 4)).astype(np.float32)
        inputs[np.arange(count), 0, labels, :] += 1.5
        return inputs, labels

    return Shards.from_arrays([draw(records) for _ in range(agents)], test=draw(200), classes=classes)


def batches_of(shards: Shards, kind: str = "full", size: int = 7) -> list[Batches]:
    """Batches of one kind for each agent."""
    kinds = {"cycle": Cycle, "poisson": Poisson}
    return [kinds[kind](count, size) if kind in kinds else Full(count) for count in shards.counts]


def blobs_file(path: Path, records: int) -> Path:
    """Write `blobs` in the .npz form of users' files."""
    shards = blobs(1, records)
    assert shards.test_inputs is not None and shards.test_targets is not None
    np.savez(
        path,
        train_inputs=shards.inputs[0].numpy(),
        train_labels=shards.targets[0].numpy(),
        test_inputs=shards.test_inputs.numpy(),
        test_labels=shards.test_targets.numpy(),
    )
    return path


def linear_model(classes: int = 3) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, classes))


def plan_answers(
    config: RunConfig,
    quick: bool = False,
    memory: ObserverCache | None = None,
    limits: PlannerLimits = COMMAND,
) -> dict[str, Any]:
    """The last of the planner's answers about a setting, which is complete."""
    *_, last = stages(PlannerQuestion.of(config, limits), quick, memory=memory)
    return last


class CountingCache(ObserverCache):
    """Counts the values that were returned from the cache."""

    hits = 0

    def cached(self, key: tuple[object, ...], compute: Callable[[], Any]) -> Any:
        computed = []
        value = super().cached(key, lambda: computed.append(True) or compute())
        self.hits += not computed
        return value


def registered_names(metadata: Iterable[Any]) -> tuple[str, ...]:
    """The names that a configuration key takes from a registry, from the metadata of its field."""
    validators = [one.func for one in metadata if isinstance(getattr(one, "func", None), partial)]
    return validators[0].keywords["known"] if validators else ()

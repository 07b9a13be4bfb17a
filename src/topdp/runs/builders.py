"""Names become objects: the one place that knows what `kind = "ring"` or `batch = { cycle = 20 }` stand for.

Everything here is cheap and touches no data, except `shards`, which loads it. Torch is imported only by the
functions that need it, so that graphs and plans can be built where it is not installed.
"""

from __future__ import annotations

import glob
import importlib
import os
import traceback
from collections.abc import Callable, Sequence
from inspect import isbuiltin, isclass, signature
from typing import TYPE_CHECKING, Any

import numpy as np

from topdp import topology
from topdp.base.array_types import Floats, Ints
from topdp.base.progress import Progress, silent
from topdp.errors import InputError, TopdpError
from topdp.plan import Optimiser, Robust, schedules
from topdp.plan.batches import Batches, Cycle, Full, Poisson
from topdp.plan.random_streams import stream
from topdp.plan.schedules import Schedule
from topdp.privacy.answers import ON_REQUEST
from topdp.privacy.published.claims import Analysis
from topdp.runs.config import GIVEN, ConfigError, CycleBatch, PoissonBatch, RunConfig, did_you_mean
from topdp.runs.methods import METHODS, Method
from topdp.topology import Topology

if TYPE_CHECKING:
    import torch
    from torch import nn

    from topdp.data import Dataset, Shards
    from topdp.data.features.feature_maps import FeatureMap
    from topdp.data.readers.table_schema import Schema
    from topdp.learning.tasks import Task
    from topdp.protocols import Protocol
    from topdp.simulator.hostile import Attack


def graph(config: RunConfig) -> Topology:
    """The graph of the configuration; the options that its kind does not have are left alone."""
    if method(config).pools:
        return topology.alone()
    return _links(config)


def _links(config: RunConfig) -> Topology:
    c = config.topology
    family = topology.FAMILIES[c.kind]
    options = {**dict(c), "seed": config.seed}
    return family(**{name: options[name] for name in signature(family).parameters if name in options})


def method(config: RunConfig) -> Method:
    named = METHODS[config.method.name]
    if named.calibration and config.method.calibration not in (None, named.calibration):
        raise ConfigError(
            f"Expected method {named.name!r} with its own calibration {named.calibration!r}, got "
            f"{config.method.calibration!r}: use method 'plain' to combine freely."
        )
    return named


def protocol(config: RunConfig) -> Protocol:
    return method(config).protocol(config.method)


def schedule(config: RunConfig, records: int) -> Schedule:
    """Step sizes and noise of all releases.

    An epoch is one pass over `records`, unless the configuration says.
    """
    train = config.train
    size = batches(config, (records,))[0].divisor
    per_epoch = train.rounds_per_epoch or max(1, -(-records // size))
    if isinstance(train.learning_rate, list):
        rates = _listed_rates(train.learning_rate, config.rounds, train.warmup)
    else:
        rates = schedules.learning_rates(
            train.learning_rate,
            config.rounds,
            train.fading,
            per_epoch,
            train.fading_factor,
            train.fading_period,
        )
        rates = schedules.warmed_up(rates, train.warmup)
    return schedules.schedule(rates, _noise_scales(config, rates), config.method.noise_on)


def _listed_rates(rates: list[float], rounds: int, warmup: int) -> Floats:
    if len(rates) not in (rounds, rounds + 1):
        raise ConfigError(
            f"train.learning_rate: expected one number, or a list of {rounds}, one a round, got {len(rates)}."
        )
    if warmup:
        raise ConfigError("train.warmup: a list of step sizes is taken as it is; put the warm-up into it.")
    return np.array(rates if len(rates) > rounds else [rates[0], *rates])


def optimiser(config: RunConfig) -> Optimiser:
    """What agents make of the rows that they released."""
    train = config.train
    optimiser = Optimiser(
        train.optimiser,
        train.momentum,
        train.second_moment,
        train.floor,
        train.weight_decay,
        train.average,
    )
    if optimiser.adaptive and config.method.noise_on == "estimate":
        raise ConfigError(
            f'train.optimiser: "{train.optimiser}" needs method.noise_on = "gradient", whose scale it undoes.'
        )
    return optimiser


def robust(config: RunConfig) -> Robust | None:
    """By which rule rows of others enter a mix; None: by their weights."""
    c = config.robust
    if c.rule == "mean":
        return None
    if method(config).pools:
        raise ConfigError(f"robust.rule: {config.method.name} mixes no rows of others, got {c.rule!r}.")
    return Robust(c.rule, c.hostile, None if c.radius == "auto" else c.radius)


def rounded(config: RunConfig) -> str | None:
    """To what rows are rounded when they are made; None: they are not. Refuses what does not go with it."""
    kept = config.train.rows
    if kept == "model":
        return None
    train = config.train
    for key, there, why in (
        ("robust.rule", config.robust.rule != "mean", "robust rules mix rows as they are"),
        ("attack.name", config.attack.name != "none", "attacks change rows as they are"),
        ("train.optimiser", optimiser(config).adaptive, "its averages change by less than it holds"),
        ("train.average", train.average > 0, "averages of estimates change by less than it holds"),
    ):
        if there:
            raise ConfigError(
                f'train.rows: "{kept}" does not go with {key}: {why}. Use train.rows = "model".'
            )
    return kept


def attack(config: RunConfig, agents: int) -> Attack | None:
    """What hostile agents of a simulated run do; None: there are none."""
    from topdp.simulator.hostile import chosen

    return chosen(config.attack, agents, config.seed)


def noise_kind(config: RunConfig) -> str:
    """The kind of noise schedule: as configured, else the method's own."""
    chosen = config.method
    if chosen.noise_schedule.kind is not None:
        return chosen.noise_schedule.kind
    kind = method(config).noise_kind
    # The other kinds are for noise on gradients.
    return kind if chosen.noise_on == "gradient" or kind == "steps" else "constant"


def _noise_scales(config: RunConfig, rates: Floats) -> Floats:
    kind, noise = noise_kind(config), config.method.noise_schedule
    if kind == "power":
        return schedules.power_of_rate(rates, noise.exponent)
    if kind == "curvature":
        assert noise.curvature is not None
        return schedules.for_curvature(rates, noise.curvature)
    return schedules.step_decay(noise.factor if kind == "steps" else 1.0, noise.period, config.rounds)


def sigma(config: RunConfig, agents: int) -> Floats | None:
    """The full-scale σ of every agent where the configuration gives it; None: to be calibrated."""
    if not method(config).noisy:
        return np.zeros(agents)
    if config.privacy.sigma is None:
        return None
    return per_agent("privacy.sigma", config.privacy.sigma, agents)


def guarantee(config: RunConfig) -> str | None:
    """The account that meets the budget; None where the noise was given."""
    given = config.privacy.sigma is not None or not method(config).noisy
    return None if given else config.privacy.guarantee


def answers(config: RunConfig) -> set[str]:
    """The answers to compute: those named, and that of the guarantee also where the noise was given."""
    return {*config.privacy.answers, config.privacy.guarantee} & set(ON_REQUEST)


def why_alike(configs: Sequence[RunConfig]) -> str:
    """Why methods with these settings have one plan, and what would show how they differ."""
    if len({analysis_of(config) for config in configs}) > 1:
        return (
            "They differ in the noise that each claims to need; --set privacy.guarantee=claimed gives it to "
            "them."
        )
    idle = [c for c in configs if noise_kind(c) == "steps" and c.method.noise_schedule.period >= c.rounds]
    if len({noise_kind(config) for config in configs}) > 1 and idle:
        name, period = idle[0].method.name, idle[0].method.noise_schedule.period
        return (
            f"The noise of {name} falls every {period} rounds, and these are {idle[0].rounds}: a smaller "
            "--set method.noise_schedule.period shows it."
        )
    return "With these settings they do not differ."


def per_agent(key: str, value: float | list[float], agents: int) -> Floats:
    """One number for all agents, or one for each."""
    values = np.atleast_1d(np.asarray(value, float))
    if len(values) not in (1, agents):
        raise ConfigError(f"{key}: expected one number or {agents}, one per agent, got {len(values)}.")
    return np.broadcast_to(values, agents).copy()


def batches(config: RunConfig, counts: Sequence[int]) -> tuple[Batches, ...]:
    """Which of its counts[i] records agent i averages in a release."""
    batch = config.data.batch
    if not isinstance(batch, CycleBatch | PoissonBatch):
        return tuple(Full(count) for count in counts)
    size = batch.cycle if isinstance(batch, CycleBatch) else batch.poisson
    if size > (smallest := min(counts)):
        raise InputError(
            f"Expected batches of at most {smallest} records, all that agent {counts.index(smallest)} holds, "
            f"got {size}. Use smaller batches, fewer agents or a more even partition."
        )
    kind = Cycle if isinstance(batch, CycleBatch) else Poisson
    return tuple(kind(count, size) for count in counts)


def analysis(config: RunConfig, counts: tuple[int, ...]) -> Analysis:
    """How the records of each agent enter its releases, and by which published analysis noise is claimed."""
    return Analysis(
        analysis_of(config), batches(config, counts), config.privacy.clip, config.privacy.adjacency
    )


def analysis_of(config: RunConfig) -> str:
    """The published calibration by which the noise of a method is claimed."""
    return method(config).calibration or config.method.calibration or "tight"


def counts(config: RunConfig, agents: int) -> tuple[int, ...]:
    """How many records each agent will hold, without reading them where that is possible."""
    from topdp.data.catalogue import CATALOGUE

    c = config.data
    if c.partition == "iid" and c.name in CATALOGUE:
        parties = _links(config).agents if method(config).pools else agents
        records = CATALOGUE[c.name].shapes["train_inputs"][0]
        held = (records - round((c.validation or 0.0) * records)) // parties
        each = min(held, c.records or held)
        return (each * parties,) if method(config).pools else (each,) * agents
    if _sites(config) is not None:
        return _shards_of_sites(config, agents).counts
    dataset = _dataset(config)
    return tuple(len(part) for part in _parts(config, dataset, agents)[0])


def features(config: RunConfig) -> FeatureMap | None:
    """What a record becomes before the model sees it; None: it stays as it is."""
    if config.data.features == "none":
        return None
    from topdp.data.features.feature_maps import FEATURE_MAPS

    if config.data.features == "given":
        raise ConfigError(
            'data.features: "given" stands for a function: use topdp.train(..., features=function).'
        )
    return FEATURE_MAPS[config.data.features](config.data.feature_groups)


def shards(
    config: RunConfig,
    agents: int,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    only: Sequence[int] | None = None,
) -> Shards:
    """Loads the data set and deals it out to the agents, or pools what they hold where the method does.

    Features are computed on `device`. `only`: the agents whose records are kept, where not those of all.
    """
    from topdp.data import Shards, featured_shards

    named = features(config)
    if _sites(config) is not None:
        read = _shards_of_sites(config, agents, only)
        return read if named is None else featured_shards.of_shards(read, named, device, progress)
    dataset = _dataset(config, progress)
    parts, held_out = _parts(config, dataset, agents)
    if named is None:
        return Shards.from_dataset(dataset, parts, held_out, only)
    return featured_shards.of_dataset(dataset, parts, named, held_out, device, progress)


def _dataset(config: RunConfig, progress: Progress = silent) -> Dataset:
    from topdp import data

    if config.data.partition == "sizes" and config.data.sizes is None:
        raise ConfigError(
            'data.sizes: partition = "sizes" needs them, one per agent: counts, or shares of all.'
        )
    return data.load(config.data.name, progress=progress, schema=schema(config), test=config.data.test)


def schema(config: RunConfig) -> Schema | None:
    """What is publicly known of a user's own records."""
    from topdp.data.readers.table_schema import Schema

    return None if config.data.schema is None else Schema.of(config.data.schema, "data.schema")


def _sites(config: RunConfig) -> list[str] | None:
    """Where each agent has a file of its own: the files, or the pattern of their names."""
    named = config.data.name
    if config.data.sites is not None:
        return config.data.sites
    return [named] if glob.has_magic(named) and not os.path.exists(named) else None


def _shards_of_sites(config: RunConfig, agents: int, only: Sequence[int] | None = None) -> Shards:
    from topdp.data import Shards
    from topdp.data.readers.record_paths import expand_paths

    c, files = config.data, _sites(config)
    assert files is not None
    if c.partition != "iid" or c.validation is not None or c.records is not None:
        raise ConfigError(
            "data: expected no partition, validation or records where each agent has a file of its own: the "
            "files say who holds what, and data.test what is tested on."
        )
    paths = expand_paths(files)
    pools = method(config).pools
    parties = _links(config).agents if pools else agents
    if len(paths) != parties:
        raise ConfigError(
            f"Expected a file for each of the {parties} agents of the graph, got {len(paths)}: set "
            f"topology.agents to {len(paths)}."
        )
    chosen = files if only is None else [glob.escape(str(paths[agent])) for agent in only]
    read = Shards.from_files(chosen, c.test, schema(config))
    return read.pooled() if pools else read


def _parts(config: RunConfig, dataset: Dataset, agents: int) -> tuple[list[Ints], Ints | None]:
    """The training records of each agent, and those held out."""
    from topdp.data import partitions

    c = config.data
    targets, held_out = dataset.train_targets, None
    kept = np.arange(len(targets))
    if c.validation is not None:
        kept, held_out = _split(len(targets), c.validation, config.seed)
    options: dict[str, dict[str, Any]] = {
        "dirichlet": {"alpha": c.concentration},
        "label": {"labels_per_agent": c.labels_per_agent},
        "sizes": {"sizes": c.sizes},
    }
    pools = method(config).pools
    parties = _links(config).agents if pools else agents
    parts = partitions.partition(
        targets[kept], parties, c.partition, config.seed, **options.get(c.partition, {})
    )
    parts = [kept[part[: c.records]] for part in parts]
    return [np.concatenate(parts)] if pools else parts, held_out


def _split(records: int, share: float, seed: int) -> tuple[Ints, Ints]:
    """A share of the training records becomes the test set: settings are chosen without the real one."""
    order = stream(seed, "validation").permutation(records)
    first = round(share * records)
    if not 0 < first < records:
        raise ConfigError(f"data.validation: {share:g} of {records} records leaves nothing on one side.")
    return order[first:], order[:first]


def expect_named(config: RunConfig) -> None:
    """Refuses what only Python can give: a loss or a metric that is a function."""
    for key, value in (
        ("loss", config.train.loss),
        *(("metrics", one) for one in config.train.metrics or ()),
    ):
        if value.startswith(GIVEN):
            raise ConfigError(
                f'train.{key}: "{value}" stands for a function, which only Python has: use a name here, or '
                f"topdp.train(..., {key}=...)."
            )


def task(config: RunConfig) -> Task:
    """The loss, and what is reported beside it."""
    from topdp.learning.metrics import METRICS
    from topdp.learning.tasks import Task

    expect_named(config)
    for name in config.train.metrics or ():
        if name not in METRICS:
            raise ConfigError(f"train.metrics: got {name!r}.{did_you_mean(name, list(METRICS))}")
    return Task.of(config.train.loss, config.train.metrics)


def model(config: RunConfig, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network of the paper, or the user's own `package.module:factory`, initialised from the seed."""
    import torch

    factory = model_factory(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        try:
            made = factory(input_shape, outputs)
        except (MemoryError, TopdpError):
            raise
        except Exception as error:
            if "allocate memory" in str(error):  # torch has no error of its own for that
                raise
            raise ConfigError(
                f"model.name: {config.model.name!r} was called with (input shape, outputs) = "
                f"({input_shape}, {outputs}) and failed in {_where(error)}: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(made, torch.nn.Module):
        raise ConfigError(
            f"model.name: expected {config.model.name!r} to make a torch module, got {made!r:.80}."
        )
    return made


def model_factory(config: RunConfig) -> Callable[[tuple[int, ...], int], Any]:
    """The function of (input shape, outputs) that the configuration names."""
    from topdp.learning import models

    name = config.model.name
    if name in models.MODELS:
        return models.MODELS[name]
    if ":" in name:
        return _own_factory(name)
    raise ConfigError(f"model.name: got {name!r}.{did_you_mean(name, [*models.MODELS, 'module:factory'])}")


def _where(error: Exception) -> str:
    """The place in the user's own code: the last on the way that is no other package's."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else "the call itself"


def _own_factory(name: str) -> Callable[..., Any]:
    """What `package.module:factory` names, if it can make a model: built-in functions are not even called."""
    import torch

    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"model.name: expected package.module:factory, got {name!r}.")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigError(
            f"model.name: could not import {name!r}: {type(error).__name__}: {error}. Your own modules are "
            "sought in PYTHONPATH."
        ) from error
    other_class = isclass(factory) and not issubclass(factory, torch.nn.Module)
    if not callable(factory) or isbuiltin(factory) or other_class:
        raise ConfigError(
            f"model.name: expected {name!r} to be a function of (input shape, outputs) that makes a torch "
            f"module, got {factory!r:.80}."
        )
    return factory

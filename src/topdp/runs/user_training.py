"""`topdp.train`: a run of a user's own module, shards and graph, with the steps of `run.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from topdp.base.progress import Progress
from topdp.data import Shards, featured_shards
from topdp.data.features.user_features import UserFeatures
from topdp.learning.losses import CUSTOM_LOSS, Loss
from topdp.learning.metrics import METRICS
from topdp.learning.tasks import MetricChoice, Task
from topdp.runs import metric_sinks
from topdp.runs import run as runs
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.config import AUTO, BUDGET_AND_NOISE, GIVEN, RANDOM_SEED, ConfigError, RunConfig, parse
from topdp.runs.job_method import with_job_method
from topdp.runs.named_records import named_features
from topdp.runs.other_words import explain_unknown_arguments
from topdp.runs.progress_display import automatic_progress
from topdp.runs.result import Result
from topdp.runs.run_folder import GRAPH_FILE, RunFolderError
from topdp.runs.run_outline import RunOutline, method_of
from topdp.topology import Topology, as_topology, single

SHARDS_CONSTRUCTORS = {
    "arrays": "topdp.Shards.from_arrays([(inputs, targets), ...]), one pair of arrays or tensors per agent",
    "torch": "topdp.Shards.from_torch([dataset, ...]), one torch dataset per agent",
    "frame": "topdp.Shards.from_frame(frame, site=column, schema=schema), or from_frames with one per agent",
}


DATA_KEYS = (
    "batch",
    "features",
    "feature_groups",
    "standardise",
    "standardise_share",
    "standardise_norm",
)


@explain_unknown_arguments
def train(
    model: nn.Module | str,
    shards: Shards,
    topology: Topology | nx.Graph | str | Path,
    *,
    loss: str | Loss = "cross-entropy",
    metrics: MetricChoice = None,
    features: str | Callable[[torch.Tensor], Any] | None = None,
    rounds: int | str = AUTO,
    seed: int | None = 0,
    noise_seed: int | None = None,
    # method
    method: str = AUTO,
    mode: str = "sync",
    alpha: float = 0.25,
    own_share: float = 1.0,
    calibration: str | None = None,
    noise_on: str = "gradient",
    noise_schedule: Mapping[str, Any] | None = None,
    offline: float = 0.1,
    rematch: str = "after-new-row",
    secrets: str = "regular",
    secrets_degree: int | str = "auto",
    pair_noise: float | str = "auto",
    gossip: int | str = "auto",
    chebyshev: bool = True,
    # privacy
    epsilon: float | Sequence[float] | None = None,
    delta: float | Sequence[float] = 1e-5,
    clip: float | str = AUTO,
    clipping: str = "flat",
    guarantee: str = "adaptive",
    answers: Sequence[str] = (),
    colluders: int = 1,
    adjacency: str = "add-remove",
    sigma: float | Sequence[float] | None = None,
    weights: str | Sequence[float] = "auto",
    unit: str = "record",
    sites_per_person: int = 1,
    allow_slow: bool = False,
    # data
    batch: str | Mapping[str, int] = "full",
    feature_groups: int = 27,
    standardise: str = "none",
    standardise_share: float = 0.1,
    standardise_norm: float | None = None,
    # training
    weighting: str = "records",
    learning_rate: float | str | Sequence[float] = AUTO,
    fading: str = "linear",
    fading_factor: float = 0.5,
    fading_period: int | None = None,
    warmup: int = 0,
    rounds_per_epoch: int | None = None,
    optimiser: str = "sgd",
    momentum: float = 0.9,
    second_moment: float = 0.999,
    floor: float = 1e-8,
    weight_decay: float = 0.0,
    average: float = 0.0,
    rows: str = "model",
    evaluate_every: int = 10,
    checkpoint_every: int = 100,
    # hostile agents
    robust: str = "mean",
    hostile: int = 1,
    radius: float | str = "auto",
    attack: str = "none",
    attack_share: float = 0.2,
    attack_strength: float | None = None,
    attack_agents: Sequence[int] | None = None,
    # the run
    sinks: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: Progress | Literal["auto"] = "auto",
    callbacks: Iterable[object] = (),
) -> Result:
    """Train a user's own module on a user's own shards and graph, and return the result.

    `model`: a torch module, or the name of a network of topdp: "linear", "mlp" or "cnn".

    `topology`: a `Topology`, a networkx graph, or the path of an edge list. The sorted nodes of a networkx
    graph are the agents; for another order use `topology.from_networkx`. `shards` has the records of the
    agents in the same order.

    `out`: the run folder to write; None: nothing is written. `resume=True` continues the unfinished run in
    `out`; all other arguments must be the same as before.

    `loss`: "cross-entropy" for labels, "bce" for one or several yes-or-no targets, "mse" or "huber" for
    numbers, or a function of outputs [b, ...] and targets [b, ...] that returns one value for each record.
    `metrics`: the metrics on test records, as names or as functions of all outputs and targets; None: the
    usual metrics for the loss ("accuracy", or "mae" and "r2").

    `features`: the map from a record to the features that the model sees: "scattering", or a function of one
    record (a torch module gets a batch of one). The function must not be chosen by looking at private
    records.

    `progress`: "auto" shows progress in notebooks and on terminals, and nothing elsewhere. Otherwise a
    function that receives the reports (`topdp.base.progress.Progress`), such as `topdp.silent`.

    `epsilon` is the budget, 1.0 by default, to which the noise is calibrated; `sigma` is the noise itself.

    `callbacks`: functions or objects that the run calls while it runs, and that may stop it
    (`runs/callbacks.py`). `sinks=["tensorboard"]` (or mlflow, wandb) also sends the metrics to that service.

    `seed` is public: start, partners and everything else but the noise follows from it; None: a new one. The
    noise is new in every run, and nobody knows it, unless a `noise_seed` is given: then anyone can draw it
    again, and ε holds for a simulation only (`result.redrawable_noise`).

    `method`, `rounds`, `clip` and `learning_rate` follow the job by default (docs/defaults.md): from the
    number of records and agents, the budget, the loss and the model, never from the records themselves.
    Inputs should be about 1 in size, and numbers to predict in [-1, 1].

    All other arguments are keys of the configuration, with its defaults (docs/configuration.md). `method`,
    `robust` and `attack` are `method.name`, `robust.rule` and `attack.name`. `noise_schedule` and `batch`
    take dictionaries, such as `batch={"cycle": 20}`. Numbers may have types of numpy or torch.

    >>> import torch, topdp
    >>> inputs = torch.rand(4, 50, 3)  # four agents with 50 records each
    >>> shards = topdp.Shards.from_arrays([(x, (x.sum(1) > 1.5).long()) for x in inputs])
    >>> model = torch.nn.Linear(3, 2)
    >>> result = topdp.train(model, shards, topdp.topology.ring(4), epsilon=2.0, clip=1.0, rounds=5)
    >>> result.estimates.shape, result.config.rounds
    (torch.Size([4, 8]), 5)
    """
    arguments = dict(locals())
    if not isinstance(model, nn.Module | str):
        raise ConfigError(
            f"Expected model to be a torch module, or the name of a network of topdp such as 'mlp', got "
            f"{type(model).__name__}."
        )
    expect_shards(shards)
    if out is not None and not isinstance(out, str | os.PathLike):
        raise ConfigError(f"Expected out to be the path of a folder, got {type(out).__name__}.")
    if progress != "auto" and not callable(progress):
        raise ConfigError(
            'Expected progress to be "auto" or a function of (stage, done, total, *, unit, metrics), got '
            f"{progress!r:.80}. For none, give topdp.silent."
        )
    topology = as_topology(topology)
    own_features = None if features is None or isinstance(features, str) else UserFeatures(features)
    features_key = "none" if features is None else features if own_features is None else "given"
    task = Task.of(loss, metrics)
    if epsilon is not None and sigma is not None:
        raise ConfigError(BUDGET_AND_NOISE.format(origin="train()", epsilon="epsilon", sigma="sigma"))
    arguments["features"] = features_key
    arguments["loss"] = task.loss.name if task.loss.name != CUSTOM_LOSS else GIVEN
    if metrics is not None:
        arguments["metrics"] = [
            metric.name if METRICS.get(metric.name) is metric else f"{GIVEN}: {metric.name}"
            for metric in task.metrics
        ]
    config = _config_of(topology, arguments)
    called = metric_sinks.callbacks_of(config, callbacks)
    if resume and out is None:
        raise RunFolderError("Expected out with resume=True, got none. Name the folder of the run as out.")
    path = None if out is None else Path(out)
    lock = nullcontext() if path is None or not resume else runs.locked(path)
    shown = automatic_progress(config.method.name) if progress == "auto" else nullcontext(progress)
    with lock, shown as report:
        begun = runs.unfinished(path) if resume and path is not None else None
        if begun is not None:
            if seed is None:
                config = config.model_copy(update={"seed": begun.config.seed})
            runs.expect_settings(begun, config)
            config = begun.config
        config = with_job_method(config, topology.agents)
        if method_of(config).pools and topology.agents > 1:
            topology, shards = single(), shards.pooled()
        new = path if begun is None else None
        with runs.prepared_folder(new):
            chosen_device = choose_device(device)
            feature_map = own_features or named_features(config)
            if feature_map is not None:
                shards = featured_shards.of_shards(shards, feature_map, chosen_device, report)
            outline = RunOutline.of(config, topology)
            if isinstance(model, nn.Module):
                parts = Assembly.given(outline, model, shards, chosen_device, task)
            else:
                parts = Assembly.of_records(outline, shards, task, chosen_device)
            job = runs.plan_run(parts, report) if begun is None else runs.reopen_run(parts, begun)
        if new is None:
            return runs.execute(job, begun, report, called)
        begun = runs.new_run_folder(new, job)
        begun.write_text(GRAPH_FILE, "".join(f"{i} {j}\n" for i, j in topology.edges))
        with runs.locked(new):
            return runs.execute(job, begun, report, called)


def _places() -> dict[str, tuple[str, str]]:
    """Return the section and key of the configuration that each argument of `train` sets."""
    places = {"method": ("method", "name"), "robust": ("robust", "rule"), "attack": ("attack", "name")}
    places |= {key: ("robust", key) for key in ("hostile", "radius")}
    places |= {f"attack_{key}": ("attack", key) for key in ("share", "strength", "agents")}
    places |= {key: ("data", key) for key in DATA_KEYS}
    for section in ("method", "privacy", "train", "report"):
        keys = type(getattr(RunConfig(), section)).model_fields
        places |= {key: (section, key) for key in keys if key != "name"}
    return places


def _config_of(topology: Topology, arguments: Mapping[str, Any]) -> RunConfig:
    tree: dict[str, Any] = {
        "seed": RANDOM_SEED if arguments["seed"] is None else plain(arguments["seed"]),
        **({} if arguments["noise_seed"] is None else {"noise_seed": plain(arguments["noise_seed"])}),
        "rounds": plain(arguments["rounds"]),
        "topology": {"agents": topology.agents, "kind": "file", "path": GRAPH_FILE},
        **{section: {} for section in ("method", "privacy", "train", "robust", "attack", "report")},
        "data": {"name": GIVEN},
        "model": {"name": arguments["model"] if isinstance(arguments["model"], str) else GIVEN},
    }
    for argument, (section, key) in _places().items():
        if arguments[argument] is not None:
            tree[section][key] = plain(arguments[argument])
    return parse(tree, "train()")


def expect_shards(value: Any) -> None:
    """Raise ConfigError unless `value` is a `Shards`; the message names the constructor to use.

    >>> expect_shards([1, 2])
    Traceback (most recent call last):
        ...
    topdp.runs.config.ConfigError: Expected shards to be a Shards, got list of int. Make it with \
topdp.Shards.from_arrays([(inputs, targets), ...]), one pair of arrays or tensors per agent.
    """
    if isinstance(value, Shards):
        return
    first = value[0] if isinstance(value, list | tuple) and value else value
    kind = "torch" if isinstance(first, DataLoader | TorchDataset) else "arrays"
    if isinstance(first, Mapping) or hasattr(first, "columns") or hasattr(first, "column_names"):
        kind = "frame"
    got = type(value).__name__ + ("" if first is value else f" of {type(first).__name__}")
    loader = " The dataset of a loader is loader.dataset." if isinstance(first, DataLoader) else ""
    raise ConfigError(
        f"Expected shards to be a Shards, got {got}. Make it with {SHARDS_CONSTRUCTORS[kind]}.{loader}"
    )


def plain(value: Any) -> Any:
    """Convert numbers and arrays of numpy and torch, and tuples, to numbers and lists of Python.

    >>> import numpy as np
    >>> plain(np.int64(3)), plain((1.0, np.float32(0.5)))
    (3, [1.0, 0.5])
    """
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value

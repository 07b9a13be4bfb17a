"""`topdp.load`: the result of a finished run, from its folder or from one file (`Result.save`)."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from topdp.data.features.user_features import UserFeatures
from topdp.errors import InputError
from topdp.learning.models import MODELS, FlatModel
from topdp.runs import best_estimates
from topdp.runs.config import GIVEN, RunConfig
from topdp.runs.frozen_state import frozen_digest
from topdp.runs.model_export import PARAMETERS_NOTE, InputKind
from topdp.runs.named_model import named_model
from topdp.runs.named_records import named_features
from topdp.runs.planning import counts_of_run, expect_account_of
from topdp.runs.portable_file import unpack
from topdp.runs.prediction import Predictor
from topdp.runs.result import Result, Stopped
from topdp.runs.row_arrays import as_tensor
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.run_outline import analysis_of
from topdp.runs.statistics.standardisation import STANDARDISATION, standardisation_of_facts

GIVEN_FEATURES = "given"  # data.features of a run with the user's own function


def load(
    path: str | os.PathLike[str],
    *,
    network: nn.Module | None = None,
    features: Callable[[Tensor], Any] | None = None,
) -> Result:
    """Return the result of a run from its folder, or from the file that `Result.save` wrote.

    `network`: a module with the architecture that the run trained, if it was your own; its weights are
    replaced. `features`: the function given as `features` to `topdp.train`, if there was one. Files contain
    neither, because they contain no code.

    >>> import tempfile, torch, topdp
    >>> x = torch.rand(3, 40, 2)
    >>> shards = topdp.Shards.from_arrays([(x[i], (x[i].sum(1) > 1).long()) for i in range(3)])
    >>> result = topdp.train("mlp", shards, topdp.topology.ring(3), rounds=3, clip=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loaded = topdp.load(result.save(f"{folder}/model.safetensors"))
    >>> bool((loaded.predict(x[0]) == result.predict(x[0])).all())
    True
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return _of_folder(place, network, features, place, None)
    if not place.exists():
        raise InputError(f"Expected the folder of a run, or a file of result.save, at {place}, found none.")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        frozen = unpack(place, folder)
        return _of_folder(folder, network, features, place, frozen)


def _of_folder(
    path: Path,
    network: nn.Module | None,
    features: Callable[[Tensor], Any] | None,
    origin: Path,
    frozen: Mapping[str, Tensor] | None,
) -> Result:
    """Return the result in the run folder `path`. `frozen`: the untrained state in the file `origin`; None:
    `origin` is the run folder.
    """
    folder = RunFolder.open(path)
    if not (path / "model.safetensors").exists():
        raise RunFolderError(
            f"Expected a finished run in {origin}, got one in state {folder.state!r}, which has no model "
            f"yet. Finish it first: topdp run --resume {origin}"
        )
    config, facts = folder.config, folder.read_json("run.json")
    stored, notes = folder.stored_estimates("model.safetensors", (PARAMETERS_NOTE,))
    try:
        inputs = InputKind(tuple(map(int, facts["inputs"])), str(facts["input_type"]))
        tree, stopped = facts.get("prediction"), facts.get("stopped")
        predictor = None if tree is None else Predictor.of_tree(tree, _features_of(config, features))
        flat = _flat_of(config, facts, notes[PARAMETERS_NOTE], network, origin, frozen)
        counts = {f"{config.privacy.unit}s": facts[f"{config.privacy.unit}s"]}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise RunFolderError(
            f"Expected run.json as topdp writes it in {origin}, got an unusable entry: {error!r}."
        ) from error
    labels = facts.get("labels")
    return Result(
        config=config,
        plan=folder.plan,
        privacy=expect_account_of(config, analysis_of(config, counts_of_run(folder)), folder),
        metrics=folder.metrics,
        estimates=as_tensor(stored),
        seconds=float(facts["seconds"]),
        flat=flat,
        folder=path if frozen is None else None,
        best=best_estimates.read(folder),
        stopped=None if stopped is None else Stopped(**stopped),
        inputs=inputs,
        predictor=predictor,
        labels=None if labels is None else tuple(map(str, labels)),
        facts={**counts, **{key: facts[key] for key in STORED_FACTS if key in facts}},
    )


STORED_FACTS = ("inputs", "input_type", "outputs", "prediction", "labels", "frozen", STANDARDISATION)
"""The entries of run.json that `model_export.facts_of` writes, and the standardisation of the inputs."""


def _features_of(config: RunConfig, given: Callable[[Tensor], Any] | None) -> Any:
    if config.data.features == GIVEN_FEATURES:
        return None if given is None else UserFeatures(given)
    if given is not None:
        raise InputError(
            f"Expected no function of features, because the run has features = {config.data.features!r}, got "
            "one. Remove it."
        )
    return named_features(config)


def _flat_of(
    config: RunConfig,
    facts: Mapping[str, Any],
    parameters: str,
    network: nn.Module | None,
    origin: Path,
    frozen: Mapping[str, Tensor] | None,
) -> FlatModel:
    """Return the model of a run, with its untrained state but any trained parameters."""
    name, stored = config.model.name, {key: tuple(shape) for key, shape in json.loads(parameters)}
    if network is None:
        # The factory of another person's file is never called, because it may be any function.
        if name == GIVEN or (frozen is not None and name not in MODELS):
            raise InputError(
                f"Expected network=module for {origin}, whose model "
                f"{'was given in Python' if name == GIVEN else f'is made by {name}'}: a file contains the "
                "numbers of a model, but no code. Call topdp.load(path, network=module) with a module of the "
                "same architecture."
            )
        module = named_model(config, tuple(map(int, facts["inputs"])), int(facts["outputs"]))
    elif isinstance(network, nn.Module):
        module = copy.deepcopy(network)
    else:
        raise InputError(f"Expected network to be a torch module, got {type(network).__name__}.")
    if (standardisation := standardisation_of_facts(facts)) is not None:
        shape = tuple(map(int, facts["inputs"]))
        module = standardisation.before(module, shape, next(module.parameters()).dtype)
    module.eval()
    own = {key: tuple(value.shape) for key, value in module.named_parameters()}
    for key, shape in stored.items():
        if own.get(key) != shape:
            got = f"shape {own[key]}" if key in own else f"only the parameters {', '.join(own)}"
            raise InputError(
                f"Expected a network with the parameter {key!r} of shape {shape}, which the run in {origin} "
                f"trained, got {got:.200}. Give a module of the same architecture."
            )
    for key, value in module.named_parameters():
        value.requires_grad_(key in stored)
    if frozen:
        _load_frozen(module, frozen, origin)
    flat = FlatModel(module)
    if "frozen" in facts and frozen_digest(flat) != facts["frozen"]:
        raise InputError(
            f"Expected a network whose untrained parameters and buffers are those of the run in {origin}, "
            "got other values, with which predictions would be wrong. Load the same pre-trained weights, or "
            "use the file of result.save, which contains them."
        )
    return flat


def _load_frozen(module: nn.Module, frozen: Mapping[str, Tensor], origin: Path) -> None:
    """Replace the untrained state of `module`. Raise InputError if it has another state."""
    own = module.state_dict()
    for name, value in frozen.items():
        if name not in own or own[name].shape != value.shape:
            got = f"shape {tuple(own[name].shape)}" if name in own else "no such tensor"
            raise InputError(
                f"Expected a network with the untrained tensor {name!r} of shape {tuple(value.shape)}, which "
                f"{origin} contains, got {got}. Give a module of the same architecture."
            )
    with torch.no_grad():
        module.load_state_dict(dict(frozen), strict=False)

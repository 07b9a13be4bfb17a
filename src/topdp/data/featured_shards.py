"""Shards whose inputs are features, made from a data set and a partition, or from existing shards.

`features/feature_cache` computes and caches the features of records. This module writes them to the positions
of their records, one chunk at a time, so that the features of a data set are never in memory twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import AnyArray, Ints
from topdp.base.progress import Progress, silent
from topdp.data._datasets import Dataset
from topdp.data.features.feature_cache import FeatureSource
from topdp.data.features.feature_maps import FeatureMap
from topdp.data.preparation import Preparation
from topdp.data.shards import Shards

Device = torch.device | str
MIN_CACHED_SHARE = 1 / 4
"""If agents use a smaller share of a data set, only their records get features, which are not cached."""


def of_dataset(
    dataset: Dataset,
    parts: Sequence[Ints],
    features: FeatureMap,
    held_out: Ints | None = None,
    device: Device = "cpu",
    progress: Progress = silent,
) -> Shards:
    """Return shards like `Shards.from_dataset`, with features as inputs.

    The features of the whole data set are cached, so that the cache serves every partition.
    """
    whole = _source(dataset, dataset.train_inputs, features, "train")
    shape = whole.shape[1:]
    shards = Shards.from_dataset(dataset, parts, held_out)
    n, longest = shards.inputs.shape[:2]
    # One tensor for all features: first those of the agents, with padding, then those of the test records.
    values = torch.zeros(n * longest + (0 if shards.test_inputs is None else len(shards.test_inputs)), *shape)
    inputs, tests = values[: n * longest], values[n * longest :]
    # For each record its row in `values`, or -1 if nobody holds it.
    position = np.full(len(dataset.train_targets), -1)
    for agent, part in enumerate(parts):
        position[part] = agent * longest + np.arange(len(part))
    if held_out is not None:
        position[held_out] = len(inputs) + np.arange(len(held_out))
    used_records = np.flatnonzero(position >= 0)
    if len(used_records) < MIN_CACHED_SHARE * len(position) and not whole.is_cached(device):
        some = _source(dataset, dataset.train_inputs[used_records], features, "train")
        position = position[used_records]
        chunks = some.chunks(device, progress, keep=False)
    else:
        chunks = whole.chunks(device, progress)
    for first, chunk in chunks:
        positions = torch.from_numpy(position[first : first + len(chunk)])
        values[positions[positions >= 0]] = chunk[positions >= 0]
    if held_out is None and dataset.test_inputs is not None:
        test = _source(dataset, dataset.test_inputs, features, "test")
        for first, chunk in test.chunks(device, progress):
            tests[first : first + len(chunk)] = chunk
    return replace(
        shards,
        inputs=inputs.view(n, longest, *shape),
        test_inputs=None if shards.test_inputs is None else tests,
        origin=_features_origin(shards, features),
        preparation=_with_features(shards, features),
    )


def of_shards(
    shards: Shards, features: FeatureMap, device: Device = "cpu", progress: Progress = silent
) -> Shards:
    """Return `shards` with features as inputs. The features of each agent are cached separately."""
    n, longest = shards.inputs.shape[:2]
    inputs = torch.zeros(n, longest, *features.shape(shards.inputs[0, 0].cpu()))
    for agent, count in enumerate(shards.counts):
        source = _unscaled_source(shards.inputs[agent, :count], features, f"agent {agent}")
        for first, chunk in source.chunks(device, progress):
            inputs[agent, first : first + len(chunk)] = chunk
    tests = shards.test_inputs
    if tests is not None:
        tests = _unscaled_source(tests, features, "the test records").all(device, progress)
    return replace(
        shards,
        inputs=inputs.to(shards.device),
        test_inputs=None if tests is None else tests.to(shards.device),
        origin=_features_origin(shards, features),
        preparation=_with_features(shards, features),
    )


def of_records(
    records: Tensor, features: FeatureMap | None, name: str, progress: Progress = silent
) -> Tensor:
    """Return the model inputs [records, ...] for one agent's records: their features, or else the records.

    Features are cached for the next call. `name` names the records in progress reports and errors.
    """
    if features is None:
        return records
    return _unscaled_source(records, features, name).all(progress=progress)


def input_shape(dataset: Dataset, features: FeatureMap | None) -> tuple[int, ...]:
    """Return the shape of the model input for one record of `dataset`."""
    example = torch.from_numpy(dataset.scale(dataset.train_inputs[:1]))[0]
    return tuple(example.shape) if features is None else features.shape(example)


def _source(dataset: Dataset, records: AnyArray, features: FeatureMap, part: str) -> FeatureSource:
    scaling, name = f"mean {dataset.mean}, deviation {dataset.deviation}", f"{dataset.name}, {part}"
    return FeatureSource(features=features, records=records, scale=dataset.scale, scaling=scaling, name=name)


def _unscaled_source(records: Tensor, features: FeatureMap, name: str) -> FeatureSource:
    array = records.detach().cpu().numpy()
    return FeatureSource(features=features, records=array, scale=lambda a: a, scaling="none", name=name)


def _with_features(shards: Shards, features: FeatureMap) -> Preparation | None:
    return None if shards.preparation is None else replace(shards.preparation, features=features)


def _features_origin(shards: Shards, features: FeatureMap) -> str | None:
    """Return the origin of features. It is None for a user's own map, because only its values identify it."""
    if features.identity is None:
        return None
    return hashlib.sha256(f"{features.identity} {shards.digest()}".encode()).hexdigest()

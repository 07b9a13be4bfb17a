"""A user's own feature map: any function of one record, run so that no record can influence another.

A function receives one record as a tensor. A `torch.nn.Module` receives a batch of one, in evaluation mode.
Many records are processed at a time in `isolated_vmap`; where torch cannot do this, they are processed one
after the other. `feature_maps` contains the maps that have a name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from topdp.data.features.feature_maps import Shape
from topdp.errors import InputError
from topdp.learning.gradients.isolation import forbid_batch_access, isolated_vmap
from topdp.learning.gradients.kept_state import StateSnapshot, expect_no_leaked_tensors, leaked_tensors
from topdp.learning.gradients.path_check import random_like

RecordFunction = Callable[[Tensor], Any]
FEATURE_MAPS_TEXT = "feature maps"
RECORDS_PER_PASS = 64
PROBE_RECORDS = 3
FEATURE_PROBE_SCALES = (1e-3, -1.0, 1e3, 1e10)
"""Scales of further probes, because a map may keep state only if it sees unusual values."""


@final
class UserFeatures:
    """Features computed by a user's function.

    **Guarantees.** The features of a record are a function of that record alone, because each record is
    processed in its own call or in `isolated_vmap`. Three kinds of maps are refused: a map in which something
    changes from call to call, as far as `kept_state` can detect it; a map that draws random numbers; and a
    module whose output for a record depends on the other records of a batch. Assumption: the function is
    chosen without looking at private records, and is not written to circumvent these checks.

    >>> features = UserFeatures(lambda image: image.mean(-1))
    >>> features.shape(torch.zeros(1, 4, 4)), features(torch.ones(5, 1, 4, 4)).shape
    ((1, 4), torch.Size([5, 1, 4]))
    """

    identity = None

    def __init__(self, function: RecordFunction) -> None:
        if not callable(function):
            raise InputError(
                "Expected features to be a name, a function of one record or a torch module, got "
                f"{type(function).__name__}."
            )
        self._code: Any = function
        if isinstance(function, nn.Module):
            self._code = copy.deepcopy(function).eval().requires_grad_(False)
        self._shapes: dict[tuple[Shape, torch.dtype], Shape] = {}
        self._loop = False

    def shape(self, example: Tensor) -> Shape:
        """Return the shape of the features of `example`.

        The first call for a shape and type checks the function on probes: synthetic records like `example`.
        """
        key = tuple(example.shape), example.dtype
        if key not in self._shapes:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self._shapes[key] = self._check_on_probes(example)
        return self._shapes[key]

    def __call__(self, records: Tensor) -> Tensor:
        shape = self.shape(records[0])
        if isinstance(self._code, nn.Module):
            self._code.to(records.device)
        else:
            records = records.cpu()  # a function may hold its own tensors, which stay on the CPU
        return torch.cat([self._map_part(part, shape) for part in torch.split(records, RECORDS_PER_PASS)])

    def _map_part(self, records: Tensor, shape: Shape) -> Tensor:
        snapshot, generator = self._snapshot(records, contents=self._loop), torch.get_rng_state()
        with torch.no_grad():
            features = self._one_by_one(records) if self._loop else self._isolated(records)
        snapshot.expect_unchanged()
        if not torch.equal(generator, torch.get_rng_state()):
            raise InputError(
                "Expected a feature map that draws no random numbers, got one that changes torch's "
                "generator. Draw random numbers once, outside of the map."
            )
        if features.shape[1:] != shape:
            raise _shape_error(shape, features.shape[1:])
        return features

    def _snapshot(self, records: Tensor, contents: bool) -> StateSnapshot:
        return StateSnapshot(
            {"the feature map": self._code}, records, contents=contents, what=FEATURE_MAPS_TEXT
        )

    def _check_on_probes(self, example: Tensor) -> Shape:
        probes = random_like(example, (PROBE_RECORDS,), 2, torch.Generator().manual_seed(0))
        snapshot = self._snapshot(probes, contents=True)
        try:
            one_by_one = self._one_by_one(probes)
            repeated = self._one_by_one(probes)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"The feature map failed on a synthetic record of shape {tuple(example.shape)}: "
                f"{type(error).__name__}: {str(error)[:200]}. A function receives one record, a torch module "
                "a batch of one."
            ) from error
        for size in FEATURE_PROBE_SCALES if example.is_floating_point() else ():
            with suppress(Exception):  # the map may refuse such records
                self._one_by_one(probes[:1] * size)
        snapshot.expect_unchanged()
        if not torch.equal(one_by_one, repeated):
            raise InputError(
                "Expected a feature map that returns the same features in every call, got different features "
                "in two calls. Draw random numbers once, outside of the map."
            )
        self._expect_unmixed(probes, one_by_one)
        before = leaked_tensors()
        try:
            isolated = self._isolated(probes)
        except Exception:  # vmap raises many types of errors
            self._loop = True
        else:
            expect_no_leaked_tensors(before, FEATURE_MAPS_TEXT)
            self._loop = not _nearly_equal(isolated, one_by_one)
        return tuple(one_by_one.shape[1:])

    def _expect_unmixed(self, probes: Tensor, one_by_one: Tensor) -> None:
        """Raise InputError if a module mixes the records of a batch.

        A module receives a batch of several records only in this check, which shows users their mistake.
        """
        if not isinstance(self._code, nn.Module):
            return
        try:
            batch_features = self._code(probes)
        except Exception:  # the module accepts only batches of one, and receives no other batches
            return
        if not isinstance(batch_features, Tensor) or not _nearly_equal(batch_features, one_by_one):
            raise InputError(
                "Expected a feature map of one record at a time, got a module whose features of a record "
                "depend on the other records in its batch. Clipping could not bound the influence of a "
                "record that changes the features of other records."
            )

    def _map_record(self, record: Tensor) -> Any:
        if not isinstance(self._code, nn.Module):
            return self._code(record)
        features = self._code(record.unsqueeze(0))
        if not isinstance(features, Tensor) or features.dim() == 0 or features.shape[0] != 1:
            raise InputError(
                f"Expected a module that maps a batch of one to a batch of one, got "
                f"{_describe_value(features)}."
            )
        return features.squeeze(0)

    def _isolated(self, records: Tensor) -> Tensor:
        def map_alone(record: Tensor) -> Any:
            with forbid_batch_access():
                return self._map_record(record)

        features: Tensor = isolated_vmap(map_alone, (0,))(records)
        return features.float()

    def _one_by_one(self, records: Tensor) -> Tensor:
        results: list[Tensor] = []
        for record in records:
            features = self._map_record(record)
            if isinstance(features, np.ndarray):
                features = torch.from_numpy(features)
            if not isinstance(features, Tensor) or features.is_complex():
                raise InputError(
                    "Expected a feature map that returns a tensor of real numbers, got "
                    f"{_describe_value(features)}."
                )
            if results and features.shape != results[0].shape:
                raise _shape_error(tuple(results[0].shape), tuple(features.shape))
            results.append(features.to(records.device, torch.float32))
        return torch.stack(results)


def _shape_error(expected: Sequence[int], got: Sequence[int]) -> InputError:
    return InputError(
        f"Expected features of one shape for all records, got {tuple(expected)} for one and {tuple(got)} for "
        "another. Pad or cut them to one length."
    )


def _nearly_equal(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    scale = float(second.abs().max()) if second.numel() else 0.0
    return torch.allclose(first.float(), second, 1e-3, 1e-4 * scale, equal_nan=True)


def _describe_value(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return f"a {type(value).__name__}{shape}"

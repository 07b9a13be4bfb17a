"""A user's own feature map: any function of one record, run so that no record can meet another.

A function gets one record as a tensor; a `torch.nn.Module` gets a batch of one, in evaluation mode. Many run
at once in `isolated_vmap`, or one after the other where torch cannot. Which maps have names is in `maps`.
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

RecordFunction = Callable[[Tensor], Any]
FEATURE_MAPS_TEXT = "feature maps"
RECORDS_PER_PASS = 64  # records
PROBE_RECORDS = 3  # records made up for the checks
FEATURE_PROBE_SCALES = (1e-3, -1.0, 1e3, 1e10)  # of more made-up records: what is unusual may be kept


@final
class UserFeatures:
    """Features by a user's function.

    **Guarantees.** What comes out for a record is a function of that record: each is in a call of its own, or
    in `isolated_vmap`; a map in which something changes from call to call, as far as `memory` can find it, is
    refused, and so are one that draws random numbers and a module whose output for a record depends on the
    others of a batch. It is assumed that the function is chosen without looking at private records, and not
    written to get around this.

    >>> features = UserFeatures(lambda image: image.mean(-1))
    >>> features.shape(torch.zeros(1, 4, 4)), features(torch.ones(5, 1, 4, 4)).shape
    ((1, 4), torch.Size([5, 1, 4]))
    """

    identity = None

    def __init__(self, function: RecordFunction) -> None:
        if not callable(function):
            raise InputError(
                "Expected features to be a name, a function of one record or a torch module, got a "
                f"{type(function).__name__}."
            )
        self._code: Any = function
        if isinstance(function, nn.Module):
            self._code = copy.deepcopy(function).eval().requires_grad_(False)
        self._shapes: dict[tuple[Shape, torch.dtype], Shape] = {}
        self._loop = False

    def shape(self, example: Tensor) -> Shape:
        """Checks the function on made-up records like `example`, once."""
        key = tuple(example.shape), example.dtype
        if key not in self._shapes:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self._shapes[key] = self._checked(example)
        return self._shapes[key]

    def __call__(self, records: Tensor) -> Tensor:
        shape = self.shape(records[0])
        if isinstance(self._code, nn.Module):
            self._code.to(records.device)
        else:
            records = records.cpu()  # a function may hold tensors of its own, and they do not follow
        return torch.cat([self._of(part, shape) for part in torch.split(records, RECORDS_PER_PASS)])

    def _of(self, records: Tensor, shape: Shape) -> Tensor:
        memory = self._memory(records, contents=self._loop)
        with torch.no_grad():
            found = self._one_by_one(records) if self._loop else self._apart(records)
        memory.expect_unchanged()
        if found.shape[1:] != shape:
            raise _shape_error(shape, found.shape[1:])
        return found

    def _memory(self, records: Tensor, contents: bool) -> StateSnapshot:
        return StateSnapshot(
            {"the feature map": self._code}, records, contents=contents, what=FEATURE_MAPS_TEXT
        )

    def _checked(self, example: Tensor) -> Shape:
        probes = _probe_records(example)
        memory = self._memory(probes, contents=True)
        try:
            alone = self._one_by_one(probes)
            again = self._one_by_one(probes)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"The feature map failed on a made-up record of shape {tuple(example.shape)}: "
                f"{type(error).__name__}: {str(error)[:200]} A function gets one record, a torch module a "
                "batch of one."
            ) from error
        for size in FEATURE_PROBE_SCALES if example.is_floating_point() else ():
            with suppress(Exception):  # it may refuse such records
                self._one_by_one(probes[:1] * size)
        memory.expect_unchanged()
        if not torch.equal(alone, again):
            raise InputError(
                "Expected a feature map that gives a record the same features whenever it is asked, got one "
                "that does not: draw random numbers once, outside of it."
            )
        self._expect_unmixed(probes, alone)
        before = leaked_tensors()
        try:
            together = self._apart(probes)
        except Exception:  # vmap refuses in many types
            self._loop = True
        else:
            expect_no_leaked_tensors(before, FEATURE_MAPS_TEXT)
            self._loop = not _nearly_equal(together, alone)
        return tuple(alone.shape[1:])

    def _expect_unmixed(self, probes: Tensor, alone: Tensor) -> None:
        """Only a module sees batches, and only here: its users should hear that it is not what they think."""
        if not isinstance(self._code, nn.Module):
            return
        try:
            together = self._code(probes)
        except Exception:  # it takes batches of one only, and gets no others
            return
        if not isinstance(together, Tensor) or not _nearly_equal(together, alone):
            raise InputError(
                "Expected a feature map that looks at one record at a time, got a module whose features of a "
                "record depend on the others of its batch. Features that mix records would carry one past "
                "the clipping of another."
            )

    def _call(self, record: Tensor) -> Any:
        if not isinstance(self._code, nn.Module):
            return self._code(record)
        found = self._code(record.unsqueeze(0))
        if not isinstance(found, Tensor) or found.dim() == 0 or found.shape[0] != 1:
            raise InputError(
                f"Expected a module that maps a batch of one to a batch of one, got {_describe_value(found)}."
            )
        return found.squeeze(0)

    def _apart(self, records: Tensor) -> Tensor:
        def one(record: Tensor) -> Any:
            with forbid_batch_access():
                return self._call(record)

        found: Tensor = isolated_vmap(one, (0,))(records)
        return found.float()

    def _one_by_one(self, records: Tensor) -> Tensor:
        found: list[Tensor] = []
        for record in records:
            features = self._call(record)
            if isinstance(features, np.ndarray):
                features = torch.from_numpy(features)
            if not isinstance(features, Tensor) or features.is_complex():
                raise InputError(
                    "Expected a feature map that returns a tensor of real numbers, got "
                    f"{_describe_value(features)}."
                )
            if found and features.shape != found[0].shape:
                raise _shape_error(tuple(found[0].shape), tuple(features.shape))
            found.append(features.to(records.device, torch.float32))
        return torch.stack(found)


def _probe_records(example: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (PROBE_RECORDS, *example.shape)
    if example.is_floating_point():
        return torch.rand(shape, generator=generator).to(example)
    return torch.randint(2, shape, generator=generator).to(example)


def _shape_error(expected: Sequence[int], got: Sequence[int]) -> InputError:
    return InputError(
        f"Expected features of one shape for all records, got {tuple(expected)} for one and {tuple(got)} for "
        "another. Pad or cut them to one length."
    )


def _nearly_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    scale = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(one.float(), other, 1e-3, 1e-4 * scale, equal_nan=True)


def _describe_value(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return f"a {type(value).__name__}{shape}"

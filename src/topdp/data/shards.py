"""What the engine eats: the records of all agents in one padded tensor on one device, checked once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from topdp.data.checks import Array, check_labels, check_records, check_same_shape
from topdp.data.datasets import Dataset
from topdp.errors import DataError
from topdp.plan.arrays import Ints

Records = tuple[Any, Any]
_DTYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}


@dataclass(frozen=True, eq=False)
class Shards:
    """The records of n agents, and optionally records to test on.

    Agent i holds `inputs[i, :sizes[i]]` and `labels[i, :sizes[i]]`; the rest of its row is zeros and is no
    record. Every record has been checked: finite, labels in 0..classes-1, one shape for all.

    >>> import numpy as np
    >>> x, y = np.zeros((8, 2)), np.arange(8) % 2
    >>> shards = Shards.from_arrays([(x[:5], y[:5]), (x[5:], y[5:])])
    >>> shards.agents, shards.counts, shards.classes
    (2, (5, 3), 2)
    """

    inputs: Tensor
    """[n, N_max, ...], float32 unless another dtype was asked for."""
    labels: Tensor
    """[n, N_max], int64."""
    sizes: Tensor
    """[n], int64, on the device of the inputs; `counts` are the same numbers at hand."""
    counts: tuple[int, ...]
    classes: int
    test_inputs: Tensor | None = None
    """[M, ...], or None."""
    test_labels: Tensor | None = None
    origin: str | None = None
    """Where the inputs are features: the digest of the records, and of what they were mapped by."""

    @property
    def agents(self) -> int:
        return len(self.counts)

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def digest(self) -> str:
        """SHA-256 over all records of all agents, in their order.

        Features are known by the records they are of, for their last digits differ between machines. For
        simulated runs, whose seed tells as much to who has their folder; not for what is published.
        """
        if self.origin is not None:
            return self.origin
        sha = hashlib.sha256(f"{self.counts} {self.inputs.dtype} {tuple(self.inputs.shape)}".encode())
        for agent, count in enumerate(self.counts):
            for values in (self.inputs[agent, :count], self.labels[agent, :count]):
                sha.update(values.cpu().contiguous().numpy().data)
        return sha.hexdigest()

    def to(self, device: str | torch.device) -> Shards:
        """The same shards on another device."""
        return replace(
            self,
            inputs=self.inputs.to(device),
            labels=self.labels.to(device),
            sizes=self.sizes.to(device),
            test_inputs=None if self.test_inputs is None else self.test_inputs.to(device),
            test_labels=None if self.test_labels is None else self.test_labels.to(device),
        )

    def pooled(self) -> Shards:
        """All records in one place."""
        inputs, labels = (
            torch.cat([values[agent, :count] for agent, count in enumerate(self.counts)])[None]
            for values in (self.inputs, self.labels)
        )
        count = len(labels[0])
        sizes = torch.tensor([count], device=self.device)
        origin = None if self.origin is None else f"{self.origin} pooled"
        return replace(self, inputs=inputs, labels=labels, sizes=sizes, counts=(count,), origin=origin)

    @staticmethod
    def from_dataset(dataset: Dataset, parts: Sequence[Ints], held_out: Ints | None = None) -> Shards:
        """Deal out `dataset`, scaled by its public constants: agent i holds the records `parts[i]`.

        With `held_out`, these training records are tested on instead of the test set.
        """
        records = len(dataset.train_labels)
        for agent, part in enumerate(parts):
            if len(part) and not (part.min() >= 0 and part.max() < records):
                raise DataError(f"agent {agent}: expected record indices in 0..{records - 1}, got others.")
        _check_disjoint(parts if held_out is None else [*parts, held_out])
        counts = _counts(parts)
        shape = dataset.train_inputs.shape[1:]
        inputs = torch.zeros(len(parts), max(counts), *shape)
        labels = torch.zeros(len(parts), max(counts), dtype=torch.int64)
        for agent, part in enumerate(parts):
            inputs[agent, : len(part)] = torch.from_numpy(dataset.scale(dataset.train_inputs[part]))
            labels[agent, : len(part)] = torch.from_numpy(dataset.train_labels[part])
        if held_out is None:
            test_inputs, test_labels = dataset.test()
        else:
            test_inputs = dataset.scale(dataset.train_inputs[held_out])
            test_labels = dataset.train_labels[held_out]
        return Shards(
            inputs,
            labels,
            torch.tensor(counts),
            counts,
            dataset.classes,
            torch.from_numpy(test_inputs),
            torch.from_numpy(test_labels),
        )

    @staticmethod
    def from_arrays(
        agents: Sequence[Records],
        test: Records | None = None,
        classes: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Shards:
        """Shards of a user's own (inputs, labels), one pair of arrays or tensors per agent.

        Inputs are taken as they are, not scaled, and converted to `dtype`: float32, float64, or int64 for
        inputs that are indices, such as tokens. `classes` is the largest training label + 1 unless given.
        """
        if not agents:
            raise DataError("Expected the records of at least one agent, got none.")
        checked = [_checked(pair, dtype, f"agent {agent}") for agent, pair in enumerate(agents)]
        if classes is None:
            classes = max(int(labels.max()) for _, labels in checked) + 1
        shape = checked[0][0].shape[1:]
        for agent, (inputs, labels) in enumerate(checked):
            check_same_shape(inputs, shape, f"agent {agent}", "agent 0")
            check_labels(labels, f"agent {agent}", classes)
        counts = _counts([labels for _, labels in checked])
        all_inputs = torch.zeros(len(checked), max(counts), *shape, dtype=dtype)
        all_labels = torch.zeros(len(checked), max(counts), dtype=torch.int64)
        for agent, (inputs, labels) in enumerate(checked):
            all_inputs[agent, : len(labels)] = torch.from_numpy(inputs)
            all_labels[agent, : len(labels)] = torch.from_numpy(labels)
        shards = Shards(all_inputs, all_labels, torch.tensor(counts), counts, classes)
        if test is None:
            return shards
        test_inputs, test_labels = _checked(test, dtype, "test records")
        check_same_shape(test_inputs, shape, "test records", "agent 0")
        check_labels(test_labels, "test records", classes)
        return replace(
            shards, test_inputs=torch.from_numpy(test_inputs), test_labels=torch.from_numpy(test_labels)
        )

    @staticmethod
    def from_torch(
        agents: Sequence[TorchDataset[Any]],
        test: TorchDataset[Any] | None = None,
        classes: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Shards:
        """Shards of `torch.utils.data.Dataset`s of (input, label) items, one per agent.

        Each item is read once, now: a random transform is drawn once, not every round.
        """
        pairs = [_items(dataset, f"agent {agent}") for agent, dataset in enumerate(agents)]
        held_out = None if test is None else _items(test, "test records")
        return Shards.from_arrays(pairs, held_out, classes, dtype=dtype)


def _counts(parts: Sequence[Array]) -> tuple[int, ...]:
    if not parts:
        raise DataError("Expected the records of at least one agent, got none.")
    for agent, part in enumerate(parts):
        if len(part) == 0:
            raise DataError(f"agent {agent}: expected at least one record, got none.")
    return tuple(len(part) for part in parts)


def _check_disjoint(parts: Sequence[Ints]) -> None:
    """A record held twice would be protected half as well as the accounts say."""
    if not parts:
        return
    together = np.concatenate(parts)
    records, times = np.unique(together, return_counts=True)
    if len(records) != len(together):
        twice = records[times > 1][0]
        who = [agent for agent, part in enumerate(parts) for _ in range(int((part == twice).sum()))]
        raise DataError(f"Expected every record at one agent only, got record {twice} at agents {who}.")


def _checked(pair: Records, dtype: torch.dtype, what: str) -> tuple[Array, Ints]:
    try:
        inputs, labels = (_array(part) for part in pair)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: expected a pair (inputs, labels) of arrays ({error}).") from error
    inputs, labels = check_records(inputs, labels, what)
    if dtype not in _DTYPES:
        raise DataError(f"Expected a dtype out of {', '.join(map(str, _DTYPES))}, got {dtype}.")
    converted = inputs.astype(_DTYPES[dtype])
    if dtype == torch.int64 and not np.array_equal(converted, inputs):
        raise DataError(f"{what}: expected inputs that are whole numbers for {dtype}, got others.")
    return converted, labels


def _array(values: Any) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _items(dataset: TorchDataset[Any], what: str) -> Records:
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    if not hasattr(dataset, "__len__"):
        raise DataError(f"{what}: expected a dataset with a length, got {type(dataset).__name__}.")
    inputs, labels = [], []
    for index in range(len(dataset)):
        item = dataset[index]
        try:
            value, target = item
            inputs.append(torch.as_tensor(value))
            labels.append(int(target))
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{what}: expected item {index} to be a pair of a tensor and a whole number ({error}). "
                "Add a transform that makes tensors of the inputs."
            ) from error
        if inputs[-1].shape != inputs[0].shape:
            raise DataError(
                f"{what}: expected records of shape {tuple(inputs[0].shape)} as in item 0, "
                f"got {tuple(inputs[-1].shape)} in item {index}."
            )
    if not inputs:
        raise DataError(f"{what}: expected at least one record, got none.")
    return torch.stack(inputs), np.array(labels, np.int64)

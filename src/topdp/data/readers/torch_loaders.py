"""Read torch data sets and loaders as tensors. Every item is read once, when `read_items` is called.

**Guarantees.** A loader that yields an item twice is refused. Accountants count an item as one record, but a
record that occurs k times can change a sum of gradients by k times the clip.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from topdp.errors import DataError

logger = logging.getLogger("topdp.data")


def read_items(source: Any, what: str) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a `Dataset` of pairs, or of a `DataLoader`, iterated over once.

    A random transform is drawn once and not in every round. The order of records is that of the loader: a
    loader that shuffles gives another order in each call. A loader that drops its last batch omits records.
    Both are logged as warnings. `what` names the source in messages.
    """
    if isinstance(source, DataLoader):
        return _read_batches(source, what)
    if isinstance(source, TensorDataset):
        if len(source.tensors) != 2:
            raise DataError(f"{what}: expected tensors (inputs, targets), got {len(source.tensors)} tensors.")
        return source.tensors[0], source.tensors[1]
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            f"{what}: expected a torch Dataset with a length or a DataLoader, got {type(source).__name__}. "
            "Wrap an iterable data set in a DataLoader."
        )
    pairs = [_record_pair(source[index], what, f"item {index}") for index in range(len(source))]
    return _join_items(pairs, what, "item")


def _read_batches(loader: DataLoader[Any], what: str) -> tuple[Tensor, Tensor]:
    if loader.batch_size is None and loader.batch_sampler is None:
        raise DataError(f"{what}: expected a DataLoader with batches, got batch_size=None.")
    _expect_records_once(loader, what)
    if isinstance(loader.sampler, RandomSampler):
        logger.warning(
            "%s: the DataLoader shuffles, so the records have the order of this one pass. A run can be "
            "resumed only with the same order. Use shuffle=False, because topdp draws its own batches",
            what,
        )
    if loader.drop_last:
        logger.warning("%s: the DataLoader drops its last batch, whose records are not used", what)
    pairs = []
    for index, batch in enumerate(loader):
        value, target = _record_pair(batch, what, f"batch {index}")
        if value.dim() < 1 or target.dim() < 1 or len(value) != len(target):
            raise DataError(
                f"{what}: expected inputs and targets of one length in batch {index}, got shapes "
                f"{tuple(value.shape)} and {tuple(target.shape)}."
            )
        pairs.append((value, target))
    return _join_items(pairs, what, "batch")


def _expect_records_once(loader: DataLoader[Any], what: str) -> None:
    if isinstance(loader.dataset, IterableDataset):
        if loader.num_workers > 0:
            raise DataError(
                f"{what}: expected num_workers=0 for an iterable data set, got {loader.num_workers}. Each "
                "worker may yield all records."
            )
        return
    indices = list(loader.sampler if loader.batch_sampler is None else chain(*loader.batch_sampler))
    # Compare indices as texts, because those of a custom sampler may have any type, even an unhashable one.
    if len(set(map(str, indices))) < len(indices) or getattr(loader.sampler, "replacement", False):
        raise DataError(
            f"{what}: expected a DataLoader that yields every record once, got one whose sampler may yield a "
            "record twice. It would count as several records, and noise hides only one. Remove the sampler; "
            "topdp draws its own batches."
        )


def _record_pair(item: Any, what: str, where: str) -> tuple[Tensor, Tensor]:
    if isinstance(item, dict):
        raise DataError(
            f"{what}: expected {where} to be a pair of a tensor and a target, got a dictionary: "
            f"{', '.join(map(str, item))}. Return (inputs, target), or use Shards.from_frames for a Hugging "
            "Face dataset."
        )
    try:
        value, target = item
        return torch.as_tensor(value), torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what}: expected {where} to be a pair of a tensor and a target, a number or a tensor "
            f"({str(error).splitlines()[0]}). Add a transform that makes tensors of the inputs."
        ) from error


def _join_items(pairs: list[tuple[Tensor, Tensor]], what: str, each: str) -> tuple[Tensor, Tensor]:
    """Return the inputs and the targets of all `pairs`: items are stacked, batches are concatenated."""
    if not pairs:
        raise DataError(f"{what}: expected at least one record, got none.")
    join = torch.stack if each == "item" else torch.cat
    try:
        inputs, targets = (join(list(parts)) for parts in zip(*pairs, strict=True))
    except RuntimeError as error:
        raise DataError(f"{what}: expected every {each} in one shape, got: {error}.") from error
    return inputs, targets

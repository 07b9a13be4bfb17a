"""torch data sets and loaders are read once, item by item, in their order."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from topdp.data.readers.torch_loaders import read_items
from topdp.errors import DataError

PAIRS = TensorDataset(torch.arange(10.0).view(5, 2), torch.tensor([0, 1, 0, 1, 0]))


class Items(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.ones(2), 1), (torch.zeros(2), 0)])


def test_a_loader_yields_each_record_of_its_data_set_once() -> None:
    inputs, targets = read_items(DataLoader(PAIRS, batch_size=2), "agent 0")
    assert torch.equal(inputs, PAIRS.tensors[0]) and torch.equal(targets, PAIRS.tensors[1])
    inputs, targets = read_items(DataLoader(Stream(), batch_size=2), "agent 0")
    assert inputs.shape == (2, 2) and targets.tolist() == [1, 0]


def test_targets_may_be_numbers_or_vectors() -> None:
    inputs, targets = read_items(Items((torch.ones(2), 0.5), ([2.0, 3.0], 1.5)), "agent 0")
    assert inputs.tolist() == [[1, 1], [2, 3]] and targets.tolist() == [0.5, 1.5]
    assert read_items(Items((torch.ones(2), [1, 0, 1])), "agent 0")[1].shape == (1, 3)


def test_shuffling_and_dropping_give_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "topdp.data"):
        read_items(DataLoader(PAIRS, batch_size=2, shuffle=True), "agent 3")
        inputs, _ = read_items(DataLoader(PAIRS, batch_size=2, drop_last=True), "agent 3")
    assert "agent 3: the DataLoader shuffles" in caplog.text and len(inputs) == 4
    assert "agent 3: the DataLoader drops its last batch" in caplog.text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Stream(), "Wrap an iterable data set in a DataLoader"),
        (3, "expected a torch Dataset with a length or a DataLoader, got int"),
        (Items(), "expected at least one record, got none"),
        (Items(torch.ones(3)), "expected item 0 to be a pair of a tensor and a target"),
        (Items((object(), 1)), "Add a transform that makes tensors"),
        (Items({"image": 1, "label": 2}), "got a dictionary: image, label"),
        (
            Items((torch.ones(2), 1), (torch.ones(3), 1)),
            r"every item in one shape, got: .*\[2\] at entry 0 and \[3\] at entry 1",
        ),
        (TensorDataset(torch.ones(2)), "got 1 tensors"),
        (DataLoader(PAIRS, batch_size=None), "expected a DataLoader with batches"),
    ],
)
def test_objects_that_yield_no_pairs_are_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_items(source, "agent 0")


@pytest.mark.parametrize(
    ("sampler", "workers"),
    [
        (RandomSampler(range(5), replacement=True, num_samples=2), 0),  # may give none twice, this time
        (RandomSampler(range(5), num_samples=9), 0),
        (WeightedRandomSampler([1.0, 0.0, 0.0, 0.0, 0.0], 5), 0),
        ([0, 1, 1], 0),
        (None, 2),
    ],
)
def test_a_loader_that_yields_a_record_twice_is_refused(sampler, workers):
    loader = DataLoader(Stream() if workers else PAIRS, batch_size=2, sampler=sampler, num_workers=workers)
    with pytest.raises(
        DataError, match=r"agent 3: expected (a DataLoader that yields every record once|num_w)"
    ):
        read_items(loader, "agent 3")

"""A user's own feature map processes one record at a time, or is refused."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from topdp.data.features.user_features import UserFeatures
from topdp.errors import InputError

EXAMPLE = torch.zeros(1, 4, 4)
SEEN: list[float] = []


class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean += 0.1 * (x.mean() - self.mean)
        return x - self.mean


class Mixes(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def remembers(record):
    SEEN.append(float(record.sum()))
    return record


def counter():
    calls = itertools.count()
    return lambda record: record + next(calls)


def previous():
    kept = {"last": torch.zeros(1, 4, 4)}

    def function(record):
        found = record - kept["last"]
        kept["last"] = record
        return found

    return function


@pytest.mark.parametrize(
    "function",
    [
        lambda record: record.flatten(),
        lambda record: torch.cat([record.mean((1, 2)), record.amax((1, 2))]),
        lambda record: record if record.sum() > 8 else -record,  # vmap refuses it
        lambda record: record.numpy() ** 2,
        lambda record: (record > 0.5).long(),
        nn.Flatten(),
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Dropout(0.5)),
    ],
)
def test_every_way_of_mapping_processes_records_separately(function):
    records = torch.rand(150, 1, 4, 4)
    found = UserFeatures(function)(records)
    assert found.dtype == torch.float32 and found.shape[1:] == UserFeatures(function).shape(EXAMPLE)
    if isinstance(function, nn.Module):
        function = function.eval()
        expected = torch.cat([function(record[None]) for record in records])
    else:
        expected = torch.stack([torch.as_tensor(function(record)) for record in records])
    torch.testing.assert_close(found, expected.float().detach())


@pytest.mark.parametrize("function", [remembers, counter(), previous(), RunningMean()])
def test_maps_that_keep_state_between_records_are_refused(function):
    with pytest.raises(InputError, match=r"feature maps that keep nothing|the same features"):
        UserFeatures(function).shape(EXAMPLE)


def test_a_module_that_mixes_records_is_refused():
    with pytest.raises(
        InputError, match="one record at a time, got a module whose features of a record depend"
    ):
        UserFeatures(Mixes()).shape(EXAMPLE)


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda record: record + torch.rand(()), "the same features in every call"),
        (lambda record: record[record > 0.5], "one shape for all records"),
        (lambda record: [1.0, 2.0], "a tensor of real numbers, got a list"),
        (lambda record: torch.fft.fft(record), "a tensor of real numbers, got a Tensor"),
        (
            lambda record: record.reshape(3, 3),
            "failed on a synthetic record of shape \\(1, 4, 4\\): RuntimeError",
        ),
        (lambda record: record.add_(1), "do not change records"),
        (nn.Sequential(nn.Flatten(0)), "a batch of one to a batch of one"),
    ],
)
def test_maps_that_are_not_functions_of_one_record_are_refused(function, words):
    with pytest.raises(InputError, match=words):
        UserFeatures(function).shape(EXAMPLE)


def test_a_map_with_another_shape_for_an_unusual_record_is_refused():
    def shorter(record):
        return record.flatten() if record.max() < 5 else record.flatten()[:3]

    features = UserFeatures(shorter)
    assert features.shape(EXAMPLE) == (16,)
    records = torch.rand(4, 1, 4, 4)
    records[2] = 9
    with pytest.raises(InputError, match=r"got \(16,\) for one and \(3,\) for another"):
        features(records)


def test_the_users_module_is_not_changed():
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten())
    UserFeatures(module)(torch.rand(6, 1, 4, 4))
    assert module.training and int(module[0].num_batches_tracked) == 0
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_maps_that_are_not_callable_are_refused():
    with pytest.raises(InputError, match="a name, a function of one record or a torch module, got ndarray"):
        UserFeatures(np.zeros(3))

"""Flat models: conversion from and to rows, the paper's networks, and rejected modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from topdp.learning.models import MODELS, FlatModel, cnn, initial_row, mlp


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def test_a_model_round_trips_through_its_row():
    flat = FlatModel(cnn())
    row = torch.randn(flat.dimension)
    module = flat.load(row)
    assert torch.equal(FlatModel(module).flatten(), row)
    x = torch.rand(2, 3, 32, 32)
    assert not torch.equal(module(x), flat.module(x))


def test_load_uses_the_type_of_the_row_and_does_not_change_the_original():
    flat = FlatModel(mlp(5, 3, 2))
    before = flat.flatten()
    module = flat.load(torch.zeros(flat.dimension, dtype=torch.float64))
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert torch.equal(flat.flatten(), before)


def test_named_gives_views():
    flat = FlatModel(nn.Linear(3, 2))
    row = torch.zeros(8)
    flat.named(row)["bias"].fill_(1)
    assert row.tolist() == [0] * 6 + [1] * 2


def test_tied_parameters_count_once_and_stay_tied():
    flat = FlatModel(Tied())
    assert flat.dimension == 16 + 4 + 4
    module = flat.load(torch.arange(24.0))
    assert module.second.weight is module.first.weight


def test_the_given_module_may_change_afterwards():
    module = nn.Linear(3, 2)
    flat = FlatModel(module)
    before = flat.flatten()
    nn.init.zeros_(module.weight)
    assert torch.equal(flat.flatten(), before)


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (1, 28, 28)), ("cnn", (1, 28, 28)), ("cnn", (3, 32, 32))]
)
def test_the_papers_networks_accept_the_images_of_their_data_sets(name, shape):
    module = MODELS[name](shape, 10)
    assert module(torch.rand(2, *shape)).shape == (2, 10)


def test_dimensions_of_the_papers_networks():
    # 784·100+100 + 100·10+10; LeNet-5's layers on 32x32x3
    assert FlatModel(mlp()).dimension == 79510
    assert FlatModel(cnn()).dimension == 456 + 2416 + 48120 + 10164 + 850


def test_initial_rows_depend_only_on_the_seed():
    state = torch.get_rng_state()
    first = initial_row(mlp, 1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert torch.equal(initial_row(mlp, 1), first)
    assert not torch.equal(initial_row(mlp, 2), first)


@pytest.mark.parametrize(
    ("layer", "fix"),
    [
        (nn.BatchNorm1d(6), "nn.GroupNorm(3, 6)"),
        (nn.BatchNorm2d(64), "nn.GroupNorm(32, 64)"),
        (nn.BatchNorm3d(7, track_running_stats=False), "nn.GroupNorm(1, 7)"),
        (nn.SyncBatchNorm(8), "nn.GroupNorm(4, 8)"),
        (nn.InstanceNorm2d(4, track_running_stats=True), "nn.InstanceNorm2d(4, affine=False)"),
    ],
)
def test_layers_with_statistics_of_the_data_are_refused_with_the_fix(layer, fix):
    with pytest.raises(ValueError) as error:
        FlatModel(nn.Sequential(nn.Linear(3, 3), nn.Sequential(layer)))
    assert type(layer).__name__ in str(error.value)
    assert "'1.0'" in str(error.value)
    assert "leave without noise" in str(error.value)
    assert fix in str(error.value)


def test_the_error_names_both_fixes():
    with pytest.raises(ValueError, match=r"pre-trained backbone.*\.eval\(\)"):
        FlatModel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(6), nn.BatchNorm2d(64), nn.SyncBatchNorm(8)])
def test_batch_norm_with_frozen_statistics_is_accepted_and_unchanged(layer):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), layer)
    model[2].eval()
    flat = FlatModel(model)
    model.train()  # changes the user's module, not the copy in FlatModel
    for module in (flat.module, flat.load(flat.flatten())):
        assert module[1].training and not module[2].training
    with pytest.raises(ValueError, match="mixes the examples"):
        FlatModel(model)


def test_batch_norm_without_statistics_is_refused_in_evaluation_mode_too():
    with pytest.raises(ValueError, match="mixes the examples"):
        FlatModel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval())


def test_the_fix_builds_and_is_accepted():
    FlatModel(nn.Sequential(nn.GroupNorm(3, 6), nn.InstanceNorm2d(4, affine=True)))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "that require gradients, got none"),
        (nn.Linear(2, 2).requires_grad_(False), "that require gradients, got none"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "one real floating-point type"),
        (nn.Linear(2, 2, dtype=torch.complex64), "one real floating-point type"),
        (nn.Linear(2, 2, dtype=torch.float16), "float32 or float64"),
        (nn.Linear(2, 2, dtype=torch.bfloat16), "float32 or float64"),
    ],
)
def test_modules_that_cannot_become_rows_are_refused(module, message):
    with pytest.raises(ValueError, match=message):
        FlatModel(module)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_refused():
    with pytest.raises(ValueError, match="Run one batch"):
        FlatModel(nn.LazyLinear(2))


def test_wrong_shapes_are_named():
    flat = FlatModel(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="a row of 8"):
        flat.named(torch.zeros(9))
    with pytest.raises(ValueError, match="Use the mlp"):
        MODELS["cnn"]((1, 28, 20), 10)
    with pytest.raises(ValueError, match="at least 16x16"):
        cnn(size=12)

"""No record moves its agent's sum by more than the clip, for all layers and all records."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from gradient_models import CLASSES, MODELS, Encodes, Reads, TiedToEmbedding, frozen_statistics, problem
from topdp.learning.gradients import ClippedGradients
from topdp.learning.gradients.path_check import draws_dropout
from topdp.learning.models import FlatModel

NEW = [
    "conv1d", "wide conv1d", "conv3d", "instance norm", "rms norm", "batch norm", "batch norm 3d",
    "frozen backbone", "frozen in part", "attention", "attention, sequence first", "attention, own widths",
    "encoder", "encoder, sequence first", "decoder", "rnn", "gru", "lstm", "lstm with projections", "cells",
    "tied to embedding", "widely tied to embedding", "parameters",
]  # fmt: skip
SIZES = (0.0, 1e-30, 1e-3, 1.0, 1e3, 1e15, 1e38, math.inf, math.nan)


def records(name: str, like: Tensor) -> list[Tensor]:
    """What one record may be, in place of one like this: of any size; or all one token, and every other."""
    if MODELS[name][1] != "tokens":
        one = torch.randn(like.shape).to(like)
        return [one * size for size in SIZES] + [torch.full_like(one, math.inf), one.sign() * 1e20]
    return [torch.full_like(like, token) for token in (0, 5)] + [torch.randint_like(like, 9)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", NEW)
def test_one_record_more_moves_the_sum_by_at_most_the_clip(name):
    """In float32, where rounding is coarse; other kinds of clipping are in `test_clipping`."""
    clip = 0.1
    flat, rows, x, y, _ = problem(name, torch.float32)
    gradients = ClippedGradients(flat, clip)
    weights = torch.ones(x.shape[:2])
    weights[1, 2] = 0
    without = gradients.clipped_sum(rows, x, y, weights)
    weights[1, 2] = 1
    for record in records(name, x[1, 2]):
        x[1, 2] = record
        moved = gradients.clipped_sum(rows, x, y, weights) - without
        assert torch.isfinite(moved).all()
        assert torch.equal(moved[[0, 2]], torch.zeros_like(moved[[0, 2]]))
        assert float(moved[1].norm()) <= clip * (1 + 1e-4)
    assert gradients.fast


@pytest.mark.slow
@pytest.mark.parametrize("name", NEW)
def test_padding_adds_exactly_nothing(name):
    flat, rows, x, y, weights = problem(name, torch.float64)
    gradients = ClippedGradients(flat, 0.5)
    before = gradients.clipped_sum(rows, x, y, weights)
    x[0, 1] = x[-1, -1] = 1e300 if x.is_floating_point() else 8
    assert torch.equal(before, gradients.clipped_sum(rows, x, y, weights))


@pytest.mark.slow
@pytest.mark.parametrize("microbatch", [1, 4])
@pytest.mark.parametrize("name", ["conv1d", "encoder", "lstm", "tied to embedding", "parameters"])
def test_microbatches_do_not_change_the_result(name, microbatch):
    flat, rows, x, y, weights = problem(name, torch.float64)
    gradients = ClippedGradients(flat, 0.5)
    whole = gradients.clipped_sum(rows, x, y, weights)
    parts = gradients.clipped_sum(rows, x, y, weights, microbatch=microbatch)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)


def alone(flat: FlatModel, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Unclipped sums by torch alone."""
    sums = []
    for row, inputs, targets in zip(rows, x, y, strict=True):
        module = flat.load(row)
        nn.functional.cross_entropy(module(inputs), targets, reduction="sum").backward()
        used = (module.get_parameter(slot.name) for slot in flat.slots)
        sums.append(torch.cat([(0 * p if p.grad is None else p.grad).reshape(-1) for p in used]))
    return torch.stack(sums)


@pytest.mark.parametrize("make", [Encodes, lambda: Reads(nn.GRU), lambda: Reads(nn.LSTM), TiedToEmbedding])
def test_sequences_of_length_one(make):
    torch.manual_seed(1)
    flat = FlatModel(make().double())
    rows = flat.flatten() + 0.1 * torch.randn(2, flat.dimension, dtype=torch.float64)
    x, y = torch.randint(1, 9, (2, 4, 1)), torch.randint(CLASSES, (2, 4))
    gradients = ClippedGradients(flat, 1e9)
    torch.testing.assert_close(gradients.clipped_sum(rows, x, y), alone(flat, rows, x, y))
    assert gradients.fast


@pytest.mark.parametrize("name", ["encoder", "gru", "lstm", "attention"])
def test_a_model_in_evaluation_mode_has_the_same_gradients(name):
    """Where torch has inference kernels, which would read weights without calling the layer rules."""
    _, rows, x, y, _ = problem(name, torch.float64)
    flat = FlatModel(MODELS[name][0]().double().eval())
    gradients = ClippedGradients(flat, 1e9)
    torch.testing.assert_close(gradients.clipped_sum(rows, x, y), alone(flat, rows, x, y))
    assert gradients.fast


class Dropped(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer, self.last = nn.Embedding(9, 6), layer, nn.Linear(6, CLASSES)
        self.attends = isinstance(layer, nn.MultiheadAttention)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = self.layer(h, h, h) if self.attends else self.layer(h)
        return self.last((h if isinstance(h, Tensor) else h[0]).mean(1))


DROPPED = {
    "lstm": lambda: nn.LSTM(6, 6, 2, dropout=0.5, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True),
    "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True),
}


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_inside_layers_draws_for_each_example_and_keeps_the_clip(name):
    torch.manual_seed(0)
    gradients = ClippedGradients(Dropped(DROPPED[name]()), 0.2)
    assert any(map(draws_dropout, gradients.flat.module.modules()))
    rows = gradients.flat.flatten().repeat(2, 1)
    x, y = torch.ones(2, 4, 5, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long)
    torch.manual_seed(1)
    one = gradients.clipped_sum(rows, x, y)
    other = gradients.clipped_sum(rows, x, y)
    torch.manual_seed(1)
    assert gradients.fast
    assert not torch.allclose(one, other) and not torch.allclose(one[0], one[1])
    assert torch.equal(one, gradients.clipped_sum(rows, x, y))
    assert (one.norm(dim=1) <= 4 * 0.2 * (1 + 1e-5)).all()


def test_frozen_statistics_are_read_and_never_written():
    model = nn.Sequential(nn.Linear(6, 6), frozen_statistics(nn.BatchNorm1d(6), 6), nn.Linear(6, CLASSES))
    flat = FlatModel(model)
    assert flat.module[0].training and not flat.module[1].training
    gradients = ClippedGradients(flat, 0.5)
    rows, x, y = flat.flatten().repeat(2, 1), torch.randn(2, 4, 6), torch.randint(CLASSES, (2, 4))
    before = [buffer.clone() for buffer in flat.module.buffers()]
    gradients.clipped_sum(rows, x, y)
    gradients.outputs(rows, x[0])
    assert all(map(torch.equal, before, flat.module.buffers()))
    assert not flat.module[1].training


class LooksTwice(nn.Module):
    """One attention layer, used with its own keys and with other keys: its packed weights have two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x, x, x)[0]
        return self.last(self.layer(h, x.flip(1), x)[0].mean(1))


class NowhereToLook(nn.Module):
    """All keys are padding: torch gives zero without attention weights, and NaN with them."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.layer, self.last = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        padding = x[:, :, 0] > 2
        return self.last(self.layer(x, x, x, padding, self.weights)[0].mean(1) + x.mean(1))


class Hints(nn.Module):
    """Without attention weights, torch uses the hint is_causal and not the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_zeros(x.shape[1], x.shape[1])
        return self.last(self.layer(x, x, x, need_weights=False, attn_mask=mask, is_causal=True)[0].mean(1))


def test_is_causal_means_the_same_as_in_torch():
    torch.manual_seed(0)
    flat = FlatModel(Hints().double())
    rows = flat.flatten().repeat(2, 1)
    x, y = torch.randn(2, 3, 4, 6, dtype=torch.float64), torch.randint(CLASSES, (2, 3))
    gradients = ClippedGradients(flat, 1e9)
    torch.testing.assert_close(gradients.clipped_sum(rows, x, y), alone(flat, rows, x, y))
    assert gradients.fast


def test_packed_weights_used_in_two_ways_are_one_parameter():
    torch.manual_seed(0)
    flat = FlatModel(LooksTwice().double())
    rows = flat.flatten().repeat(2, 1)
    x, y = torch.randn(2, 3, 4, 6, dtype=torch.float64), torch.randint(CLASSES, (2, 3))
    gradients = ClippedGradients(flat, 1e9)
    torch.testing.assert_close(gradients.clipped_sum(rows, x, y), alone(flat, rows, x, y))
    one = ClippedGradients(flat, 1e-3).clipped_sum(rows[:1], x[:1, :1], y[:1, :1])
    assert float(one.norm()) == pytest.approx(1e-3, rel=1e-12)  # so the norm is that of the whole parameter
    assert gradients.fast


@pytest.mark.parametrize("weights", [True, False])
def test_a_record_whose_attention_mask_excludes_everything(weights):
    torch.manual_seed(0)
    flat = FlatModel(NowhereToLook(weights).double())
    rows = flat.flatten().repeat(2, 1)
    x, y = torch.randn(2, 3, 4, 6, dtype=torch.float64), torch.randint(CLASSES, (2, 3))
    x[:, :, :, 0] = -1
    x[0, 1, :, 0] = 3
    gradients = ClippedGradients(flat, 1e9)
    result, statistics = gradients.clipped_sum_and_statistics(rows, x, y)
    assert gradients.fast
    if weights:
        assert statistics.ignored.tolist() == [1, 0]
        keep = torch.tensor([0, 2])
        torch.testing.assert_close(result[0], alone(flat, rows[:1], x[:1, keep], y[:1, keep])[0])
    else:
        torch.testing.assert_close(result, alone(flat, rows, x, y))

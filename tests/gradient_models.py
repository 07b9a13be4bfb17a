"""Small models of every kind that takes the fast path, each with data for which gradients can be computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topdp.learning.models import FlatModel, cnn, linear, mlp

CLASSES = 4


class SharedTwice(nn.Module):
    """A layer that is called twice: once per vector, once per position."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(torch.tanh(self.layer(x))))
        return self.last(torch.tanh(self.layer(h.mean(1))))


class TiedLinears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 6)
        self.decode = nn.Linear(6, 6, bias=False)
        self.decode.weight = self.encode.weight
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.decode(torch.tanh(self.encode(x)))))


class Tokens(nn.Module):
    """Embedding with padding, residual blocks over a sequence, LayerNorm with and without bias."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, width, padding_idx=0)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 11)
        self.down = nn.Linear(11, width, bias=False)
        self.final = nn.LayerNorm(width, bias=False)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.embed(x.flip(1)) ** 2
        h = h + self.down(torch.relu(self.up(self.norm(h))))
        return self.last(self.final(h).mean(1))


class PositionsInBatch(nn.Module):
    """Moves positions and frames into the batch axis and back again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.GroupNorm(1, 2)
        self.linear = nn.Linear(8, 5)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.reshape(-1, 1, 2, 4)
        h = self.linear(self.norm(self.conv(frames)).reshape(-1, 8))
        return self.last(torch.tanh(h.view(x.shape[0], -1, 5)).mean(1))


def frozen_statistics(layer: nn.Module, features: int) -> nn.Module:
    """A BatchNorm as after pre-training: in evaluation mode, with its own statistics."""
    layer.running_mean.copy_(torch.linspace(-0.5, 0.5, features))
    layer.running_var.copy_(torch.linspace(0.5, 2, features))
    return layer.eval()


def batch_norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        frozen_statistics(nn.BatchNorm2d(4), 4),
        nn.ReLU(),
        nn.Flatten(2),
        frozen_statistics(nn.BatchNorm1d(4), 4),
        nn.Flatten(),
        nn.Linear(64, 6),
        frozen_statistics(nn.BatchNorm1d(6), 6),
        nn.Linear(6, CLASSES),
    )


def frozen_backbone() -> nn.Module:
    """A backbone of which only the scales and shifts of the last BatchNorm are trained."""
    backbone = nn.Sequential(
        nn.Conv2d(2, 4, 3), frozen_statistics(nn.BatchNorm2d(4), 4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        frozen_statistics(nn.BatchNorm2d(4), 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    backbone.requires_grad_(False)
    backbone[4].requires_grad_(True)
    return nn.Sequential(backbone, nn.Linear(4, CLASSES))


def batch_norm_3d() -> nn.Module:
    return nn.Sequential(
        frozen_statistics(nn.BatchNorm3d(2), 2), nn.Conv3d(2, 3, 2), nn.Flatten(), nn.Linear(24, CLASSES)
    )


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 5, 3, stride=2, padding=1), nn.GELU(), nn.Conv1d(5, 4, 2, dilation=2, bias=False),
        nn.InstanceNorm1d(4, affine=True), nn.Tanh(), nn.Conv1d(4, 4, 3, padding="same", groups=2),
        nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip


def wide_conv1d() -> nn.Module:
    """More channels than positions: norms by Gram matrices."""
    return nn.Sequential(
        nn.Conv1d(16, 48, 2), nn.Tanh(), nn.Conv1d(48, 64, 2), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 3, (2, 3, 2), stride=(1, 2, 1), padding=(1, 0, 1), padding_mode="replicate"),
        nn.InstanceNorm3d(3, affine=True), nn.Tanh(), nn.Conv3d(3, 6, 2, groups=3, bias=False), nn.Tanh(),
        nn.Conv3d(6, 30, (2, 1, 2)), nn.Flatten(), nn.Linear(240, CLASSES),
    )  # fmt: skip


def instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    )


class Attends(nn.Module):
    """Self-attention with a mask, then cross-attention, in any layout."""

    def __init__(self, batch_first: bool, bias: bool = True, **sizes: int) -> None:
        super().__init__()
        self.first = batch_first
        self.own = nn.MultiheadAttention(6, 2, batch_first=batch_first, bias=bias)
        self.project = nn.Linear(6, 5)
        self.other = nn.MultiheadAttention(6, 3, batch_first=batch_first, **sizes)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.first else x.transpose(0, 1)
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        h = h + self.own(h, h, h, attn_mask=mask, need_weights=False)[0]
        padding = x[:, :, 0] > 1.5
        padding = padding & (torch.arange(length, device=x.device) > 0)
        keys = self.project(h) if self.other.kdim == 5 else h.flip(0 if not self.first else 1)
        h, weights = self.other(h, keys, keys if self.other.vdim == 5 else h, key_padding_mask=padding)
        h = h if self.first else h.transpose(0, 1)
        return self.last(h.mean(1)) + weights.square().sum((1, 2))[:, None] * torch.arange(
            CLASSES, device=x.device
        )


class Encodes(nn.Module):
    """A small text transformer; positions and a class token are parameters of the model itself."""

    def __init__(self, batch_first: bool = True, norm_first: bool = False, activation: str = "relu") -> None:
        super().__init__()
        self.first = batch_first
        self.embed = nn.Embedding(9, 6, padding_idx=0)
        self.positions = nn.Parameter(0.1 * torch.randn(1, 8, 6))
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, 6))
        layer = nn.TransformerEncoderLayer(
            6, 2, 10, 0.0, activation, batch_first=batch_first, norm_first=norm_first
        )
        self.encode = nn.TransformerEncoder(layer, 2, nn.LayerNorm(6), enable_nested_tensor=False)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = (
            torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1)
            + self.positions[:, : x.shape[1] + 1]
        )
        padding = nn.functional.pad(x == 0, (1, 0))
        h = h if self.first else h.transpose(0, 1)
        h = self.encode(h, src_key_padding_mask=padding)
        return self.last(h[:, 0] if self.first else h[0])


class Decodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.layer = nn.TransformerDecoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=True)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, h.dtype)
        return self.last(self.layer(h, h.flip(1), tgt_mask=mask, tgt_is_causal=True).mean(1))


class Reads(nn.Module):
    """A stack of recurrent layers of any kind."""

    def __init__(self, kind: type[nn.RNNBase], whole: bool = True, **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.read = kind(5, 4, **options)
        self.whole = whole
        width = (self.read.proj_size or 4) * (2 if self.read.bidirectional else 1)
        self.again = nn.GRU(width, 3, batch_first=self.read.batch_first)
        self.last = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h if self.read.batch_first else h.transpose(0, 1)
        outputs, state = self.read(h)
        state = state if isinstance(state, Tensor) else state[1]
        start = 0.3 * state.flatten(2).mean(2, keepdim=True)[:1].expand(-1, -1, 3).contiguous()
        outputs, _ = self.again(outputs, start)
        return self.last(outputs[:, -1] if self.read.batch_first else outputs[-1])


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.LSTMCell(6, 5),
            nn.GRUCell(5, 4),
            nn.RNNCell(4, 6, nonlinearity="relu"),
        )
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        one, two = None, None
        for step in x.unbind(1):
            one = self.first(step, one)
            two = self.second(one[0], two)
        return self.last(self.third(two))


class TiedToEmbedding(nn.Module):
    """The same table reads tokens and scores them, at every position."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, width, padding_idx=0)
        self.norm = nn.RMSNorm(width)
        self.last = nn.Linear(width, 9)
        self.last.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(self.norm(self.embed(x)))).mean(1)[:, :CLASSES]


class ReadsParameters(nn.Module):
    """Parameters of all shapes that the model reads itself; one is read twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.scale, self.shift = nn.Parameter(torch.ones(6)), nn.Parameter(torch.tensor(0.5))
        self.start = nn.Parameter(torch.randn(1, 1, 4))
        self.unused = nn.Parameter(torch.ones(3))
        self.read = nn.RNN(6, 4, batch_first=True)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x * self.scale) * self.scale + self.shift
        outputs, _ = self.read(h, self.start.expand(-1, len(x), -1).contiguous())
        return self.last(outputs[:, -1])


def frozen_in_part() -> nn.Module:
    """A model in which only biases and norms are trained."""
    model = nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )
    for at in (0, 3):
        model[at].weight.requires_grad_(False)
    return model


def group_norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.GroupNorm(3, 6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(96, CLASSES, bias=False),
    )


def odd_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), groups=2),
        nn.Tanh(),
        nn.Conv2d(4, 4, (2, 3), padding="same", dilation=(1, 2), padding_mode="circular"),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, padding="valid", groups=4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def wide_convolution() -> nn.Module:
    """More channels than positions: norms by Gram matrices, one of them grouped."""
    return nn.Sequential(
        nn.Conv2d(16, 48, 2), nn.Tanh(), nn.Conv2d(48, 96, 2, groups=2), nn.Flatten(), nn.Linear(96, CLASSES)
    )


def deep_convolutions() -> nn.Module:
    """Convolutions with many channels, and pools of all kinds."""
    return nn.Sequential(
        nn.Conv2d(2, 10, 3, padding=1),
        nn.MaxPool2d((2, 3)),
        nn.Conv2d(10, 18, 3, padding=1),
        nn.MaxPool2d(3, 2, padding=1),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(36, CLASSES),
    )


def reads(*shape: int) -> tuple[int, ...]:
    return shape


MODELS = {
    "mlp": (lambda: mlp(12, 7, CLASSES), reads(12)),
    "linear alone": (lambda: nn.Linear(5, CLASSES), reads(5)),
    "linear from zero": (lambda: linear(30, CLASSES), reads(2, 3, 5)),
    "wide layers": (
        lambda: nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 17), nn.Linear(17, 18, bias=False)),
        reads(4),
    ),
    "cnn": (lambda: cnn(2, 16, CLASSES), reads(2, 16, 16)),
    "shared layer": (SharedTwice, reads(3, 6)),
    "tied linears": (TiedLinears, reads(6)),
    "tokens": (Tokens, "tokens"),
    "wide tokens": (lambda: Tokens(64), "tokens"),
    "group norm": (group_norm_cnn, reads(2, 10, 10)),
    "odd convolutions": (odd_convolutions, reads(2, 10, 8)),
    "wide convolution": (wide_convolution, reads(16, 3, 3)),
    "deep convolutions": (deep_convolutions, reads(2, 17, 19)),
    "positions in batch": (PositionsInBatch, reads(3, 8)),
    "conv1d": (conv1d, reads(3, 10)),
    "wide conv1d": (wide_conv1d, reads(16, 3)),
    "conv3d": (conv3d, reads(2, 3, 7, 3)),
    "instance norm": (instance_norm, reads(2, 6, 6)),
    "rms norm": (
        lambda: nn.Sequential(
            nn.RMSNorm((3, 4)), nn.Flatten(), nn.Linear(12, 6), nn.RMSNorm(6, eps=1e-3), nn.Linear(6, CLASSES)
        ),
        reads(3, 4),
    ),
    "batch norm": (batch_norm_cnn, reads(2, 6, 6)),
    "batch norm 3d": (batch_norm_3d, reads(2, 3, 3, 3)),
    "frozen backbone": (frozen_backbone, reads(2, 8, 8)),
    "frozen in part": (frozen_in_part, reads(6)),
    "attention": (lambda: Attends(True), reads(4, 6)),
    "attention, sequence first": (lambda: Attends(False, bias=False), reads(4, 6)),
    "attention, own widths": (lambda: Attends(True, kdim=5, vdim=5), reads(4, 6)),
    "attention, keys only": (lambda: Attends(False, kdim=5), reads(4, 6)),
    "encoder": (Encodes, "tokens"),
    "encoder, sequence first": (lambda: Encodes(False, True, "gelu"), "tokens"),
    "decoder": (Decodes, "tokens"),
    "rnn": (lambda: Reads(nn.RNN, nonlinearity="relu"), "tokens"),
    "gru": (lambda: Reads(nn.GRU, num_layers=2, bidirectional=True, batch_first=True), "tokens"),
    "lstm": (lambda: Reads(nn.LSTM, num_layers=2, bidirectional=True), "tokens"),
    "lstm with projections": (lambda: Reads(nn.LSTM, proj_size=3, bias=False, batch_first=True), "tokens"),
    "cells": (Cells, reads(3, 6)),
    "tied to embedding": (TiedToEmbedding, "tokens"),
    "widely tied to embedding": (lambda: TiedToEmbedding(64), "tokens"),
    "parameters": (ReadsParameters, reads(3, 6)),
    "layer norm of two axes": (
        lambda: nn.Sequential(nn.LayerNorm((3, 4)), nn.Flatten(), nn.Linear(12, CLASSES)),
        reads(3, 4),
    ),
}


def problem(name: str, dtype: torch.dtype, agents: int = 3, examples: int = 5):
    """A model, one row per agent, and inputs, targets and weights with some padding."""
    make, shape = MODELS[name]
    torch.manual_seed(len(name))
    flat = FlatModel(make().to(dtype))
    rows = flat.flatten() + 0.1 * torch.randn(agents, flat.dimension, dtype=dtype)
    if shape == "tokens":
        inputs = torch.randint(9, (agents, examples, 7))
    else:
        inputs = torch.randn(agents, examples, *shape, dtype=dtype) * torch.rand(
            agents, examples, dtype=dtype
        ).view(agents, examples, *(1 for _ in shape))
    targets = torch.randint(CLASSES, (agents, examples))
    weights = torch.rand(agents, examples, dtype=dtype)
    weights[0, 1] = weights[-1, -1] = 0
    return flat, rows, inputs, targets, weights


class OwnMatrix(nn.Module):
    """A user's layer that holds most parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.eye(6) + 0.1 * torch.ones(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.factor


def slow_model() -> nn.Module:
    return nn.Sequential(OwnMatrix(), nn.Dropout(0.0), nn.Linear(6, CLASSES))

"""Small models of every kind that has a fast path, each with a problem to take gradients of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topdp.learning.models import FlatModel, cnn, linear, mlp

CLASSES = 4


class SharedTwice(nn.Module):
    """A layer that is called twice, once per vector and once per position."""

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
    """Moves positions and frames into the batch axis and back."""

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
    """Many channels into many, and pools of all kinds."""
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


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

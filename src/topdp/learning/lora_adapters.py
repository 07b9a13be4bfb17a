"""LoRA adapters: a frozen model in which each linear layer learns a low-rank change.

The method is that of Hu et al. (2022). Only adapters and explicitly named layers are trained, noised, mixed
and sent. For a large model that means far less noise and far less traffic. Layers inside
`nn.MultiheadAttention` get no adapters, because it reads their weights without calling them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor, nn

from topdp.errors import InputError
from topdp.learning.models import replace_layers


@final
class LoraLinear(nn.Module):
    """y = W x + b + scale · B A x, where only A and B are trained. B starts at zero, so the output is
    unchanged at first.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Linear(base.in_features, rank, bias=False, **like)
        self.up = nn.Linear(rank, base.out_features, bias=False, **like)
        nn.init.zeros_(self.up.weight)
        self.scale = scale
        self.in_features, self.out_features = base.in_features, base.out_features

    def forward(self, x: Tensor) -> Tensor:
        # Hu et al. 2022, Eq. (3): h = W₀x + BAx
        return cast(Tensor, self.base(x) + self.scale * self.up(self.down(x)))

    @property
    def weight(self) -> Tensor:
        """The effective weight, for code that reads the weight of a linear layer."""
        return self.base.weight + self.scale * self.up.weight @ self.down.weight

    @property
    def bias(self) -> Tensor | None:
        return cast(Tensor | None, self.base.bias)


def lora(model: nn.Module, rank: int = 4, scale: float = 1.0, train: Sequence[str] = ()) -> nn.Module:
    """Return a copy of `model` with adapters in its linear layers and everything else frozen.

    `train` names layers of the model that are trained in full, for example a new head. They get no adapters.

    >>> from torch import nn
    >>> model = lora(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)), rank=2, train=["2"])
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['0.down.weight', '0.up.weight', '2.weight', '2.bias']
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise InputError(f"Expected a rank of at least 1, got {rank!r}.")
    model = copy.deepcopy(model).requires_grad_(False)
    layers = dict(model.named_modules())
    missing = [name for name in train if name not in layers or not name]
    if missing:
        raise InputError(
            f"Expected names of layers to train, got {missing}. Known: {', '.join(layers)[:300]}."
        )
    for name in train:
        layers[name].requires_grad_(True)
    excluded = [*train, *(path for path, layer in layers.items() if isinstance(layer, nn.MultiheadAttention))]
    linear_layers = [
        layer
        for path, layer in layers.items()
        if type(layer) is nn.Linear
        and not any(path == name or path.startswith(f"{name}.") or name == "" for name in excluded)
    ]
    if not linear_layers:
        raise InputError("Expected a model with linear layers for adapters, got none.")
    adapted = {id(layer): LoraLinear(layer, rank, scale) for layer in linear_layers}
    return replace_layers(model, adapted)


def merged(model: nn.Module) -> nn.Module:
    """Return a copy in which the adapters are merged into the weights: a model of the kind that was passed to
    `lora`.
    """
    model = copy.deepcopy(model)
    plain = {}
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            with torch.no_grad():
                layer.base.weight.copy_(layer.weight)
            plain[id(layer)] = layer.base
    return replace_layers(model, plain)

"""LoRA: a frozen model in which each linear layer learns a change of low rank (Hu et al. 2022).

Only adapters, and layers that are named, are trained, noised, mixed and sent: for a large model that is far
less noise, and far less to send. Layers inside of `nn.MultiheadAttention` have no adapters: it reads their
weights past them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor, nn

from topdp.errors import InputError


@final
class LoraLinear(nn.Module):
    """y = W x + b + scale · B A x, where A and B alone are trained. B begins at zero: nothing changes yet."""

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
        """For code that reads the weight of a linear layer."""
        return self.base.weight + self.scale * self.up.weight @ self.down.weight

    @property
    def bias(self) -> Tensor | None:
        return cast(Tensor | None, self.base.bias)


def lora(model: nn.Module, rank: int = 4, scale: float = 1.0, train: Sequence[str] = ()) -> nn.Module:
    """A copy of `model` with adapters in its linear layers, and everything else frozen.

    `train`: layers, by their names in the model, that are trained whole; a new head, for example. They get
    no adapters.

    >>> from torch import nn
    >>> model = lora(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)), rank=2, train=["2"])
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['0.down.weight', '0.up.weight', '2.weight', '2.bias']
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise InputError(f"Expected a rank of at least 1, got {rank!r}.")
    model = copy.deepcopy(model).requires_grad_(False)
    known = dict(model.named_modules())
    missing = [name for name in train if name not in known or not name]
    if missing:
        raise InputError(
            f"Expected names of layers to train, got {missing}. Known: {', '.join(known)[:300]}."
        )
    for name in train:
        known[name].requires_grad_(True)
    spared = [*train, *(path for path, layer in known.items() if isinstance(layer, nn.MultiheadAttention))]
    found = [
        (path, layer)
        for path, layer in known.items()
        if type(layer) is nn.Linear
        and not any(path == name or path.startswith(f"{name}.") or name == "" for name in spared)
    ]
    if not found:
        raise InputError("Expected a model with linear layers for adapters, got none.")
    adapted: dict[int, LoraLinear] = {id(layer): LoraLinear(layer, rank, scale) for _, layer in found}
    if id(model) in adapted:
        return adapted[id(model)]
    for path, layer in list(model.named_modules(remove_duplicate=False)):
        if id(layer) in adapted:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, adapted[id(layer)])
    return model


def merged(model: nn.Module) -> nn.Module:
    """A copy in which adapters have become part of the weights: a model of the kind that `lora` was given."""
    model = copy.deepcopy(model)
    if isinstance(model, LoraLinear):
        return _merged_linear(model)
    for path, layer in list(model.named_modules(remove_duplicate=False)):
        if isinstance(layer, LoraLinear):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, _merged_linear(layer))
    return model


def _merged_linear(layer: LoraLinear) -> nn.Linear:
    plain = layer.base
    with torch.no_grad():
        plain.weight.copy_(layer.weight)
    return plain

"""Pre-trained models: adapters in frozen layers (LoRA), and the frozen backbone before the trained part.

With adapters, each linear layer of a frozen model learns a low-rank change (Hu et al. 2022). Only adapters
and explicitly named layers are trained, noised, mixed and sent. For a large model, this means far less noise
and far less traffic. Layers inside `nn.MultiheadAttention` get no adapters, because `nn.MultiheadAttention`
reads their weights without calling them.

The output of a frozen backbone for a record never changes, so it can be computed once
(`data/features/user_features`). This module only splits models and does not run them. A model with adapters
inside frozen layers has no frozen backbone that could be split off.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from topdp.errors import InputError
from topdp.learning.gradients.tape import has_user_hooks
from topdp.learning.models import replace_layers


@final
class LoraLinear(nn.Module):
    """A linear layer with an adapter: y = W x + b + scale · B A x, where only A and B are trained.

    B starts at zero, so the adapter does not change the output at first.
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
    """Return a copy of `model` with adapters in its linear layers and all other parameters frozen.

    `train` names layers of the model that are trained in full, for example a new head. They get no adapters.
    Raise InputError if `train` names an unknown layer, or if no linear layer can get an adapter.

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
            f"Expected names of layers to train, got {missing}. The model has {', '.join(layers)[:300]}."
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
        raise InputError("Expected linear layers for adapters outside `train` and attention, got none.")
    adapted = {id(layer): LoraLinear(layer, rank, scale) for layer in linear_layers}
    return replace_layers(model, adapted)


def merged(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in which the adapters are merged into the weights of their linear layers.

    The copy has the same layers as the model that was passed to `lora`.
    """
    model = copy.deepcopy(model)
    plain = {}
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            with torch.no_grad():
                layer.base.weight.copy_(layer.weight)
            plain[id(layer)] = layer.base
    return replace_layers(model, plain)


def split_backbone(model: nn.Module) -> tuple[nn.Sequential, nn.Sequential] | None:
    """Return the two parts (frozen, trained) of a model, which are run one after the other.

    Return None if the model cannot be split, or if the frozen part has no weights, because a split would then
    save nothing. Only a sequential model can be split: `nn.Sequential(backbone, head)`, also with nested
    `Sequential`s. None of the weights of the frozen part is trained, and it draws no random numbers in its
    current mode.

    >>> body = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).requires_grad_(False)
    >>> frozen, trained = split_backbone(nn.Sequential(body, nn.Linear(8, 2)))
    >>> len(frozen), trained
    (2, Sequential(
      (0): Linear(in_features=8, out_features=2, bias=True)
    ))
    """
    layers = _sequential_layers(model)
    first_trained = next(
        (at for at, layer in enumerate(layers) if _is_trained(layer) or _may_draw(layer)), len(layers)
    )
    frozen, trained = layers[:first_trained], layers[first_trained:]
    if not trained or not any(True for layer in frozen for _ in layer.parameters()):
        return None
    return nn.Sequential(*frozen), nn.Sequential(*trained)


def _sequential_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that a sequential model runs one after the other.

    A model with hooks, or of another kind, counts as one layer.
    """
    if type(model) is not nn.Sequential or has_user_hooks(model):
        return [model]
    return [layer for part in model for layer in _sequential_layers(part)]


def _is_trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters())


def _may_draw(layer: nn.Module) -> bool:
    """Return whether the layer may draw random numbers.

    A layer that does not belong to torch may always do so, unless it is in evaluation mode.
    """
    for inner in layer.modules():
        of_torch = type(inner).__module__.startswith("torch.nn.modules.")
        random = isinstance(inner, _DropoutNd | nn.RReLU) or getattr(inner, "dropout", 0) != 0
        if inner.training and (random or not of_torch or "Fractional" in type(inner).__name__):
            return True
    return False

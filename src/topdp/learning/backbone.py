"""Split a model into a frozen backbone and the trained part after it.

The output of frozen layers for a record never changes, so it can be computed once
(`data/features/user_features`). This module only splits; it runs no model. A model with adapters inside
frozen layers (`lora_adapters`) has nothing to split off.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from topdp.learning.gradients.tape import has_user_hooks


def split_backbone(model: nn.Module) -> tuple[nn.Sequential, nn.Sequential] | None:
    """Return (frozen, trained), to be run one after the other; None if the model has no such form or nothing
    would be gained.

    Only a sequential model can be split: `nn.Sequential(backbone, head)`, also with nested `Sequential`s. The
    frozen part must have weights, none of them trained, and must not draw random numbers in its current mode.

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
    """Return the layers that a sequential model runs one after the other. A model with hooks counts as one
    layer.
    """
    if type(model) is not nn.Sequential or has_user_hooks(model):
        return [model]
    return [layer for part in model for layer in _sequential_layers(part)]


def _is_trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters())


def _may_draw(layer: nn.Module) -> bool:
    """Whether the layer may draw random numbers. Layers from outside torch may, unless in evaluation mode."""
    for inner in layer.modules():
        of_torch = type(inner).__module__.startswith("torch.nn.modules.")
        random = isinstance(inner, _DropoutNd | nn.RReLU) or getattr(inner, "dropout", 0) != 0
        if inner.training and (random or not of_torch or "Fractional" in type(inner).__name__):
            return True
    return False

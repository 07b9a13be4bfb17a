"""Layers that are known to treat the examples of a batch one by one, for all values.

A model of only such layers runs directly on a folded batch, without `isolated_vmap`. A layer is listed only
if this holds for all of its settings, or for those checked here. A layer that is not listed only loses some
speed.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module

from topdp.learning.gradients.layer_rules import LAYER_RULES
from topdp.learning.gradients.tape import has_user_hooks

# They work number by number, or window by window within an example.
STATELESS_LAYERS: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.Dropout,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softsign, nn.Tanhshrink,
    nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d,
)  # fmt: skip


def consists_of_known_layers(module: nn.Module) -> bool:
    """Whether `module` is a sequence of known layers with all parameters trained and no hooks.

    >>> consists_of_known_layers(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()))
    True
    >>> consists_of_known_layers(nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)))
    False
    """
    return all(_is_known(layer) for layer in module.modules())


def has_no_global_hooks() -> bool:
    """Whether there are no hooks on all modules of the process: they would be user code in every layer."""
    return not torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]


def _is_known(layer: nn.Module) -> bool:
    if has_user_hooks(layer):
        return False
    if type(layer) in LAYER_RULES:
        return all(parameter.requires_grad for parameter in layer.parameters())
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) is nn.Sequential or (
        type(layer) in STATELESS_LAYERS and not any(layer.buffers()) and not any(layer.parameters())
    )

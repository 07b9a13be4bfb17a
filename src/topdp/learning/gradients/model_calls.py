"""Calls of a model as torch would make them, with clearer errors.

The first call of a model and evaluations use this module. It does not affect privacy, because the errors
depend on shapes and types, never on the values of a record.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from topdp.errors import InputError

INPUT_SIZES: tuple[tuple[tuple[type[nn.Module], ...], str, int], ...] = (
    ((nn.Linear,), "in_features", -1),
    ((nn.RNNBase, nn.RNNCellBase), "input_size", -1),
    ((nn.MultiheadAttention,), "embed_dim", -1),
    ((nn.LayerNorm, nn.RMSNorm), "normalized_shape", -1),
    ((_ConvNd,), "in_channels", 1),
    ((nn.GroupNorm,), "num_channels", 1),
    ((_BatchNorm, _InstanceNorm), "num_features", 1),
)
"""(types of layers, the attribute that states the size of their input, the input axis with this size)"""
AXIS_CONTENTS = {-1: "numbers in the last axis", 1: "channels in the second axis"}


def call_model(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the output of `module` with these parameters for a batch `x`.

    If a layer received an input that it cannot take, raise an InputError that names the layer. Raise any
    other error of the model unchanged. Raise InputError if the output is not one tensor, as a loss needs.
    """
    try:
        outputs = functional_call(module, dict(parameters), (x,))
    except Exception as error:
        reason = _explain_failure(module, parameters, x)
        if reason is None:
            raise
        raise InputError(reason) from error
    if isinstance(outputs, Tensor):
        return outputs
    what = f"a {type(outputs).__name__}"
    if isinstance(outputs, Mapping):
        what += f" with the keys {', '.join(map(repr, outputs))}"
    elif isinstance(outputs, tuple | list):
        what += f" of {len(outputs)} ({', '.join(type(part).__name__ for part in outputs)})"
    elif hasattr(outputs, "logits"):
        what += " with .logits"
    raise InputError(
        f"Expected a model that returns one tensor, for example a score for each class, got {what}. Wrap the "
        'model in an nn.Module whose forward returns the part to learn from, such as outputs["logits"], '
        "outputs.logits or outputs[0]."
    )


def disable_inference_kernels(module: nn.Module) -> nn.Module:
    """Disable the inference kernels of torch's encoders, and return `module`, which is changed.

    These kernels read weights without calling the layers.
    """
    for layer in module.modules():
        if isinstance(layer, nn.TransformerEncoder):
            # With nested tensors, results in evaluation may also have another length than in training.
            layer.use_nested_tensor = False
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0
    return module


def _explain_failure(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> str | None:
    """Return a message that names the layer that received an input that it cannot take.

    Return None if the failure has another cause.
    """
    module = copy.deepcopy(module)
    entered: list[tuple[str, nn.Module, tuple[Any, ...]]] = []
    for path, layer in module.named_modules():
        layer.register_forward_pre_hook(
            lambda layer, args, path=path: entered.append((path, layer, args)), prepend=True
        )
        layer.register_forward_hook(lambda *_: entered.pop() and None)
    try:
        functional_call(module, dict(parameters), (x,))
    except Exception:  # the same error as in the first call
        for path, layer, args in reversed(entered):
            if args and isinstance(args[0], Tensor):
                reason = _mismatch(layer, args[0])
                if reason is not None:
                    where = f"layer {path!r}" if path else "the model"
                    shape = f"{tuple(args[0].shape)} {args[0].dtype}".replace("torch.", "")
                    return (
                        f"Expected for {where} ({type(layer).__name__}) {reason[0]}, got an input of shape "
                        f"{shape}. {reason[1]} The model was given a batch of shape {tuple(x.shape)}."
                    )
    return None


def _mismatch(layer: nn.Module, x: Tensor) -> tuple[str, str] | None:
    """Return (what the layer accepts, what to do) if the input `x` does not fit; None if it fits."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if not x.is_floating_point():
            return None
        expected = f"whole numbers from 0 to {layer.num_embeddings - 1} (int64)"
        return expected, "Pass token ids: inputs.long(), Shards.from_arrays(..., dtype=torch.int64)."
    parameter = next(layer.parameters(recurse=False), None)
    if parameter is not None and x.dtype != parameter.dtype:
        kind = str(parameter.dtype)
        return f"numbers of type {kind}", f"Convert the inputs, for example with inputs.to({kind})."
    for kinds, attribute, axis in INPUT_SIZES:
        if isinstance(layer, kinds):
            size = getattr(layer, attribute)
            size = size[-1] if isinstance(size, tuple) else size
            if x.dim() <= max(axis, 0) or x.shape[axis] != size:
                return f"{size} {AXIS_CONTENTS[axis]}", "Change the layer, or its input."
            if isinstance(layer, _ConvNd) and x.dim() != len(layer.kernel_size) + 2:
                return (
                    f"an input [batch, {size}, ...] of {len(layer.kernel_size) + 2} axes",
                    "Reshape its input.",
                )
    return None

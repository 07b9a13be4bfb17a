"""A module in which every agent has its own weights, run on one folded batch; and which layers are known.

`FoldedModule` is a copy of a module in which a layer rule without weights replaces each supported layer. The
batch of all agents is folded into one leading axis [n·b, ...], agent by agent. Stateless layers and functions
run on this batch unchanged (or in `isolated_vmap`, where each example is a batch of one). Each layer rule
unfolds the batch, applies the agents' weights (views of their rows), and records its input and output.
`ghost_norms` makes contributions from these.

A model of only known layers runs directly on a folded batch, without `isolated_vmap`, because known layers
treat the examples of a batch one by one, for all values. A layer counts as known only if this holds for all
of its settings, or if this module checks its settings. A model with other layers is only slower.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, final

from torch import nn
from torch.nn.modules import module as torch_module

from topdp.learning.gradients.attention import AttentionRule
from topdp.learning.gradients.convolutions import ConvolutionRule, MaxPoolRule, has_disjoint_windows
from topdp.learning.gradients.linear_layers import EmbeddingRule, LinearRule
from topdp.learning.gradients.model_calls import disable_inference_kernels
from topdp.learning.gradients.normalisation import (
    BatchNormRule,
    GroupNormRule,
    InstanceNormRule,
    LastAxesNormRule,
)
from topdp.learning.gradients.recurrent import CellRule, RecurrentRule
from topdp.learning.gradients.tape import NotFoldedError, Tape, has_user_hooks
from topdp.learning.models import FlatModel, Slot, replace_layers

RuleFactory = Callable[[Any, Tape, Mapping[str, Slot]], nn.Module]
"""(layer, tape, slots of the layer's parameters by their names in the layer) -> the rule of the layer."""

# Layers whose rules treat only the first axis as examples, whatever layers precede and follow them.
LAYER_RULES: dict[type[nn.Module], RuleFactory] = {
    nn.Linear: LinearRule,
    nn.Conv1d: ConvolutionRule,
    nn.Conv2d: ConvolutionRule,
    nn.Conv3d: ConvolutionRule,
    nn.Embedding: EmbeddingRule,
    nn.LayerNorm: LastAxesNormRule,
    nn.RMSNorm: LastAxesNormRule,
    nn.GroupNorm: GroupNormRule,
    nn.InstanceNorm1d: InstanceNormRule,
    nn.InstanceNorm2d: InstanceNormRule,
    nn.InstanceNorm3d: InstanceNormRule,
    nn.BatchNorm1d: BatchNormRule,
    nn.BatchNorm2d: BatchNormRule,
    nn.BatchNorm3d: BatchNormRule,
}
# Layers that are composed of other layers, have the examples in another axis, or return several values.
COMPOSED_LAYER_RULES: dict[type[nn.Module], RuleFactory] = {
    nn.MultiheadAttention: AttentionRule,
    nn.RNN: RecurrentRule,
    nn.GRU: RecurrentRule,
    nn.LSTM: RecurrentRule,
    nn.RNNCell: CellRule,
    nn.GRUCell: CellRule,
    nn.LSTMCell: CellRule,
}


@final
class FoldedModule:
    """A copy of a module with layer rules in place of its layers.

    `read` lists the parameters of layers without a rule. The module reads these parameters itself, and
    `Tape.copy_per_example` handles them. This is no faster than the slow path. Raises NotFoldedError if these
    parameters are more than half of the model.
    """

    def __init__(self, flat: FlatModel, tape: Tape) -> None:
        self.module = disable_inference_kernels(copy.deepcopy(flat.module))
        self.read: list[Slot] = []
        slots = {slot.name: slot for slot in flat.slots}
        self._slot_of = {id(p): slots[name] for name, p in self.module.named_parameters() if p.requires_grad}
        self._tape = tape
        self._reasons: list[str] = []
        self.module = replace_layers(self.module, self._make_rules())
        if 2 * sum(slot.stop - slot.start for slot in self.read) > flat.dimension:
            raise NotFoldedError(self._reasons[0])

    def _make_rules(self) -> dict[int, nn.Module]:
        rules: dict[int, nn.Module] = {}
        inner_layers: set[int] = set()  # ids of the layers inside a layer that has a rule
        for path, layer in self.module.named_modules():
            if id(layer) in inner_layers:
                continue
            if hasattr(layer, "inplace"):
                layer.inplace = False  # rules keep a reference to their outputs
            # A layer that is not trained is an ordinary function, which runs on the folded batch unchanged.
            if any(parameter.requires_grad for parameter in _rule_parameters(layer).values()):
                try:
                    rules[id(layer)] = self._make_rule(path, layer)
                    inner_layers.update(id(part) for part in layer.modules())
                except NotFoldedError as error:
                    self._reasons.append(str(error))
                    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                        raise  # torch ignores padding_idx if each example has its own weight
                    parameters = (p for p in layer.parameters(recurse=False) if p.requires_grad)
                    self.read += [
                        slot for slot in (self._slot_of[id(p)] for p in parameters) if slot not in self.read
                    ]
            elif has_disjoint_windows(layer):
                layer.__class__ = MaxPoolRule  # keeps the attributes that a model may read
                layer.tape, layer.path = self._tape, path
        return rules

    def _make_rule(self, path: str, layer: nn.Module) -> nn.Module:
        name = f"{path or 'the module itself'} ({type(layer).__name__})"
        try:
            _expect_rule(layer)
            slots = {own: self._slot_of[id(parameter)] for own, parameter in layer.named_parameters()}
            rule = (LAYER_RULES | COMPOSED_LAYER_RULES)[type(layer)](layer, self._tape, slots)
        except NotFoldedError as error:
            raise NotFoldedError(f"{name}: {error}") from error
        for part in rule.modules():
            vars(part)["path"] = name
        return rule.train(layer.training)


def _rule_parameters(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the layer's own parameters; for a composed layer, also the parameters of its inner layers, which
    the rule replaces.
    """
    return dict(layer.named_parameters(recurse=type(layer) in COMPOSED_LAYER_RULES))


def _expect_rule(layer: nn.Module) -> None:
    """Raise NotFoldedError with the reason if no rule applies to a layer."""
    own = _rule_parameters(layer)
    if type(layer) not in LAYER_RULES and type(layer) not in COMPOSED_LAYER_RULES:
        raise NotFoldedError("no fast form for parameters of this layer")
    if not all(parameter.requires_grad for parameter in own.values()):
        raise NotFoldedError("some of its parameters are trained and some are not")
    if any(has_user_hooks(part) for part in layer.modules()):
        raise NotFoldedError("it has hooks")
    if type(layer) in LAYER_RULES:
        buffers = {name for name, _ in layer.named_buffers(recurse=False)} - BATCH_NORM_BUFFERS
        if "weight" not in own or own.keys() - {"weight", "bias"} or buffers or any(layer.children()):
            raise NotFoldedError("parameters, buffers or children beyond weight and bias")
    if isinstance(layer, nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        raise NotFoldedError("max_norm, scale_grad_by_freq and sparse have no fast form")


BATCH_NORM_BUFFERS = {"running_mean", "running_var", "num_batches_tracked"}  # of BatchNorm in evaluation mode


# Layers that work number by number, or window by window within an example.
STATELESS_LAYERS: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.Dropout,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softsign, nn.Tanhshrink,
    nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d,
)  # fmt: skip


def consists_of_known_layers(module: nn.Module) -> bool:
    """Return whether `module` is a sequence of known layers with all parameters trained and no hooks.

    >>> consists_of_known_layers(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()))
    True
    >>> consists_of_known_layers(nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)))
    False
    """
    return all(_is_known(layer) for layer in module.modules())


def has_no_global_hooks() -> bool:
    """Return whether no hook applies to all modules of the process.

    Such a hook would be user code in every layer.
    """
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

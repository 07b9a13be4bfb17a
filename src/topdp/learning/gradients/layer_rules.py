"""A module in which every agent has its own weights, run on one folded batch.

The skeleton of a module is a copy in which each supported layer is replaced by a twin without weights. The
batch of all agents is folded into one leading axis [n·b, ...], agent by agent; stateless layers and functions
run on it unchanged (or in `apart`, each example a batch of one), and each twin unfolds it, applies the
agents' weights (views of their rows) and records its input and output. What they recorded becomes `ghost`
contributions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, final

from torch import nn

from topdp.learning.gradients.attention import AttentionTwin
from topdp.learning.gradients.convolutions import ConvolutionTwin, MaxPool, has_windows_side_by_side
from topdp.learning.gradients.linear_layers import EmbeddingTwin, LinearTwin
from topdp.learning.gradients.model_calls import without_kernels_for_inference
from topdp.learning.gradients.normalisation import (
    BatchNormTwin,
    GroupNormTwin,
    InstanceNormTwin,
    LayerNormTwin,
    RMSNormTwin,
)
from topdp.learning.gradients.recurrent import CellTwin, RecurrentTwin
from topdp.learning.gradients.tape import NotFoldedError, Tape, altered
from topdp.learning.models import FlatModel, Slot

Maker = Callable[[Any, Tape, Mapping[str, Slot]], nn.Module]
"""(layer, tape, the slots of its parameters by their names in it) -> its twin."""

# Layers whose twins keep to one axis of examples, the first, whatever is called before and after.
TWINS: dict[type[nn.Module], Maker] = {
    nn.Linear: LinearTwin,
    nn.Conv1d: ConvolutionTwin,
    nn.Conv2d: ConvolutionTwin,
    nn.Conv3d: ConvolutionTwin,
    nn.Embedding: EmbeddingTwin,
    nn.LayerNorm: LayerNormTwin,
    nn.RMSNorm: RMSNormTwin,
    nn.GroupNorm: GroupNormTwin,
    nn.InstanceNorm1d: InstanceNormTwin,
    nn.InstanceNorm2d: InstanceNormTwin,
    nn.InstanceNorm3d: InstanceNormTwin,
    nn.BatchNorm1d: BatchNormTwin,
    nn.BatchNorm2d: BatchNormTwin,
    nn.BatchNorm3d: BatchNormTwin,
}
# Layers made of others, which have the axis of examples in another place or return several things.
COMPOSED: dict[type[nn.Module], Maker] = {
    nn.MultiheadAttention: AttentionTwin,
    nn.RNN: RecurrentTwin,
    nn.GRU: RecurrentTwin,
    nn.LSTM: RecurrentTwin,
    nn.RNNCell: CellTwin,
    nn.GRUCell: CellTwin,
    nn.LSTMCell: CellTwin,
}


@final
class Skeleton:
    """A copy of a module with twins in place of its layers.

    `read` are the parameters of layers without a twin, which the module reads itself: `Tape.spread` has a
    form for those. It is no faster than the plain path, so they must not be most of the model.
    """

    def __init__(self, flat: FlatModel, tape: Tape) -> None:
        self.module = without_kernels_for_inference(copy.deepcopy(flat.module))
        self.read: list[Slot] = []
        slots = {slot.name: slot for slot in flat.slots}
        self._slot_of = {id(p): slots[name] for name, p in self.module.named_parameters() if p.requires_grad}
        self._tape = tape
        self._reasons: list[str] = []
        self._replace(self._twins())
        if 2 * sum(slot.stop - slot.start for slot in self.read) > flat.dimension:
            raise NotFoldedError(self._reasons[0])

    def _twins(self) -> dict[int, nn.Module]:
        twins: dict[int, nn.Module] = {}
        inside: set[int] = set()  # of a layer that has a twin
        for path, layer in self.module.named_modules():
            if id(layer) in inside:
                continue
            if hasattr(layer, "inplace"):
                layer.inplace = False  # twins keep a reference to their outputs
            # A layer that is not trained is a function like any other: it runs on the folded batch as it is.
            if any(parameter.requires_grad for parameter in _parameters(layer).values()):
                try:
                    twins[id(layer)] = self._twin(path, layer)
                    inside.update(id(part) for part in layer.modules())
                except NotFoldedError as error:
                    self._reasons.append(str(error))
                    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                        raise  # torch forgets it where each example has a table of its own
                    own = (p for p in layer.parameters(recurse=False) if p.requires_grad)
                    self.read += [slot for slot in map(self._slot, own) if slot not in self.read]
            elif has_windows_side_by_side(layer):
                layer.__class__ = MaxPool  # with all that a model may read of it
                layer.tape, layer.path = self._tape, path
        return twins

    def _slot(self, parameter: nn.Parameter) -> Slot:
        return self._slot_of[id(parameter)]

    def _twin(self, path: str, layer: nn.Module) -> nn.Module:
        name = f"{path or 'the module itself'} ({type(layer).__name__})"
        refusal = _refusal(layer)
        if refusal is not None:
            raise NotFoldedError(f"{name}: {refusal}")
        slots = {own: self._slot(parameter) for own, parameter in layer.named_parameters()}
        try:
            twin = (TWINS | COMPOSED)[type(layer)](layer, self._tape, slots)
        except NotFoldedError as error:
            raise NotFoldedError(f"{name}: {error}") from error
        for part in twin.modules():
            vars(part)["path"] = name
        return twin.train(layer.training)

    def _replace(self, twins: Mapping[int, nn.Module]) -> None:
        if id(self.module) in twins:
            self.module = twins[id(self.module)]
            return
        for path, layer in list(self.module.named_modules(remove_duplicate=False)):
            if id(layer) in twins:
                parent, _, name = path.rpartition(".")
                setattr(self.module.get_submodule(parent), name, twins[id(layer)])


def _parameters(layer: nn.Module) -> dict[str, nn.Parameter]:
    """A layer's own; where it has a twin, also those of layers inside it, which the twin replaces."""
    return dict(layer.named_parameters(recurse=type(layer) in COMPOSED))


def _refusal(layer: nn.Module) -> str | None:
    """Why a layer has no twin."""
    own = _parameters(layer)
    if type(layer) not in TWINS and type(layer) not in COMPOSED:
        return "no fast form for parameters of this layer"
    if not all(parameter.requires_grad for parameter in own.values()):
        return "some of its parameters are trained and some are not"
    if any(altered(part) for part in layer.modules()):
        return "hooks on the layer"
    if type(layer) in TWINS:
        buffers = {name for name, _ in layer.named_buffers(recurse=False)} - STATISTICS
        if "weight" not in own or own.keys() - {"weight", "bias"} or buffers or any(layer.children()):
            return "parameters, buffers or children beyond weight and bias"
    if isinstance(layer, nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        return "max_norm, scale_grad_by_freq and sparse have no fast form"
    return None


STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}  # of BatchNorm in evaluation mode

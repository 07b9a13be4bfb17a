"""Layer rules of normalisation layers: normalise without weights, then scale and shift with each agent's own.

BatchNorm is covered only in evaluation mode. Its statistics then never change, so its result for an example
depends on no other example. In training mode, `models` has already refused it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from torch import Tensor, nn
from torch.nn import functional

from topdp.learning.gradients import ghost_norms
from topdp.learning.gradients.tape import (
    LayerRule,
    NotFoldedError,
    ParameterUse,
    Tape,
    sum_positions,
    sum_tensors,
)
from topdp.learning.models import Slot


class _NormRule(LayerRule):
    """Base class of rules that normalise without weights, then scale and shift by every agent's weights."""

    axis: int  # the first axis of the unfolded output to which the weights belong
    width: int  # the number of these axes

    def _affine(self, normal: Tensor, lead: tuple[int, ...], trail: tuple[int, ...]) -> Tensor:
        tape = self.tape
        unfolded = tape.unfold(normal)
        weight = tape.weights(self._weight)
        output = unfolded * weight.view(weight.shape[0], *lead, *weight.shape[1:], *trail)
        uses = [ParameterUse(self._weight, type(self).__name__, unfolded.detach(), self._join)]
        if self._bias is not None:
            bias = tape.weights(self._bias)
            output = output + bias.view(bias.shape[0], *lead, *bias.shape[1:], *trail)
            uses += self._bias_use(self.axis, self.width)
        return tape.record(output.flatten(0, 2), uses)

    def _no_batch_axis(self, x: Tensor) -> NotFoldedError:
        return NotFoldedError(f"{self.path} got an input of shape {tuple(x.shape)} without a batch axis")

    def _join(self, saved_and_deltas: Sequence[tuple[Any, Tensor]]) -> ghost_norms.Contribution:
        return ghost_norms.Dense(
            sum_tensors([sum_positions(delta * a, self.axis, self.width) for a, delta in saved_and_deltas])
        )


@final
class LastAxesNormRule(_NormRule):
    """The rule of a LayerNorm or an RMSNorm, which normalise over the last axes."""

    def __init__(self, layer: nn.LayerNorm | nn.RMSNorm, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__(tape, slots)
        self.normalized_shape, self.eps = layer.normalized_shape, layer.eps
        self.axis, self.width = -len(layer.normalized_shape), len(layer.normalized_shape)
        is_rms = isinstance(layer, nn.RMSNorm)
        self._normalise: Any = functional.rms_norm if is_rms else functional.layer_norm

    def folded(self, x: Tensor) -> Tensor:
        if x.dim() <= self.width:
            raise self._no_batch_axis(x)
        normal = self._normalise(x, self.normalized_shape, eps=self.eps)
        # x has as many axes after its first as the unfolded x after its first three.
        return self._affine(normal, (1, 1) + (1,) * (x.dim() - 1 - self.width), ())


class _ChannelNormRule(_NormRule):
    """Base class of rules with one weight per channel; the channel axis follows the batch axis."""

    axis, width = 3, 1

    def _by_channel(self, normal: Tensor) -> Tensor:
        return self._affine(normal, (1, 1), (1,) * (normal.dim() - 2))


@final
class GroupNormRule(_ChannelNormRule):
    def __init__(self, layer: nn.GroupNorm, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__(tape, slots)
        self.num_groups, self.num_channels, self.eps = layer.num_groups, layer.num_channels, layer.eps

    def folded(self, x: Tensor) -> Tensor:
        return self._by_channel(functional.group_norm(x, self.num_groups, None, None, self.eps))


@final
class InstanceNormRule(_ChannelNormRule):
    """The rule of InstanceNorm layers without running statistics, over one, two or three axes."""

    def __init__(self, layer: Any, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__(tape, slots)
        self.num_features, self.eps = layer.num_features, layer.eps
        self._axes = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}[type(layer)]

    def folded(self, x: Tensor) -> Tensor:
        if x.dim() != self._axes:
            raise self._no_batch_axis(x)
        return self._by_channel(functional.instance_norm(x, eps=self.eps))


@final
class BatchNormRule(_ChannelNormRule):
    """The rule of BatchNorm layers in evaluation mode, with the statistics that the given layer has."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: Any, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__(tape, slots)
        self.num_features, self.eps = layer.num_features, layer.eps
        self.register_buffer("running_mean", layer.running_mean.clone())
        self.register_buffer("running_var", layer.running_var.clone())
        self._axes = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}[type(layer)]

    def folded(self, x: Tensor) -> Tensor:
        if x.dim() not in self._axes:
            raise self._no_batch_axis(x)
        return self._by_channel(functional.batch_norm(x, self.running_mean, self.running_var, eps=self.eps))

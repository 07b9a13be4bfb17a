"""Layer rules of convolutions over one, two or three axes, and max-pooling with topdp's kernel on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from topdp.learning.gradients import ghost_norms
from topdp.learning.gradients.safe_norms import takes_cuda_kernels
from topdp.learning.gradients.tape import (
    LayerRule,
    NotFoldedError,
    ParameterUse,
    Tape,
    apply_folded,
    has_user_hooks,
)
from topdp.learning.models import Slot


@final
class ConvolutionRule(LayerRule):
    """The rule of a convolution over one, two or three axes."""

    def __init__(self, layer: Any, tape: Tape, slots: Mapping[str, Slot]) -> None:
        super().__init__(tape, slots)
        axes = len(layer.kernel_size)
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
        self.kernel_size, self.stride, self.dilation, self.groups = kernel, stride, dilation, layer.groups
        self.geometry = ghost_norms.ConvolutionGeometry(
            tuple(kernel), tuple(stride), tuple(dilation), layer.groups
        )
        if layer.padding == "same":
            whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            sides = [(w // 2, w - w // 2) for w in whole]
        elif layer.padding == "valid":
            sides = [(0, 0)] * axes
        else:
            sides = [(p, p) for p in layer.padding]
        # functional.pad begins with the last axis
        self._pads = tuple(pad for side in reversed(sides) for pad in side)
        self._mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        self._product: Any = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[axes]
        self._kind = f"Conv{axes}d"

    def folded(self, x: Tensor) -> Tensor:
        if x.dim() != 2 + len(self.geometry.kernel):
            raise NotFoldedError(
                f"a {self._kind} got an input of shape {tuple(x.shape)} without a batch axis"
            )
        tape = self.tape
        if any(self._pads):
            x = functional.pad(x, self._pads, self._mode)
        unfolded = tape.unfold(x)
        output = self._convolve(unfolded.flatten(1, 2))
        kind = f"{self._kind} {self.geometry}"
        return tape.record(
            output, [ParameterUse(self._weight, kind, unfolded.detach(), self._join), *self._bias_use(3)]
        )

    def _convolve(self, x: Tensor) -> Tensor:
        """Return the convolution [n·b, O, ...] of x [n, b, C, ...] with every agent's own kernel."""
        weight = self.tape.weights(self._weight)
        bias = None if self._bias is None else self.tape.weights(self._bias)
        n, b = x.shape[:2]
        if self.geometry.has_kernels(x):
            from topdp.learning.gradients.window_layers_cuda import convolve

            return convolve(x, weight, bias, self.geometry)
        if x.device.type == "cpu":
            biases = [None] * n if bias is None else list(bias)
            rest = (self.stride, 0, self.dilation, self.groups)
            return torch.cat([self._product(x[i], weight[i], biases[i], *rest) for i in range(n)])
        # The agents are the groups of one convolution.
        output: Tensor = self._product(
            x.transpose(0, 1).reshape(b, -1, *x.shape[3:]),
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            self.stride,
            0,
            self.dilation,
            n * self.groups,
        )
        return output.view(b, n, self.out_channels, *output.shape[2:]).transpose(0, 1).flatten(0, 1)

    def _join(self, saved_and_deltas: Sequence[tuple[Any, Tensor]]) -> ghost_norms.Contribution:
        uses = [(x[:, :, m], delta[:, :, m]) for x, delta in saved_and_deltas for m in range(x.shape[2])]
        return ghost_norms.Convolution(uses, self.geometry)


@final
class MaxPoolRule(nn.MaxPool2d):
    """Max-pooling with windows that do not overlap.

    On a GPU, topdp's own kernel computes it, because PyTorch's gradient is slow.
    """

    max_window_elements = 64  # elements of a window; the kernel unrolls the loop over them
    tape: Tape
    path: str

    def forward(self, x: Tensor) -> Tensor:
        kernel = _pair(self.kernel_size)
        if x.dim() == 4 and x.shape[2] >= kernel[0] and x.shape[3] >= kernel[1] and takes_cuda_kernels(x):
            return apply_folded(self, x)
        pooled: Tensor = super().forward(x)
        return pooled

    def folded(self, x: Tensor) -> Tensor:
        from topdp.learning.gradients.window_layers_cuda import max_pool

        return max_pool(x, _pair(self.kernel_size))


def has_disjoint_windows(layer: nn.Module) -> bool:
    """Return whether `layer` is a plain max-pooling whose windows do not overlap."""
    if type(layer) is not nn.MaxPool2d or has_user_hooks(layer) or layer.return_indices or layer.ceil_mode:
        return False
    values = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    # torch also accepts other types, such as lists; torch's own max-pooling then runs.
    if not all(type(v) is int or (type(v) is tuple and list(map(type, v)) == [int, int]) for v in values):
        return False
    kernel, *rest = map(_pair, values)
    return rest == [kernel, (0, 0), (1, 1)] and kernel[0] * kernel[1] <= MaxPoolRule.max_window_elements


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)

"""Norms and weighted sums of per-example gradients, from activations and output gradients.

For one parameter, a `Contribution` holds the activations and output gradients of all uses of the parameter.
From these it computes, for all n agents and b examples, the norm of each example's gradient and the weighted
sum of the gradients. Per-example gradients of a whole model are never in memory. Nothing here depends on
modules or on clipping.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from topdp.learning.gradients.agent_products import add_outer, add_sum
from topdp.learning.gradients.safe_norms import (
    cancellation_slack,
    cudnn_as_precise_as_matmul,
    squared_norms,
    takes_cuda_kernels,
)
from topdp.learning.models import Slot

WEIGHT_GRADIENTS = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}


def example_blocks(agents: int, examples: int, capacity: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices (agents, examples) that cut [agents, examples] into blocks.

    Each block has at most `capacity` examples and is contiguous in memory.

    >>> [(a.start, a.stop, e.start, e.stop) for a, e in example_blocks(3, 4, 8)]
    [(0, 2, 0, 4), (2, 3, 0, 4)]
    >>> [(a.start, a.stop, e.start, e.stop) for a, e in example_blocks(1, 4, 3)]
    [(0, 1, 0, 3), (0, 1, 3, 4)]
    """
    capacity = max(1, capacity)
    height = max(1, capacity // max(1, examples))
    width = min(examples, capacity)
    for i in range(0, agents, height):
        for j in range(0, examples, max(1, width)):
            yield slice(i, min(i + height, agents)), slice(j, min(j + width, examples))


def _cached_examples(per_example: int, device: torch.device) -> int:
    """Return how many examples fit into the cache, if each needs `per_example` temporary numbers."""
    return max(1, (1 << 26 if device.type == "cuda" else 1 << 20) // max(1, per_example))


def concatenate(axis: int, parts: Sequence[Tensor]) -> Tensor:
    """Return the concatenation of the parts; a single part is returned without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)


class Contribution(ABC):
    """The gradients of one parameter, one for each agent and example."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Return [n, b] the squared l2 norm of each example's gradient."""

    @abstractmethod
    def add_to(self, out: Tensor, coefficients: Tensor, fresh: bool = False) -> None:
        """Add Σ_b coefficients[n, b] · gradient[n, b] to `out` [n, size], in place; if `fresh`, overwrite
        `out`.
        """

    @abstractmethod
    def blank(self, where: Tensor) -> None:
        """Set the gradients of the examples `where` [n, b] to exactly zero, even if they are not finite."""


SlotContributions = list[tuple[Slot, Contribution]]
"""One contribution for every parameter that was used."""

LossesAndContributions = tuple[Tensor, SlotContributions]
"""Losses [n, b], and the gradients of their sum over examples."""


def total_norms(contributions: Sequence[Contribution]) -> Tensor:
    """Return [n, b] the l2 norm of each example's gradient over all these parameters."""
    return total_squared_norms(contributions).sqrt_()


def total_squared_norms(contributions: Sequence[Contribution]) -> Tensor:
    """Return [n, b] the squares of `total_norms`."""
    total = contributions[0].squared_norms()
    for contribution in contributions[1:]:
        total += contribution.squared_norms()
    return total


def _zero_where(x: Tensor, where: Tensor) -> Tensor:
    return x.masked_fill(where.reshape(where.shape + (1,) * (x.dim() - 2)), 0)


@final
class Dense(Contribution):
    """Explicit gradients [n, b, size], as of biases and of the weights of normalisation layers."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients

    def squared_norms(self) -> Tensor:
        return squared_norms(self.gradients)

    def add_to(self, out: Tensor, coefficients: Tensor, fresh: bool = False) -> None:
        add_sum(out, coefficients, self.gradients, fresh)

    def blank(self, where: Tensor) -> None:
        self.gradients = _zero_where(self.gradients, where)


@final
class Outer(Contribution):
    """The gradients Σ_l δ_l a_lᵀ of a linear layer's weight; a [n,b,L,in], δ [n,b,L,out], positions l."""

    def __init__(self, a: Tensor, delta: Tensor) -> None:
        self.a = a
        self.delta = delta
        self._gradients: Tensor | None = None

    def squared_norms(self) -> Tensor:
        n, b, L, size_in = self.a.shape
        size_out = self.delta.shape[3]
        if L == 1:
            return squared_norms(self.a) * squared_norms(self.delta)
        if size_in * size_out <= L * (size_in + size_out):
            # Per-example gradients of this layer need no more memory than its activations, so store them.
            self._gradients = torch.matmul(self.delta.mT, self.a).flatten(2)
            return squared_norms(self._gradients)
        norms = self.a.new_empty(n, b)
        for i, j in example_blocks(n, b, _cached_examples(2 * L * L, self.a.device)):
            a, delta = self.a[i, j].flatten(0, 1), self.delta[i, j].flatten(0, 1)
            gram = torch.bmm(a, a.mT).mul_(torch.bmm(delta, delta.mT))
            norms[i, j] = gram.sum((1, 2)).view_as(norms[i, j])
        return norms.clamp_min_(0).add_(cancellation_slack(self.a, self.delta))

    def add_to(self, out: Tensor, coefficients: Tensor, fresh: bool = False) -> None:
        if self._gradients is not None:
            Dense(self._gradients).add_to(out, coefficients, fresh)
            return
        n, b, L, size_in = self.a.shape
        scaled = (self.delta * coefficients.view(n, b, 1, 1)).reshape(n, b * L, -1)
        add_outer(out.view(n, -1, size_in), scaled, self.a.reshape(n, b * L, size_in), fresh)

    def blank(self, where: Tensor) -> None:
        self.a, self.delta = _zero_where(self.a, where), _zero_where(self.delta, where)
        self._gradients = None if self._gradients is None else _zero_where(self._gradients, where)


@final
class Lookup(Contribution):
    """The gradients of an embedding's weight: row v of a gradient is Σ_l [token_l = v] δ_l; δ [n,b,L,D]."""

    def __init__(self, tokens: Tensor, delta: Tensor) -> None:
        self.tokens = tokens
        self.delta = delta

    def squared_norms(self) -> Tensor:
        n, b, L, _ = self.delta.shape
        norms = self.delta.new_empty(n, b)
        for i, j in example_blocks(n, b, _cached_examples(2 * L * L, self.delta.device)):
            tokens, delta = self.tokens[i, j].flatten(0, 1), self.delta[i, j].flatten(0, 1)
            same = tokens.unsqueeze(1) == tokens.unsqueeze(2)
            norms[i, j] = torch.bmm(delta, delta.mT).mul_(same).sum((1, 2)).view_as(norms[i, j])
        return norms.clamp_min_(0).add_(cancellation_slack(delta.new_ones(1, 1, L), self.delta))

    def add_to(self, out: Tensor, coefficients: Tensor, fresh: bool = False) -> None:
        out = out.zero_() if fresh else out
        n, b, L, size = self.delta.shape
        agent = torch.arange(n, device=out.device).view(n, 1, 1).expand(n, b, L)
        scaled = self.delta * coefficients.view(n, b, 1, 1)
        out.view(n, -1, size).index_put_((agent, self.tokens), scaled, accumulate=True)

    def blank(self, where: Tensor) -> None:
        self.delta = _zero_where(self.delta, where)


@final
class TiedEmbedding(Contribution):
    """The gradients of one matrix that is both an embedding and the weight of a linear layer."""

    def __init__(self, lookup: Lookup, outer: Outer) -> None:
        self.lookup = lookup
        self.outer = outer

    def squared_norms(self) -> Tensor:
        norms = self.lookup.squared_norms() + self.outer.squared_norms()
        # |X + Y|² = |X|² + |Y|² + 2<X, Y>, and row v of Y is Σ_m δ_m[v] a_m.
        n, b, L, _ = self.lookup.delta.shape
        M = self.outer.a.shape[2]
        for i, j in example_blocks(n, b, _cached_examples(2 * L * M, norms.device)):
            tokens, delta = self.lookup.tokens[i, j].flatten(0, 1), self.lookup.delta[i, j].flatten(0, 1)
            a, output_delta = self.outer.a[i, j].flatten(0, 1), self.outer.delta[i, j].flatten(0, 1)
            inner_products = torch.bmm(a, delta.mT).mul_(
                output_delta.gather(2, tokens.unsqueeze(1).expand(-1, M, -1))
            )
            norms[i, j] += 2 * inner_products.sum((1, 2)).view_as(norms[i, j])
        # The sum may cancel. Terms are rounded relative to at most (|X| + |Y|)² <= 2|X|² + 2|Y|².
        ones = self.lookup.delta.new_ones(1, 1, L)
        slack = cancellation_slack(ones, self.lookup.delta) + cancellation_slack(
            self.outer.a, self.outer.delta
        )
        return norms.clamp_min_(0).add_(slack, alpha=2)

    def add_to(self, out: Tensor, coefficients: Tensor, fresh: bool = False) -> None:
        self.lookup.add_to(out, coefficients, fresh)
        self.outer.add_to(out, coefficients)

    def blank(self, where: Tensor) -> None:
        self.lookup.blank(where)
        self.outer.blank(where)


def combine(parts: Sequence[Contribution]) -> Contribution | None:
    """Return one contribution for all uses of one parameter; None if no rule covers the combination."""
    if len(parts) == 1:
        return parts[0]
    match sorted(parts, key=lambda part: type(part).__name__):
        case [Dense() as first, Dense() as second]:
            return Dense(first.gradients + second.gradients)
        case [Lookup() as lookup, Outer() as outer]:
            return TiedEmbedding(lookup, outer)
    return None


@final
@dataclass(frozen=True)
class ConvolutionGeometry:
    """The geometry of a convolution over one, two or three axes, on an input that is already padded."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def output(self, *sizes: int) -> tuple[int, ...]:
        """Return the sizes of the output for an input of these sizes."""
        axes = zip(sizes, self.kernel, self.stride, self.dilation, strict=True)
        return tuple((size - dilation * (k - 1) - 1) // stride + 1 for size, k, stride, dilation in axes)

    def has_kernels(self, x: Tensor) -> bool:
        """Return whether `window_layers_cuda` supports this geometry for inputs `x`."""
        return self.groups == 1 and len(self.kernel) == 2 and takes_cuda_kernels(x)


@final
class Convolution(Contribution):
    """The gradients of a convolution's weight.

    `uses` has one pair per use: inputs [n, b, C, H, W] and output gradients [n, b, O, Ho, Wo], or likewise
    with one or three axes in place of H, W.
    """

    def __init__(self, uses: Sequence[tuple[Tensor, Tensor]], geometry: ConvolutionGeometry) -> None:
        self.uses = list(uses)
        self.geometry = geometry
        self._gradients: Tensor | None = None

    def squared_norms(self) -> Tensor:
        x, delta = self.uses[0]
        n, b, C = x.shape[:3]
        groups = self.geometry.groups
        K, out = C // groups * math.prod(self.geometry.kernel), delta.shape[2] // groups
        L = sum(delta[0, 0, 0].numel() for _, delta in self.uses)
        activations = sum(x[0, 0].numel() + delta[0, 0].numel() for x, delta in self.uses)
        keep = groups * out * K <= 4 * activations
        direct = keep or out * K <= L * (out + K)
        largest = groups * (K * L + (out * K if direct else 2 * L * L))
        norms = x.new_empty(n, b)
        if direct and len(self.uses) == 1 and self.geometry.has_kernels(x):
            from topdp.learning.gradients.window_layers_cuda import per_example_gradients

            for i, j in example_blocks(n, b, n * b if keep else _cached_examples(out * K, x.device)):
                gradients = per_example_gradients(x[i, j], delta[i, j], self.geometry)
                norms[i, j] = squared_norms(gradients)
                self._gradients = gradients if keep else None
            return norms if keep else norms.add_(self._rounding())
        if keep:
            self._gradients = x.new_empty(n, b, groups * out * K)
        for i, j in example_blocks(n, b, _cached_examples(largest, x.device)):
            columns = concatenate(2, [self._columns(x[i, j]) for x, _ in self.uses])
            deltas = concatenate(
                2, [delta[i, j].reshape(-1, out, delta[0, 0, 0].numel()) for _, delta in self.uses]
            )
            if direct:
                gradients = torch.bmm(deltas, columns.mT).view(*norms[i, j].shape, -1)
                norms[i, j] = squared_norms(gradients)
                if self._gradients is not None:
                    self._gradients[i, j] = gradients
            else:
                gram = torch.bmm(columns.mT, columns).mul_(torch.bmm(deltas.mT, deltas))
                norms[i, j] = gram.sum((1, 2)).view(*norms[i, j].shape, groups).sum(2)
        return norms if keep else norms.clamp_min_(0).add_(self._rounding())

    def _rounding(self) -> Tensor:
        """Return [n, b] the `cancellation_slack` of the squared norms.

        It is needed if the gradients are summed in another order than that in which norms were computed.
        """
        x, delta = (concatenate(2, [use[k].flatten(2) for use in self.uses]) for k in (0, 1))
        return cancellation_slack(x, delta, math.prod(self.geometry.kernel))

    def _columns(self, x: Tensor) -> Tensor:
        """Return [agents·examples·groups, K, L]: each column is a patch to which the kernel is applied."""
        x = x.flatten(0, 1)
        geometry = self.geometry
        m, C, *sizes = x.shape
        spots = geometry.output(*sizes)
        by_example, by_channel, *steps = x.stride()
        within = (step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True))
        between = (step * stride for step, stride in zip(steps, geometry.stride, strict=True))
        # This copies whole stretches of image rows, ten times faster than F.unfold on a CPU.
        patches = x.as_strided((m, C, *geometry.kernel, *spots), (by_example, by_channel, *within, *between))
        return patches.reshape(m * geometry.groups, -1, math.prod(spots))

    def add_to(self, out: Tensor, coefficients: Tensor, fresh: bool = False) -> None:
        out = out.zero_() if fresh else out
        if self._gradients is not None:
            Dense(self._gradients).add_to(out, coefficients)
            return
        geometry = self.geometry
        gradient_of = WEIGHT_GRADIENTS[len(geometry.kernel)]
        for x, delta in self.uses:
            scaled = delta * coefficients.view(*coefficients.shape, *(1 for _ in delta.shape[2:]))
            shape = (delta.shape[2], x.shape[2] // geometry.groups, *geometry.kernel)
            for i in range(x.shape[0]):
                with cudnn_as_precise_as_matmul():
                    gradient: Tensor = gradient_of(  # type: ignore[no-untyped-call]
                        x[i], shape, scaled[i], geometry.stride, 0, geometry.dilation, geometry.groups
                    )
                out[i].add_(gradient.reshape(-1))

    def blank(self, where: Tensor) -> None:
        self.uses = [(_zero_where(x, where), _zero_where(delta, where)) for x, delta in self.uses]
        self._gradients = None if self._gradients is None else _zero_where(self._gradients, where)

"""A module in which every agent has its own weights, run on one folded batch.

The skeleton of a module is a copy in which each supported layer is replaced by a twin without weights. The
batch of all agents is folded into one leading axis [n·b, ...], agent by agent; stateless layers and functions
run on it unchanged (or in `apart`, each example a batch of one), and each twin unfolds it, applies the
agents' weights (views of their rows) and records its input and output. What they recorded becomes `ghost`
contributions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from topdp.learning.gradients import ghost
from topdp.learning.gradients.sharing import SharedOuter, linear_of_all
from topdp.learning.gradients.tape import NotFoldedError, Tape, Twin, Use, sum_positions, through, total
from topdp.learning.models import FlatModel, Slot


@final
class LinearTwin(Twin):
    narrow = 16  # outputs up to which a processor takes half the time for the product the other way round

    def __init__(self, layer: nn.Linear, tape: Tape, weight: Slot, bias: Slot | None) -> None:
        super().__init__(tape, weight, bias)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._slot = weight

    def folded(self, x: Tensor) -> Tensor:
        tape = self.tape
        if x.dim() < 2 or x.shape[-1] != self.in_features:
            raise NotFoldedError(f"a Linear of {self.in_features} got an input of shape {tuple(x.shape)}")
        if tape.copies > 1:
            return self._of_copies(x)
        a = tape.unfold(x)
        a = a.reshape(a.shape[0], -1, self.in_features)
        output = self._product(a).view(-1, *x.shape[1:-1], self.out_features)
        return tape.record(output, [Use(self._slot, "Linear", a.detach(), _join_outer), *self._bias_use(-1)])

    def _product(self, a: Tensor) -> Tensor:
        """[n, ..., out] of a [n, ..., in], with every agent's own weights."""
        weight = self.tape.weights(self._slot)
        bias = None if self._bias is None else self.tape.weights(self._bias)
        if self.out_features <= self.narrow and not a.is_cuda:
            turned = (
                torch.bmm(weight, a.mT) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, a.mT)
            )
            return turned.mT.contiguous()
        return torch.bmm(a, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, weight.mT)

    def _of_copies(self, x: Tensor) -> Tensor:
        """x [agents·b, in], the records of all copies: as if it were there once for each."""
        tape = self.tape
        copies, tape.copies = tape.copies, 1
        if x.dim() != 2 or x.shape[0] * copies != tape.agents * tape.examples:
            raise NotFoldedError(f"a Linear got an input of shape {tuple(x.shape)} for {copies} copies")
        a = x.view(-1, tape.examples, self.in_features)
        bias = None if self._bias is None else tape.weights(self._bias)
        output = linear_of_all(a, tape.weights(self._slot), bias, copies).flatten(0, 1)
        uses = [Use(self._slot, "Linear of copies", a.detach(), _join_shared), *self._bias_use(-1)]
        return tape.record(output, uses)


def _join_shared(found: Sequence[tuple[Any, Tensor]]) -> ghost.Contribution:
    ((a, delta),) = found
    return SharedOuter(a, delta.flatten(2))


def _join_outer(found: Sequence[tuple[Any, Tensor]]) -> ghost.Contribution:
    pairs = []
    for a, delta in found:
        n, b = delta.shape[:2]
        delta = delta.reshape(n, b, -1, delta.shape[-1])
        pairs.append((a.reshape(n, b, delta.shape[2], -1), delta))
    return ghost.Outer(ghost.along(2, [a for a, _ in pairs]), ghost.along(2, [delta for _, delta in pairs]))


@final
class EmbeddingTwin(Twin):
    def __init__(self, layer: nn.Embedding, tape: Tape, weight: Slot, bias: Slot | None) -> None:
        super().__init__(tape, weight, bias)
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        self.padding_idx = layer.padding_idx
        self._slot = weight
        self._kind = f"Embedding (padding_idx={layer.padding_idx})"

    def folded(self, x: Tensor) -> Tensor:
        unfolded = self.tape.unfold(x)
        n = unfolded.shape[0]
        tokens = unfolded.reshape(n, -1)
        agent = torch.arange(n, device=x.device).unsqueeze(1)
        output = self.tape.weights(self._slot)[agent, tokens].view(-1, *x.shape[1:], self.embedding_dim)
        return self.tape.record(output, [Use(self._slot, self._kind, tokens, self._join)])

    def _join(self, found: Sequence[tuple[Any, Tensor]]) -> ghost.Contribution:
        all_tokens, all_deltas = [], []
        for tokens, delta in found:
            n, b = delta.shape[:2]
            delta = delta.reshape(n, b, -1, self.embedding_dim)
            tokens = tokens.view(n, b, -1)
            if self.padding_idx is not None:
                delta = delta.masked_fill((tokens == self.padding_idx).unsqueeze(3), 0)
            all_tokens.append(tokens)
            all_deltas.append(delta)
        return ghost.Lookup(ghost.along(2, all_tokens), ghost.along(2, all_deltas))


class _NormTwin(Twin):
    """Normalises without weights, then scales and shifts with every agent's own."""

    axis: int  # where the weights lie in the unfolded output
    width: int

    def _affine(self, normal: Tensor, lead: tuple[int, ...], trail: tuple[int, ...]) -> Tensor:
        tape = self.tape
        unfolded = tape.unfold(normal)
        output = unfolded
        uses = []
        if self._weight is not None:
            weight = tape.weights(self._weight)
            output = output * weight.view(weight.shape[0], *lead, *weight.shape[1:], *trail)
            uses.append(Use(self._weight, type(self).__name__, unfolded.detach(), self._join))
        if self._bias is not None:
            bias = tape.weights(self._bias)
            output = output + bias.view(bias.shape[0], *lead, *bias.shape[1:], *trail)
            uses += self._bias_use(self.axis, self.width)
        return tape.record(output.flatten(0, 2), uses)

    def _join(self, found: Sequence[tuple[Any, Tensor]]) -> ghost.Contribution:
        return ghost.Dense(total([sum_positions(delta * a, self.axis, self.width) for a, delta in found]))


@final
class LayerNormTwin(_NormTwin):
    def __init__(self, layer: nn.LayerNorm, tape: Tape, weight: Slot, bias: Slot | None) -> None:
        super().__init__(tape, weight, bias)
        self.normalized_shape, self.eps = layer.normalized_shape, layer.eps
        self.axis, self.width = -len(layer.normalized_shape), len(layer.normalized_shape)

    def folded(self, x: Tensor) -> Tensor:
        if x.dim() <= self.width:
            raise NotFoldedError(f"a LayerNorm got an input of shape {tuple(x.shape)} without a batch axis")
        normal = functional.layer_norm(x, self.normalized_shape, None, None, self.eps)
        # x has as many axes after its leading one as the unfolded x after its first three.
        return self._affine(normal, (1, 1) + (1,) * (x.dim() - 1 - self.width), ())


@final
class GroupNormTwin(_NormTwin):
    axis, width = 3, 1

    def __init__(self, layer: nn.GroupNorm, tape: Tape, weight: Slot, bias: Slot | None) -> None:
        super().__init__(tape, weight, bias)
        self.num_groups, self.num_channels, self.eps = layer.num_groups, layer.num_channels, layer.eps

    def folded(self, x: Tensor) -> Tensor:
        normal = functional.group_norm(x, self.num_groups, None, None, self.eps)
        return self._affine(normal, (1, 1), (1,) * (x.dim() - 2))


@final
class Conv2dTwin(Twin):
    def __init__(self, layer: nn.Conv2d, tape: Tape, weight: Slot, bias: Slot | None) -> None:
        super().__init__(tape, weight, bias)
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        kernel, stride, dilation = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.dilation)
        self.kernel_size, self.stride, self.dilation, self.groups = kernel, stride, dilation, layer.groups
        self.geometry = ghost.Geometry(kernel, stride, dilation, layer.groups)
        if layer.padding == "same":
            whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            sides = [(w // 2, w - w // 2) for w in whole]
        elif layer.padding == "valid":
            sides = [(0, 0), (0, 0)]
        else:
            assert not isinstance(layer.padding, str)
            sides = [(p, p) for p in _pair(layer.padding)]
        self._pads = (*sides[1], *sides[0])  # pad begins with the last axis
        self._mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        self._slot = weight

    def folded(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise NotFoldedError(f"a Conv2d got an input of shape {tuple(x.shape)} without a batch axis")
        tape = self.tape
        if any(self._pads):
            x = functional.pad(x, self._pads, self._mode)
        unfolded = tape.unfold(x)
        output = self._convolve(unfolded.flatten(1, 2))
        uses = [Use(self._slot, f"Conv2d {self.geometry}", unfolded.detach(), self._join), *self._bias_use(3)]
        return tape.record(output, uses)

    def _convolve(self, x: Tensor) -> Tensor:
        """x [n, b, C, H, W] with every agent's own kernel, folded [n·b, O, H', W']."""
        weight = self.tape.weights(self._slot)
        bias = None if self._bias is None else self.tape.weights(self._bias)
        n, b = x.shape[:2]
        if self.geometry.has_kernels(x):
            from topdp.learning.gradients.convolution_cuda import convolve

            return convolve(x, weight, bias, self.geometry)
        if x.device.type == "cpu":
            biases = [None] * n if bias is None else list(bias)
            rest = (self.stride, 0, self.dilation, self.groups)
            return torch.cat([functional.conv2d(x[i], weight[i], biases[i], *rest) for i in range(n)])
        # Agents as groups of one convolution.
        output = functional.conv2d(
            x.transpose(0, 1).reshape(b, -1, *x.shape[3:]),
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            self.stride,
            0,
            self.dilation,
            n * self.groups,
        )
        return output.view(b, n, self.out_channels, *output.shape[2:]).transpose(0, 1).flatten(0, 1)

    def _join(self, found: Sequence[tuple[Any, Tensor]]) -> ghost.Contribution:
        uses = [(x[:, :, m], delta[:, :, m]) for x, delta in found for m in range(x.shape[2])]
        return ghost.Convolution(uses, self.geometry)


@final
class MaxPool(nn.MaxPool2d):
    """Windows that do not overlap: on a GPU by a kernel of our own, for PyTorch's gradient is slow there."""

    largest = 64  # elements of a window, which the kernel unrolls
    tape: Tape
    path: str

    def forward(self, x: Tensor) -> Tensor:
        kernel = _pair(self.kernel_size)
        if x.dim() == 4 and x.shape[2] >= kernel[0] and x.shape[3] >= kernel[1] and ghost.has_kernels(x):
            return through(self, x)
        pooled: Tensor = super().forward(x)
        return pooled

    def folded(self, x: Tensor) -> Tensor:
        from topdp.learning.gradients.pooling_cuda import max_pool

        return max_pool(x, _pair(self.kernel_size))


def _has_windows_side_by_side(layer: nn.Module) -> bool:
    """Whether it is a max-pooling of nothing but windows that do not overlap."""
    if type(layer) is not nn.MaxPool2d or altered(layer) or layer.return_indices or layer.ceil_mode:
        return False
    values = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    # torch takes other forms too; they stay torch's.
    if not all(type(v) is int or (type(v) is tuple and list(map(type, v)) == [int, int]) for v in values):
        return False
    kernel, *rest = map(_pair, values)
    return rest == [kernel, (0, 0), (1, 1)] and kernel[0] * kernel[1] <= MaxPool.largest


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


TWINS: dict[type[nn.Module], type[Any]] = {
    nn.Linear: LinearTwin,
    nn.Conv2d: Conv2dTwin,
    nn.Embedding: EmbeddingTwin,
    nn.LayerNorm: LayerNormTwin,
    nn.GroupNorm: GroupNormTwin,
}


def skeleton(flat: FlatModel, tape: Tape) -> nn.Module:
    """A copy of the module with twins in place of its layers; `NotFoldedError` where there is no twin."""
    module = copy.deepcopy(flat.module)
    slots = {slot.name: slot for slot in flat.slots}
    slot_of = {id(p): slots[name] for name, p in module.named_parameters() if p.requires_grad}
    twins: dict[int, nn.Module] = {}
    for path, layer in module.named_modules():
        if hasattr(layer, "inplace"):
            layer.inplace = False  # twins keep a reference to their outputs
        own = dict(layer.named_parameters(recurse=False))
        # A layer that is not trained is a function like any other: it runs on the folded batch as it is.
        if any(parameter.requires_grad for parameter in own.values()):
            _refuse_unsupported(path, layer)
            found = [slot_of[id(own[name])] if name in own else None for name in ("weight", "bias")]
            twin = TWINS[type(layer)](layer, tape, *found)
            twin.path = f"{path or 'the module itself'} ({type(layer).__name__})"
            twins[id(layer)] = twin.train(layer.training)
        elif _has_windows_side_by_side(layer):
            layer.__class__ = MaxPool  # with all that a model may read of it
            layer.tape, layer.path = tape, path
    if id(module) in twins:
        return twins[id(module)]
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if id(layer) in twins:
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, twins[id(layer)])
    return module


def altered(layer: nn.Module) -> bool:
    hooks = (
        layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    )  # fmt: skip
    return any(hooks) or "forward" in vars(layer)


def _refuse_unsupported(path: str, layer: nn.Module) -> None:
    name = f"{path or 'the module itself'} ({type(layer).__name__})"
    if type(layer) not in TWINS:
        raise NotFoldedError(f"{name}: no fast form for parameters of this layer")
    own = dict(layer.named_parameters(recurse=False))
    if not all(parameter.requires_grad for parameter in own.values()):
        raise NotFoldedError(f"{name}: some of its parameters are trained and some are not")
    extra = own.keys() - {"weight", "bias"}
    if extra or "weight" not in own or any(layer.children()) or dict(layer.named_buffers(recurse=False)):
        raise NotFoldedError(f"{name}: parameters, buffers or children beyond weight and bias")
    if altered(layer):
        raise NotFoldedError(f"{name}: hooks on the layer")
    if isinstance(layer, nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        raise NotFoldedError(f"{name}: max_norm, scale_grad_by_freq and sparse have no fast form")

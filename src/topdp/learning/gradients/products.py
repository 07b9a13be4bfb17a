"""Products of each agent's activations with its own matrices, by the library that is fastest for them.

On AMD processors with AVX-512, torch's matrix products (MKL) take its narrower units; oneDNN, which is in
torch as well, takes the wide ones and needs half the time for a large product. Which library is used follows
from the machine and from shapes alone, so the same run on the same machine has the same bits. Results differ
in rounding only. Not for convolutions, and not for GPUs.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

LARGE = 1 << 21
"""Multiplications in one agent's product from which oneDNN is faster than MKL, which starts quicker."""

NARROW = 16
"""Outputs up to which a processor takes half the time for the product the other way round."""

UNIT = 16  # numbers that a processor takes at once

AT_ONCE = 1 << 18
"""Elements of a product in memory before they are added: near the processor."""


@cache
def has_wide_products() -> bool:
    """Whether torch's own products leave half of this processor idle, and oneDNN is there to take over."""
    if not (
        torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and torch._C.has_mkl
        and torch._C._has_mkldnn
    ):
        return False
    return "AuthenticAMD" in _processor() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    return platform.processor() + (described.read_text() if described.exists() else "")


def _is_large(a: Tensor, width: int) -> bool:
    """Whether products of a [n, m, k] with matrices of k times `width` are for oneDNN."""
    fits = a.device.type == "cpu" and a.dtype == torch.float32
    return fits and a.shape[1] * a.shape[2] * width >= LARGE and has_wide_products()


def _wide(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [m, k] times the transpose of weight [n, k], plus bias [n]."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return product


def linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[n, m, out] of a [n, m, in], with every agent's own weight [n, out, in] and bias [n, out]."""
    if a.requires_grad and a.device.type == "cpu":
        product: Tensor = _Linear.apply(a, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return _linear(a, weight, bias)


def _linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    m, out = a.shape[1], weight.shape[1]
    if not _is_large(a, out):
        if out > NARROW or a.device.type != "cpu":
            return torch.bmm(a, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, weight.mT)
        turned = torch.bmm(weight, a.mT) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, a.mT)
        return turned.mT.contiguous()
    if m % UNIT == 0 < out % UNIT and m < out:  # the other way round, no unit is left half empty
        turned = torch.stack([_wide(*own) for own in zip(weight.unbind(), a.unbind(), strict=True)])
        return turned.mT.contiguous() if bias is None else _sum(turned.mT, bias.unsqueeze(1))
    biases = [None] * len(a) if bias is None else bias.unbind()
    return torch.stack([_wide(*own) for own in zip(a.unbind(), weight.unbind(), biases, strict=True)])


def _sum(one: Tensor, other: Tensor) -> Tensor:
    """Contiguous, as torch's own would not be where `one` is turned."""
    return torch.add(one, other, out=one.new_empty(one.shape))


@final
class _Linear(torch.autograd.Function):
    """Differentiable in the activations; weights are no variables here.

    What goes back lies in memory as what came: torch's own would come turned where the product was, and all
    that is done with it then takes several times as long.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _linear(a, weight, bias)

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> Any:
        ((delta,), (weight,)) = deltas, ctx.saved_tensors
        return _linear(delta, weight.mT, None), None, None


def add_outer(out: Tensor, delta: Tensor, a: Tensor, fresh: bool = False) -> None:
    """out [n, o, i] gets (or, where `fresh`, becomes) the sum over m of delta [n, m, o] times a [n, m, i]."""
    if not _is_large(a, delta.shape[2]):
        out.baddbmm_(delta.mT, a, beta=0 if fresh else 1)
        return
    height = max(1, AT_ONCE // a.shape[2])
    for j in range(0, delta.shape[2], height):
        some = slice(j, j + height)
        each = out[:, some].unbind(), delta.mT[:, some].unbind(), a.mT.unbind()
        for target, left, right in zip(*each, strict=True):
            product = _wide(left, right)
            target.copy_(product) if fresh else target.add_(product)

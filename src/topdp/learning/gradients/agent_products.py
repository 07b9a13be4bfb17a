"""Matrix products of each agent's activations with the agent's own matrices. Not for convolutions.

On AMD processors with AVX-512, MKL, which torch calls for matrix products, uses half of the processor's
width. oneDNN, which torch contains as well, uses all of it. There, oneDNN computes large products in float32,
agent by agent. The choice depends only on the machine and the shapes, so a run has the same bits each time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

MAX_TRANSPOSED_OUTPUTS = 16
"""Up to this many outputs, a CPU computes the transposed product in half the time."""

MIN_ONEDNN_MULTIPLICATIONS = 1 << 21
"""The size of one agent's product from which oneDNN is faster; smaller products start faster with MKL."""


@cache
def _prefers_onednn() -> bool:
    cpu = Path("/proc/cpuinfo")
    return (
        torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and cpu.exists()
        and "AuthenticAMD" in cpu.read_text(encoding="utf-8", errors="replace")
    )


def _takes_onednn(a: Tensor, outputs: int) -> bool:
    fits = a.device.type == "cpu" and a.dtype == torch.float32
    return fits and a.shape[1] * a.shape[2] * outputs >= MIN_ONEDNN_MULTIPLICATIONS and _prefers_onednn()


def _onednn_linear(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a [m, in] times the transpose of weight [out, in], plus bias [out]."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, weight, bias, "none", [], "")
    return product


def agent_linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs [n, m, out] of a linear layer for activations `a` [n, m, in].

    Every agent has its own weight [n, out, in] and bias [n, out].
    """
    if a.requires_grad and a.device.type == "cpu":
        product: Tensor = _AgentLinear.apply(a, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return _agent_linear(a, weight, bias)


def _agent_linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if _takes_onednn(a, weight.shape[1]):
        biases = [None] * len(a) if bias is None else bias.unbind()
        agents = zip(a.unbind(), weight.unbind(), biases, strict=True)
        return torch.stack([_onednn_linear(*own) for own in agents])
    if weight.shape[1] > MAX_TRANSPOSED_OUTPUTS or a.device.type != "cpu":
        return torch.bmm(a, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, weight.mT)
    transposed = torch.bmm(weight, a.mT) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, a.mT)
    return transposed.mT.contiguous()


@final
class _AgentLinear(torch.autograd.Function):
    """A product that is differentiable in the activations; the weights are constants.

    The gradient has the memory layout of the activations. If the product was computed transposed, torch's own
    gradient would be transposed too, and every later operation on it would take several times as long.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _agent_linear(a, weight, bias)

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> Any:
        ((delta,), (weight,)) = deltas, ctx.saved_tensors
        return _agent_linear(delta, weight.mT, None), None, None


def add_outer(out: Tensor, delta: Tensor, a: Tensor, fresh: bool = False) -> None:
    """Add Σ_m delta [n, m, o] · a [n, m, i] to `out` [n, o, i]; if `fresh`, overwrite `out`."""
    if not _takes_onednn(a, delta.shape[2]):
        out.baddbmm_(delta.mT, a, beta=0 if fresh else 1)
        return
    for total, left, right in zip(out.unbind(), delta.mT.unbind(), a.mT.unbind(), strict=True):
        product = _onednn_linear(left, right)
        total.copy_(product) if fresh else total.add_(product)


def add_sum(out: Tensor, weights: Tensor, a: Tensor, fresh: bool = False) -> None:
    """Add Σ_m weights [n, m] · a [n, m, i] to `out` [n, i]; if `fresh`, overwrite `out`."""
    # In two steps, because the rows of `out` are not contiguous and `baddbmm_` would process them one by one.
    total = torch.matmul(weights.unsqueeze(1), a).squeeze(1)
    out.copy_(total) if fresh else out.add_(total)

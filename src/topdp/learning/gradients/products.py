"""Products of each agent's activations with its own matrices: our own tiles where a processor has them.

Libraries take each agent's product as a call of its own, and lose up to half of their time around it; and
torch's (MKL) leaves half of an AMD processor idle. Our tiles (`tiles`) were faster than MKL and oneDNN in
every shape that we tried, on processors with AVX-512. Others, other types and GPUs have torch's products.
Which it is follows from the machine alone. Results differ in rounding only. Not for convolutions.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, final

import torch
from torch import Tensor

from topdp.learning.threads import in_parts

NARROW = 16
"""Outputs up to which a processor takes half the time for torch's product the other way round."""

SHARED = 1 << 21
"""Multiplications from which threads share a product: fewer take no longer than it takes to wake them."""


@cache
def has_tiles() -> bool:
    """Whether this processor is wide enough for our own products."""
    if find_spec("numba") is None:  # it is there where topdp is installed, and not needed with a GPU
        return False
    from topdp.learning.gradients import tiles

    return tiles.here()


def _fit(*parts: tuple[Tensor, tuple[int, ...]]) -> bool:
    """Whether these, of these shapes, are for our own products; others torch takes, or refuses.

    Tiles look at no shape twice: they would read, and write, what lies beyond a matrix that is too small.
    """
    fits = all(
        part.device.type == "cpu" and part.dtype == torch.float32 and part.shape == shape
        for part, shape in parts
    )
    return fits and has_tiles()


def linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[n, m, out] of a [n, m, in], with every agent's own weight [n, out, in] and bias [n, out]."""
    if a.requires_grad and a.device.type == "cpu":
        product: Tensor = _Linear.apply(a, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return _linear(a, weight, bias)


def _linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    n, m, k, o = *a.shape, weight.shape[1]
    others = [] if bias is None else [(bias, (n, o))]
    if _fit((a, (n, m, k)), (weight, (n, o, k)), *others):
        return _tiled(a, weight, bias)
    if weight.shape[1] > NARROW or a.device.type != "cpu":
        return torch.bmm(a, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, weight.mT)
    turned = torch.bmm(weight, a.mT) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, a.mT)
    return turned.mT.contiguous()


def _tiled(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = a.new_empty(*a.shape[:2], weight.shape[1])
    if bias is None and weight.stride(2) != 1 == weight.stride(1):  # turned: it lies along the outputs
        _outers(out, a.mT, weight.mT, fresh=True)
        return out
    from topdp.learning.gradients import tiles

    none = a.new_empty(0, weight.shape[1])
    x, w, b, product = _arrays(_along(a), _along(weight), none if bias is None else _along(bias), out)
    if _is_for_one(a, weight.shape[1]):
        tiles.dots(x, w, b, product)
    elif len(a) >= torch.get_num_threads():
        in_parts(lambda some: tiles.dots(x[some], w[some], b[some], product[some]), len(a))
    else:
        in_parts(lambda some: tiles.dots(x[:, some], w, b, product[:, some]), a.shape[1])
    return out


def _outers(out: Tensor, delta: Tensor, a: Tensor, fresh: bool) -> None:
    from topdp.learning.gradients import tiles

    total, d, x = _arrays(out, delta, _along(a))
    if _is_for_one(a, delta.shape[2]):
        tiles.outers(total, d, x, fresh)
    elif len(a) >= torch.get_num_threads():
        in_parts(lambda some: tiles.outers(total[some], d[some], x[some], fresh), len(a))
    else:
        in_parts(lambda some: tiles.outers(total[:, some], d[:, :, some], x, fresh), delta.shape[2])


def _is_for_one(a: Tensor, width: int) -> bool:
    """Whether one thread is soonest done with products of a and matrices of this width."""
    return torch.get_num_threads() == 1 or a.numel() * width < SHARED


def _along(x: Tensor) -> Tensor:
    """Without gaps along the last axis."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]


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
    n, m, i, o = *a.shape, delta.shape[2]
    if _fit((out, (n, o, i)), (delta, (n, m, o)), (a, (n, m, i))) and out.stride(2) == 1:
        _outers(out, delta, a, fresh)
    else:
        out.baddbmm_(delta.mT, a, beta=0 if fresh else 1)


def add_sum(out: Tensor, weights: Tensor, a: Tensor, fresh: bool = False) -> None:
    """out [n, i] gets (or, where `fresh`, becomes) the sum over m of weights [n, m] times a [n, m, i]."""
    n, m, i = a.shape
    if _fit((out, (n, i)), (weights, (n, m)), (a, (n, m, i))) and out.stride(1) == 1:
        _outers(out.unsqueeze(1), weights.unsqueeze(2), a, fresh)
        return
    # Two steps: in `out` rows lie apart, and `baddbmm_` would take them one by one.
    total = torch.matmul(weights.unsqueeze(1), a).squeeze(1)
    out.copy_(total) if fresh else out.add_(total)

"""Norms and clip factors of examples on an NVIDIA GPU: one kernel in place of many.

The time of a small round on a GPU is proportional to its number of kernels. The arithmetic is that of
`safe_norms.squared_norms` and `clipping_rules.clip_factors`. Needs Triton, as `window_layers_cuda` does.
"""

# Triton compiles the kernels below from their source, so annotations and types follow Triton's rules.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-unimported"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SQUARED_WIDTH = 1024  # numbers of an example in one step
FACTOR_BLOCK_EXAMPLES = 256  # examples in one program


@triton.jit
def _squared(out, x, b, size, x_n, x_b, x_k, underflown, WIDTH: tl.constexpr):
    """Set out[m] to Σ_k x[m, k]² + underflown."""
    m = tl.program_id(0).to(tl.int64)
    own = x + m // b * x_n + m % b * x_b
    total = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, size, WIDTH):
        k = first + tl.arange(0, WIDTH)
        value = tl.load(own + k.to(tl.int64) * x_k, mask=k < size, other=0.0)
        total += value * value
    tl.store(out + m, tl.sum(total, 0) + underflown)


@triton.jit
def _flat(factor, longer, bad, squares, clip, size, BLOCK: tl.constexpr):
    """Store clip / max(norm, clip) (Algorithm 1, line "clip"); a norm that is not finite counts as 0."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    norm = tl.sqrt_rn(tl.load(squares + i, mask=inside, other=0.0))
    finite = norm < float("inf")  # false for NaN
    norm = tl.where(finite, norm, 0.0)
    tl.store(factor + i, tl.div_rn(clip, tl.maximum(norm, clip)), mask=inside)
    tl.store(longer + i, (norm > clip).to(tl.uint8), mask=inside)
    tl.store(bad + i, (finite == 0).to(tl.uint8), mask=inside)


def squared_norms(x: Tensor, underflown: float) -> Tensor:
    """Return [n, b] the squared norm of every x[i, j], plus `underflown`."""
    x = x.flatten(2)
    n, b, size = x.shape
    out = x.new_empty(n, b)
    width = min(MAX_SQUARED_WIDTH, max(16, triton.next_power_of_2(size)))
    if n * b:
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _squared[(n * b,)](
                out, x, b, size, *x.stride(), underflown, WIDTH=width, num_warps=4 if width > 256 else 1
            )
    return out


def flat_clip_factors(squares: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return three tensors [n, b] for gradients with these squared norms: clip factors, whether the gradient
    is longer than the clip, and whether its norm is not finite.
    """
    squares = squares.contiguous()  # the kernel ignores strides
    factor = torch.empty_like(squares)
    longer, bad = (torch.empty_like(squares, dtype=torch.bool) for _ in range(2))
    if squares.numel():
        with torch.cuda.device_of(squares):
            _flat[(triton.cdiv(squares.numel(), FACTOR_BLOCK_EXAMPLES),)](
                factor, longer.view(torch.uint8), bad.view(torch.uint8), squares, clip, squares.numel(),
                BLOCK=FACTOR_BLOCK_EXAMPLES,
            )  # fmt: skip
    return factor, longer, bad

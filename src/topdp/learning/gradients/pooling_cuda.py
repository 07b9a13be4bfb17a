"""Max-pooling with windows that do not overlap, on an NVIDIA GPU, and its gradient.

PyTorch's gradient adds up what overlapping windows send back, and takes longer here than a convolution.
Without overlap, every input reads from its only window. Needs Triton, as `convolution_cuda` does.
"""

# Triton compiles the kernels below from their source: annotations and untyped names are Triton's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-unimported"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

POOLING_BLOCK_ELEMENTS = 512  # elements in one program


@triton.jit
def _forward(out, winner, x, size, H: tl.constexpr, W: tl.constexpr, HEIGHT: tl.constexpr,
             WIDTH: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """The largest value of each window, and its index: the first of equal values, as in PyTorch."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    spot = (i % (HEIGHT * WIDTH)).to(tl.int32)
    corner = x + i // (HEIGHT * WIDTH) * (H * W) + (spot // WIDTH) * (KH * W) + (spot % WIDTH) * KW
    largest = tl.load(corner, mask=i < size, other=0.0)
    which = tl.zeros((B,), tl.int32)
    for tap in tl.static_range(1, KH * KW):
        value = tl.load(corner + (tap // KW) * W + tap % KW, mask=i < size, other=0.0)
        better = (value > largest) | (value != value)  # NaN stays
        largest = tl.where(better, value, largest)
        which = tl.where(better, tap, which)
    tl.store(out + i, largest, mask=i < size)
    tl.store(winner + i, which.to(tl.uint8), mask=i < size)


@triton.jit
def _backward(dx, delta, winner, size, H: tl.constexpr, W: tl.constexpr, HEIGHT: tl.constexpr,
              WIDTH: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """dx[i] = delta of the window of i, if i was its largest value."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    p = (i % (H * W)).to(tl.int32)
    y, z = p // W, p % W
    inside = (i < size) & (y < HEIGHT * KH) & (z < WIDTH * KW)
    window = i // (H * W) * (HEIGHT * WIDTH) + (y // KH) * WIDTH + z // KW
    won = tl.load(winner + window, mask=inside, other=0).to(tl.int32) == (y % KH) * KW + z % KW
    delta_block = tl.load(delta + window, mask=inside, other=0.0)
    tl.store(dx + i, tl.where(won, delta_block, 0.0), mask=i < size)


class _MaxPool(torch.autograd.Function):
    """Max-pooling. Of equal values the first counts, of several NaNs the last, as in PyTorch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int]) -> Tensor:
        x = x.contiguous()
        H, W = x.shape[-2:]
        height, width = H // kernel[0], W // kernel[1]
        out = x.new_empty(*x.shape[:-2], height, width)
        winner = torch.empty_like(out, dtype=torch.uint8)
        ctx.sizes = {"H": H, "W": W, "HEIGHT": height, "WIDTH": width, "KH": kernel[0], "KW": kernel[1]}
        ctx.shape = x.shape
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _forward[(triton.cdiv(out.numel(), POOLING_BLOCK_ELEMENTS),)](
                out, winner, x, out.numel(), **ctx.sizes, B=POOLING_BLOCK_ELEMENTS
            )
        ctx.save_for_backward(winner)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        delta = deltas[0].contiguous()
        dx = delta.new_empty(ctx.shape)
        with torch.cuda.device_of(delta):
            _backward[(triton.cdiv(dx.numel(), POOLING_BLOCK_ELEMENTS),)](
                dx, delta, winner, dx.numel(), **ctx.sizes, B=POOLING_BLOCK_ELEMENTS
            )
        return dx, None


def max_pool(x: Tensor, kernel: tuple[int, int]) -> Tensor:
    """Pool x [..., H, W] in small windows, which are unrolled; the rest beyond the last window is dropped."""
    out: Tensor = _MaxPool.apply(x, kernel)
    return out

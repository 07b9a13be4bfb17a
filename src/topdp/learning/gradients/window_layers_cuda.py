"""Convolutions in which every agent has its own kernel, and max-pooling, on an NVIDIA GPU.

Libraries compute the agents as groups of one convolution, with one small launch per group, or first copy
every patch of every image. Here one launch serves all agents, and patches are read in place.

PyTorch's gradient of max-pooling adds up the gradients of overlapping windows, and takes longer for these
models than a convolution. Windows here do not overlap, so every input reads the gradient of its only window.

Needs Triton, which is part of PyTorch's CUDA builds; `convolutions` and `ghost_norms` import this module only
if there is a GPU.
"""

# Triton compiles the kernels below from their source, so annotations and types follow Triton's rules.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-unimported"

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from topdp.errors import InputError

if TYPE_CHECKING:
    from topdp.learning.gradients.ghost_norms import ConvolutionGeometry


# These block sizes and numbers of warps were the fastest on an H200 with the paper's network.
CONVOLUTION_BLOCK = 128  # positions, or elements of a kernel, in one program
HALF_CONVOLUTION_BLOCK = 64
CONVOLUTION_DEPTH = 32  # depth of one step of the matrix units
HALF_CONVOLUTION_DEPTH = 16
MAX_SCALAR_CHANNELS = 8  # up to this many channels, plain float32 arithmetic is used instead of matrix units
MAX_EXAMPLE_SPAN = 2**31  # elements; offsets within one example are 32 bits wide, which is faster


@triton.jit
def _forward(out, x, weight, bias, b, x_n, x_b, x_c, x_h, x_w, w_n, b_n, L: tl.constexpr,
             OUT: tl.constexpr, K: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
             SH: tl.constexpr, SW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, WIDTH: tl.constexpr,
             BIAS: tl.constexpr, MATRIX: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, BL: tl.constexpr,
             PRECISION: tl.constexpr):  # fmt: skip
    """Set out[m, o, spot] to bias[o] + Σ_k weight[o, k]·patch[m, k, spot], for output positions `spot`."""
    m = tl.program_id(0).to(tl.int64)
    agent, example = m // b, m % b
    o, spot = tl.arange(0, BO), tl.program_id(1) * BL + tl.arange(0, BL)
    image, kernel = x + agent * x_n + example * x_b, weight + agent * w_n
    corner = (spot // WIDTH) * SH * x_h + (spot % WIDTH) * SW * x_w
    total = tl.zeros((BO, BL), tl.float32)
    if MATRIX:
        for first in range(0, K, BK):
            k = first + tl.arange(0, BK)
            c, kh, kw = k // (KH * KW), (k // KW) % KH, k % KW
            offset = c * x_c + kh * DH * x_h + kw * DW * x_w
            inside = (k < K)[:, None] & (spot < L)[None, :]
            patch = tl.load(image + (corner[None, :] + offset[:, None]), mask=inside, other=0.0)
            own = tl.load(kernel + (o[:, None] * K + k[None, :]),
                          mask=(o < OUT)[:, None] & (k < K)[None, :], other=0.0)  # fmt: skip
            total = tl.dot(own, patch, total, input_precision=PRECISION)
    else:
        for k in tl.range(0, K, loop_unroll_factor=5):
            c, kh, kw = k // (KH * KW), (k // KW) % KH, k % KW
            offset = c * x_c + kh * DH * x_h + kw * DW * x_w
            patch = tl.load(image + offset + corner, mask=spot < L, other=0.0)
            own = tl.load(kernel + k + o * K, mask=o < OUT, other=0.0)
            total += own[:, None] * patch[None, :]
    if BIAS:
        total += tl.load(bias + agent * b_n + o, mask=o < OUT, other=0.0)[:, None]
    tl.store(
        out + (m * OUT + o[:, None]) * L + spot[None, :], total, mask=(o < OUT)[:, None] & (spot < L)[None, :]
    )


@triton.jit
def _backward(dx, delta, weight, b, H, W, w_n,
              OUT: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
              SH: tl.constexpr, SW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
              HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
              MATRIX: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr, BL: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    """Set dx[m, c, p] to Σ_{o, kh, kw} weight[o, c, kh, kw]·delta[m, o, spot].

    Here `spot` is the output position for which kernel element (kh, kw) lies on input position p.
    """
    m = tl.program_id(0).to(tl.int64)
    c, p = tl.arange(0, BC), tl.program_id(1) * BL + tl.arange(0, BL)
    y, z = p // W, p % W
    above = delta + m * (OUT * HEIGHT * WIDTH)
    kernel = weight + (m // b) * w_n
    total = tl.zeros((BC, BL), tl.float32)
    for tap in range(KH * KW):
        row, column = y - tap // KW * DH, z - tap % KW * DW
        inside = (p < H * W) & (row >= 0) & (column >= 0) & (row % SH == 0) & (column % SW == 0)
        inside = inside & (row < HEIGHT * SH) & (column < WIDTH * SW)
        at = (row // SH) * WIDTH + column // SW
        if MATRIX:
            for first in range(0, OUT, BO):
                o = first + tl.arange(0, BO)
                delta_block = tl.load(above + (at[None, :] + o[:, None] * (HEIGHT * WIDTH)),
                                     mask=(o < OUT)[:, None] & inside[None, :], other=0.0)  # fmt: skip
                own = tl.load(kernel + ((o[None, :] * C + c[:, None]) * (KH * KW) + tap),
                              mask=(c < C)[:, None] & (o < OUT)[None, :], other=0.0)  # fmt: skip
                total = tl.dot(own, delta_block, total, input_precision=PRECISION)
        else:
            for o in tl.range(0, OUT, loop_unroll_factor=16):
                delta_block = tl.load(above + o * (HEIGHT * WIDTH) + at, mask=inside, other=0.0)
                own = tl.load(kernel + (o * (C * KH * KW) + tap) + c * (KH * KW), mask=c < C, other=0.0)
                total += own[:, None] * delta_block[None, :]
    where = (c < C)[:, None] & (p < H * W)[None, :]
    tl.store(dx + (m * C + c[:, None]) * (H * W) + p[None, :], total, mask=where)


@triton.jit
def _per_example(out, x, delta, b, x_n, x_b, x_c, x_h, x_w, d_n, d_b, d_o, L: tl.constexpr,
                 OUT: tl.constexpr, K: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
                 SH: tl.constexpr, SW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, WIDTH: tl.constexpr,
                 BO: tl.constexpr, BK: tl.constexpr, BL: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Set out[m, o, k] to Σ_spot delta[m, o, spot]·patch[m, k, spot]."""
    m = tl.program_id(0).to(tl.int64)
    agent, example = m // b, m % b
    o, k = tl.arange(0, BO), tl.program_id(1) * BK + tl.arange(0, BK)
    c, kh, kw = k // (KH * KW), (k // KW) % KH, k % KW
    image, above = x + agent * x_n + example * x_b, delta + agent * d_n + example * d_b
    start = c * x_c + kh * DH * x_h + kw * DW * x_w
    total = tl.zeros((BO, BK), tl.float32)
    for first in range(0, L, BL):
        spot = first + tl.arange(0, BL)
        offset = (spot // WIDTH) * SH * x_h + (spot % WIDTH) * SW * x_w
        # Neighbouring threads read neighbouring positions.
        patch = tl.load(image + (start[:, None] + offset[None, :]),
                        mask=(k < K)[:, None] & (spot < L)[None, :], other=0.0)  # fmt: skip
        delta_block = tl.load(above + (o[:, None] * d_o + spot[None, :]),
                             mask=(o < OUT)[:, None] & (spot < L)[None, :], other=0.0)  # fmt: skip
        total = tl.dot(delta_block, tl.trans(patch), total, input_precision=PRECISION)
    tl.store(out + (m * OUT + o[:, None]) * K + k[None, :], total, mask=(o < OUT)[:, None] & (k < K)[None, :])


class _Convolve(torch.autograd.Function):
    """A convolution that is differentiable only in x; gradients of the weights are computed per example."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry
    ) -> Tensor:
        x = _with_small_span(x)
        n, b, _, H, W = x.shape
        OUT, C, KH, KW = weight.shape[1:]
        height, width = geometry.output(H, W)
        out = x.new_empty(n * b, OUT, height, width)
        matrix = OUT > MAX_SCALAR_CHANNELS
        positions = CONVOLUTION_BLOCK if matrix else HALF_CONVOLUTION_BLOCK
        grid = (n * b, triton.cdiv(height * width, positions))
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _forward[grid](
                out, x, weight, bias, b, *x.stride(), weight.stride(0), 0 if bias is None else bias.stride(0),
                L=height * width, OUT=OUT, K=C * KH * KW, WIDTH=width, **_constants(geometry),
                BIAS=bias is not None, MATRIX=matrix,
                BO=_padded_power_of_two(OUT) if matrix else MAX_SCALAR_CHANNELS, BK=CONVOLUTION_DEPTH,
                BL=positions, PRECISION=_precision(), num_warps=4 if matrix else 1,
            )  # fmt: skip
        ctx.save_for_backward(weight)
        ctx.of = (x.shape, geometry)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        (n, b, C, H, W), geometry = ctx.of
        OUT = weight.shape[1]
        height, width = geometry.output(H, W)
        dx = weight.new_empty(n, b, C, H, W)
        matrix = C > MAX_SCALAR_CHANNELS
        positions = HALF_CONVOLUTION_BLOCK if matrix else CONVOLUTION_BLOCK
        grid = (n * b, triton.cdiv(H * W, positions))
        with torch.cuda.device_of(dx):
            _backward[grid](
                dx, deltas[0].contiguous(), weight, b, H, W, weight.stride(0),
                OUT=OUT, C=C, HEIGHT=height, WIDTH=width, **_constants(geometry),
                MATRIX=matrix, BC=_padded_power_of_two(C) if matrix else MAX_SCALAR_CHANNELS,
                BO=HALF_CONVOLUTION_DEPTH, BL=positions, PRECISION=_precision(),
                num_warps=4 if matrix else 1, num_stages=1,
            )  # fmt: skip
        return dx, None, None, None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry) -> Tensor:
    """Return the convolution [n·b, O, H', W'] of x [n, b, C, H, W] with weight [n, O, C, kh, kw] and bias
    [n, O].

    x is already padded.
    """
    out: Tensor = _Convolve.apply(x, weight, bias, geometry)
    return out


def per_example_gradients(x: Tensor, delta: Tensor, geometry: ConvolutionGeometry) -> Tensor:
    """Return [n, b, O·K] the gradients of the weight for each example.

    x [n, b, C, H, W] are the inputs, `delta` [n, b, O, H', W'] the output gradients.
    """
    n, b, C = x.shape[:3]
    OUT, width = delta.shape[2], delta.shape[4]
    x, delta = _with_small_span(x), _with_small_span(delta.flatten(3))
    K = C * geometry.kernel[0] * geometry.kernel[1]
    if delta.stride(3) != 1:
        delta = delta.contiguous()
    out = x.new_empty(n, b, OUT * K)
    columns = min(CONVOLUTION_BLOCK, _padded_power_of_two(K))
    with torch.cuda.device_of(x):
        _per_example[n * b, triton.cdiv(K, columns)](
            out, x, delta, b, *x.stride(), *delta.stride()[:3],
            L=delta.shape[3], OUT=OUT, K=K, WIDTH=width, **_constants(geometry),
            BO=_padded_power_of_two(OUT), BK=columns, BL=HALF_CONVOLUTION_DEPTH, PRECISION=_precision(),
            num_warps=2 if OUT <= 16 else 4,
        )  # fmt: skip
    return out


def _with_small_span(x: Tensor) -> Tensor:
    """Return x [n, b, ...], copied if the elements of one example lie too far apart in memory.

    Raise InputError if an example has too many elements for offsets of 32 bits.
    """
    if math.prod(x.shape[2:]) >= MAX_EXAMPLE_SPAN:
        raise InputError(
            f"Expected fewer than {MAX_EXAMPLE_SPAN} numbers for one example of a layer, got "
            f"{tuple(x.shape[2:])}. Make the examples smaller, or compute on a CPU."
        )
    sizes = zip(x.shape[2:], x.stride()[2:], strict=True)
    return x if sum((size - 1) * stride for size, stride in sizes) < MAX_EXAMPLE_SPAN else x.contiguous()


def _constants(geometry: ConvolutionGeometry) -> dict[str, int]:
    names = ("KH", "KW", "SH", "SW", "DH", "DW")
    return dict(zip(names, geometry.kernel + geometry.stride + geometry.dilation, strict=True))


def _padded_power_of_two(size: int) -> int:
    """Return the smallest power of two >= `size`, but at least 16, the minimum of the matrix units."""
    return max(16, int(triton.next_power_of_2(size)))


def _precision() -> str:
    """Return the precision of products of matrix units, as set in torch for matrix products.

    Layers with few channels use no matrix units, and always compute in float32.
    """
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


POOLING_BLOCK_ELEMENTS = 512  # elements in one program


@triton.jit
def _pool_forward(out, winner, x, size, H: tl.constexpr, W: tl.constexpr, HEIGHT: tl.constexpr,
             WIDTH: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Store the largest value of each window, and its index; of equal values the first, as in PyTorch."""
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
def _pool_backward(dx, delta, winner, size, H: tl.constexpr, W: tl.constexpr, HEIGHT: tl.constexpr,
              WIDTH: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Set dx[i] to the delta of the window that contains i if i is its largest value, and otherwise to 0."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    p = (i % (H * W)).to(tl.int32)
    y, z = p // W, p % W
    inside = (i < size) & (y < HEIGHT * KH) & (z < WIDTH * KW)
    window = i // (H * W) * (HEIGHT * WIDTH) + (y // KH) * WIDTH + z // KW
    won = tl.load(winner + window, mask=inside, other=0).to(tl.int32) == (y % KH) * KW + z % KW
    delta_block = tl.load(delta + window, mask=inside, other=0.0)
    tl.store(dx + i, tl.where(won, delta_block, 0.0), mask=i < size)


class _MaxPool(torch.autograd.Function):
    """Max-pooling. Of equal values the first one is used, of several NaNs the last one, as in PyTorch."""

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
            _pool_forward[(triton.cdiv(out.numel(), POOLING_BLOCK_ELEMENTS),)](
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
            _pool_backward[(triton.cdiv(dx.numel(), POOLING_BLOCK_ELEMENTS),)](
                dx, delta, winner, dx.numel(), **ctx.sizes, B=POOLING_BLOCK_ELEMENTS
            )
        return dx, None


def max_pool(x: Tensor, kernel: tuple[int, int]) -> Tensor:
    """Return the largest value of each window of x [..., H, W].

    The loop over a window is unrolled, so windows should be small. Numbers beyond the last whole
    window are ignored.
    """
    out: Tensor = _MaxPool.apply(x, kernel)
    return out

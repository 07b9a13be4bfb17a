"""Norms in floating point that are too long rather than too short if sums underflow or cancel.

A gradient is scaled by its norm, so a record would count for more than the clip if the computed norm were too
short. Where sums may underflow or cancel, the norms here are therefore too long rather than too short. The
ordinary relative rounding error is not corrected. A norm that overflows is infinite, and the callers let such
a gradient count as zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import torch
from torch import Tensor

_minimum_unit: ContextVar[float] = ContextVar("finest", default=0.0)
HAS_TRITON = find_spec("triton") is not None


def takes_cuda_kernels(x: Tensor) -> bool:
    """Return whether topdp's own GPU kernels support `x`."""
    return x.is_cuda and x.dtype == torch.float32 and HAS_TRITON


def squared_norms(x: Tensor) -> Tensor:
    """Return the squared l2 norms over all except the first two axes, without a copy of the size of `x`.

    A result is never below the exact value by more than a relative rounding error, because the largest
    possible underflow of every square is added. For numbers of ordinary size, this makes no difference.
    """
    if takes_cuda_kernels(x):
        from topdp.learning.gradients import clipping_cuda

        return clipping_cuda.squared_norms(x, _underflow_slack(x))
    norms: Tensor = torch.linalg.vector_norm(x.flatten(2), dim=2)
    return norms.square_().add_(_underflow_slack(x))


def _underflow_slack(x: Tensor) -> float:
    """Return the most that a squared norm can lose because squares of small numbers underflow."""
    return math.prod(x.shape[2:]) * torch.finfo(x.dtype).tiny


def cancellation_slack(a: Tensor, delta: Tensor, uses: float = 1.0) -> Tensor:
    """Return [n, b] how much too small the computed squared norm of Σ_l δ_l a_lᵀ may be if the sum cancels.

    a and δ are [n, b, ...]. The rounding error is relative to |a|²|δ|², which bounds all terms, and not
    relative to the sum that remains. Each a enters `uses` times. Errors of a product grow with the square
    root of its number of terms. This function allows four units in the last place for 64 terms, and 16 for
    1,000 (observed on a GPU: up to 5).
    """
    tf32 = a.is_cuda and a.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    unit = max(_minimum_unit.get(), 2.0**-10 if tf32 else torch.finfo(a.dtype).eps)
    lengths, deltas = squared_norms(a) * uses, squared_norms(delta)
    lost = lengths * _underflow_slack(delta) + deltas * _underflow_slack(a)
    terms = max(math.prod(part.shape[2:]) for part in (a, delta))
    return lost.add_(lengths * deltas, alpha=4 * unit * max(1.0, math.sqrt(terms / 64)))


@contextmanager
def minimum_rounding_unit(unit: float) -> Iterator[None]:
    """Compute `cancellation_slack` as for a number type with at least this rounding unit, inside the `with`
    block.

    Then no clipped gradient is a sum of terms that are far longer than the gradient. A record whose terms
    cancel is scaled to the clip C by its norm, so the norms of its terms are at most C / (2·√unit).
    """
    token = _minimum_unit.set(unit)
    try:
        yield
    finally:
        _minimum_unit.reset(token)


def cudnn_as_precise_as_matmul() -> AbstractContextManager[None]:
    """Return a context in which cuDNN rounds as matrix products do.

    By default, torch allows cuDNN, but not matrix products, to round to 10 bits.
    """
    dnn = torch.backends.cudnn
    settings = {"enabled": dnn.enabled, "benchmark": dnn.benchmark, "deterministic": dnn.deterministic}
    flags: AbstractContextManager[None] = dnn.flags(
        **settings, allow_tf32=torch.backends.cuda.matmul.allow_tf32
    )
    return flags

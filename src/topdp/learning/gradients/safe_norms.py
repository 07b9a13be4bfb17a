"""Norms in floating point that err on the long side where underflow or cancellation would make them too
short.

A gradient is scaled by its norm, so a norm that is too short lets a record count for more than the clip. An
ordinary relative error is left as it is. A norm that overflows is infinite, and such a gradient counts as
zero elsewhere.
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
    """Whether our own GPU kernels support x."""
    return x.is_cuda and x.dtype == torch.float32 and HAS_TRITON


def squared_norms(x: Tensor) -> Tensor:
    """Return squared l2 norms over all but the first two axes, without a temporary of the size of x.

    Never below the exact value by more than a relative rounding error: what may underflow, number by number,
    is added. Compared with numbers of ordinary size that is nothing.
    """
    if takes_cuda_kernels(x):
        from topdp.learning.gradients import clipping_cuda

        return clipping_cuda.squared_norms(x, _underflow_slack(x))
    norms: Tensor = torch.linalg.vector_norm(x.flatten(2), dim=2)
    return norms.square_().add_(_underflow_slack(x))


def _underflow_slack(x: Tensor) -> float:
    """The most that squares of numbers too small for their type would have added."""
    return math.prod(x.shape[2:]) * torch.finfo(x.dtype).tiny


def cancellation_slack(a: Tensor, delta: Tensor, uses: float = 1.0) -> Tensor:
    """Return [n, b]: by how much the squared norm of Σ_l δ_l a_lᵀ may come out too low where the sum cancels.

    a, δ [n, b, ...]. Rounding is relative to |a|²|δ|², a bound on all terms (in which each a enters `uses`
    times), and not to the remaining sum. Errors of a product grow with the square root of its number of
    terms: a few units in the last place for 64 terms, 16 for 1,000 (observed on a GPU: up to 5).
    """
    tf32 = a.is_cuda and a.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    unit = max(_minimum_unit.get(), 2.0**-10 if tf32 else torch.finfo(a.dtype).eps)
    lengths, deltas = squared_norms(a) * uses, squared_norms(delta)
    lost = lengths * _underflow_slack(delta) + deltas * _underflow_slack(a)
    terms = max(math.prod(part.shape[2:]) for part in (a, delta))
    return lost.add_(lengths * deltas, alpha=4 * unit * max(1.0, math.sqrt(terms / 64)))


@contextmanager
def minimum_rounding_unit(unit: float) -> Iterator[None]:
    """Compute `cancellation_slack` as in a type with at least this rounding unit, within the block.

    Then no sum that remains has terms far longer than itself.

    A record whose terms cancel is scaled to the clip C by its norm, so its terms are at most C / (2·√unit)
    long.
    """
    token = _minimum_unit.set(unit)
    try:
        yield
    finally:
        _minimum_unit.reset(token)


def cudnn_as_precise_as_matmul() -> AbstractContextManager[None]:
    """Let cuDNN round as matrix products do. By default torch lets only cuDNN round to 10 bits."""
    dnn = torch.backends.cudnn
    settings = {"enabled": dnn.enabled, "benchmark": dnn.benchmark, "deterministic": dnn.deterministic}
    flags: AbstractContextManager[None] = dnn.flags(
        **settings, allow_tf32=torch.backends.cuda.matmul.allow_tf32
    )
    return flags

"""Bounds on the rounding errors of float64 arithmetic.

A sum of n products differs from its exact value by at most γ_n = n·u/(1 - n·u) times the sum of their
absolute values, in every order of summation and with fused products (Higham 2002, Accuracy and Stability of
Numerical Algorithms, Lemma 3.1 and Equation 3.4). The bounds hold unless a product underflows.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from topdp.base.array_types import Floats

UNIT_ROUNDOFF = 2.0**-53

# Squares and quotients of variances in this range neither overflow nor underflow.
LEAST_SAFE_VARIANCE, LARGEST_SAFE_VARIANCE = 1e-70, 1e70


@overload
def gamma(operations: int) -> float: ...
@overload
def gamma(operations: Floats) -> Floats: ...
def gamma(operations: int | Floats) -> float | Floats:
    """Return γ_n for n = `operations`.

    >>> gamma(1) >= UNIT_ROUNDOFF
    True
    """
    return operations * UNIT_ROUNDOFF / (1 - operations * UNIT_ROUNDOFF)


def binary_root(values: Floats) -> Floats:
    """Return the power of two that is nearest to the root of each of `values` > 0, in ratio.

    Products and quotients with powers of two are exact. The square of the result is between half and twice
    the value.

    >>> binary_root(np.array([1.0, 3.0, 8.0])).tolist()
    [1.0, 2.0, 4.0]
    """
    return np.asarray(np.ldexp(1.0, np.rint(np.log2(values) / 2).astype(np.int64)))

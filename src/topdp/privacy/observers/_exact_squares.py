"""The information sᵀ(BBᵀ)⁺s of one release in exact fractions, for noise that float64 does not resolve.

**Guarantees.** The result is rounded up. It is infinite exactly if noise does not hide the change s at all,
or if there are too many rows.
"""

from __future__ import annotations

import math

import flint
import numpy as np

from topdp.base.array_types import Floats

MAX_FRACTION_ROWS = 32


def exact_squares(B: Floats, S: Floats) -> Floats:
    """Return sᵀ(BBᵀ)⁺s for each column s of S; infinite if s is not in the range of B.

    `B` [rows, draws]: the standard deviations. `S` [rows, changes].

    >>> exact_squares(np.array([[1.0, 0.0], [1.0, 1e-30]]), np.array([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [1.0000000000000002, 1e+60]
    """
    rows, changes = S.shape
    if rows > MAX_FRACTION_ROWS:
        return np.where(S.any(axis=0), np.inf, 0.0)
    B = B[:, B.any(axis=0)]
    N = [[flint.fmpq(*float(std).as_integer_ratio()) for std in row] for row in B]
    C = [
        [sum((x * y for x, y in zip(N[a], N[b], strict=True)), flint.fmpq(0)) for b in range(rows)]
        for a in range(rows)
    ]
    T = [[flint.fmpq(*float(s).as_integer_ratio()) for s in row] for row in S]
    squares, leaks = [flint.fmpq(0)] * changes, np.zeros(changes, bool)
    for a in range(rows):
        left = C[a][a]
        if left == 0:  # then its whole row is 0, because C is positive semidefinite
            leaks |= np.array([s != 0 for s in T[a]], bool)
            continue
        squares = [total + s * s / left for total, s in zip(squares, T[a], strict=True)]
        for b in range(a + 1, rows):
            share = C[b][a] / left
            if share != 0:
                C[b] = [x - share * y for x, y in zip(C[b], C[a], strict=True)]
                T[b] = [x - share * y for x, y in zip(T[b], T[a], strict=True)]
    return np.where(leaks, np.inf, [_rounded_up(square) for square in squares])


def _rounded_up(value: flint.fmpq) -> float:
    """Return a float that is not less than `value` >= 0."""
    try:
        return math.nextafter(int(value.p) / int(value.q), math.inf) if value != 0 else 0.0
    except OverflowError:
        return math.inf

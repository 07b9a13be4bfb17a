"""A dense oracle of what an observer learns, written only from the definitions in topdp.plan; for tests only.

Every row of every round is an affine function of the owner's changes u_0 .. u_T and of all draws.
`coefficients` writes the rows that the observer sees as O = A u + B z, where z are the draws that it does
not know; `gram` computes M = Aᵀ(BBᵀ)⁺A, infinite where A leaves the range of B; `bracket` encloses max uᵀMu
over vectors |u_t| <= 1. The code is simple and slow: it orthogonalises one row after the other, in the
number type of its arguments (floats, 60 decimal digits, or exact fractions). It shares no code with
`topdp.privacy`.

`public` states what the observer sees:

    "nothing"    the coalition J sees the rows that it reads and the rows that it makes
    "estimates"  also every agent's estimate of every round
    "links"      also every row that some agent reads

J knows the draws that one of its members knows; an outsider is the empty J.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from topdp.plan import Plan

Number = Callable[[float], Any]
Reaction = Callable[[int, list[np.ndarray]], np.ndarray]
"""(round, rows of all rounds before) -> [agents, width, ...]: how gradients follow from rows, linearly."""

getcontext().prec = 60  # digits of Decimal, for reactions with gains too large for floats


PRECISION: dict[type, tuple[Any, Any, int]] = {
    float: (1e-12, 1e-9, 2),
    Decimal: (Decimal("1e-45"), Decimal("1e-30"), 1),
    Fraction: (0, 0, 1),
}
"""With less than the first of its length left, a row tells nothing new; with more than the second, something;
and how often it is orthogonalised."""


class AmbiguousError(Exception):
    """Too few digits to tell whether a row adds something: use Decimal or Fraction."""


def seen(plan: Plan, round: int, J: Sequence[int], public: str) -> np.ndarray:
    """[m]: which rows of the round the observer sees."""
    this = plan[round]
    mine = np.isin(plan.owner, J) | (np.isin(this.readers, J) & (this.readers >= 0)).any(axis=1)
    if public in ("estimates", "links"):
        mine |= np.arange(plan.rows) < plan.agents
    if public == "links":
        mine |= (this.readers >= 0).any(axis=1)
    return mine & this.exists


def hidden_draws(plan: Plan, J: Sequence[int]) -> np.ndarray:
    """The draws that no member of J knows."""
    return np.flatnonzero(~(np.isin(plan.known_by, J) & (plan.known_by >= 0)).any(axis=1))


def every_row(
    plan: Plan,
    owner: int,
    J: Sequence[int],
    number: Number = float,
    react: Reaction | None = None,
    width: int = 1,
) -> list[np.ndarray]:
    """Per round [m, width, R + hidden draws of all rounds and coordinates]: coefficients of u, then of z.

    Each of the `width` coordinates has its own draws; the owner changes the first coordinate.
    """
    R, hidden = plan.releases, hidden_draws(plan, J)
    place = {int(d): i for i, d in enumerate(hidden)}
    kind = float if number is float else object
    zero, one = number(0.0), number(1.0)
    rounds: list[np.ndarray] = []
    before = np.full((plan.rows, width, R + R * len(hidden) * width), zero, kind)
    for r, this in enumerate(plan):
        gradient = np.full((plan.agents, *before.shape[1:]), zero, kind)
        if react is not None and r > 0:
            gradient = gradient + react(r, rounds)
        gradient[owner, 0, r] = gradient[owner, 0, r] + one
        rows = np.full(before.shape, zero, kind)
        for m in np.flatnonzero(this.exists):
            for source, weight in zip(this.source[m], this.weight[m], strict=True):
                if source >= 0 and weight != 0:
                    rows[m] = rows[m] + number(float(weight)) * before[source]
            if this.step[m] != 0:
                rows[m] = rows[m] + number(float(this.step[m])) * gradient[plan.owner[m]]
            for draw, std in zip(this.draw[m], this.std[m], strict=True):
                if int(draw) in place:
                    first = R + (r * len(hidden) + place[int(draw)]) * width
                    for c in range(width):
                        rows[m, c, first + c] = rows[m, c, first + c] + number(float(std))
        rounds.append(rows)
        before = rows
    return rounds


def coefficients(
    plan: Plan,
    owner: int,
    J: Sequence[int] = (),
    public: str = "nothing",
    number: Number = float,
    react: Reaction | None = None,
    width: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """A [numbers seen, R] and B [numbers seen, hidden draws], round after round."""
    return of_rows(plan, every_row(plan, owner, J, number, react, width), J, public)


def of_rows(
    plan: Plan, rounds: list[np.ndarray], J: Sequence[int], public: str
) -> tuple[np.ndarray, np.ndarray]:
    """The same from given rows."""
    found = [rows[seen(plan, r, J, public)].reshape(-1, rows.shape[-1]) for r, rows in enumerate(rounds)]
    everything = np.concatenate(found)
    return everything[:, : plan.releases], everything[:, plan.releases :]


class Whitened(NamedTuple):
    """What the observer sees, as independent numbers of variance one: shift·u + noise·z."""

    shift: np.ndarray  # [numbers, R]
    noise: np.ndarray  # [numbers, hidden draws], orthonormal rows


def whitened(A: np.ndarray, B: np.ndarray) -> Whitened | None:
    """Each row minus its projection on the rows before it; None if some change is seen without noise."""
    kind = type(A.flat[0]) if A.size else float
    nothing, something, passes = PRECISION[kind if kind in PRECISION else float]
    basis: list[tuple[np.ndarray, np.ndarray, Any, int]] = []
    most = abs(A).max(initial=0)
    for a, b in zip(A, B, strict=True):
        a, b = a.copy(), b.copy()
        size = b @ b if len(b) else 0
        if size == 0 and max(abs(a)) > 0:
            return None
        for _ in range(passes):
            for α, q, d, end in basis:
                c = (b[:end] @ q[:end]) / d
                b[:end] = b[:end] - c * q[:end]
                a = a - c * α
        left = b @ b if len(b) else 0
        if left > something**2 * size:
            basis.append((a, b, left, int(np.flatnonzero(b)[-1]) + 1))  # later draws do not enter this row
        elif left > nothing**2 * size:
            raise AmbiguousError(f"Of a row of length² {size} there is left {left}.")
        elif max(abs(a)) > something * most:
            return None
    return Whitened(
        np.array([a.astype(float) / float(d) ** 0.5 for a, _, d, _ in basis]).reshape(len(basis), A.shape[1]),
        np.array([b.astype(float) / float(d) ** 0.5 for _, b, d, _ in basis]).reshape(len(basis), B.shape[1]),
    )


def gram(A: np.ndarray, B: np.ndarray) -> np.ndarray | None:
    """[R, R] M = Aᵀ(BBᵀ)⁺A; None where it is infinite."""
    found = whitened(A, B)
    return None if found is None else found.shift.T @ found.shift


def classes(R: int, period: int) -> list[np.ndarray]:
    """The rounds in which one record is used, for each position in the cycle."""
    return [np.arange(start, R, period) for start in range(min(period, R))]


def aligned(M: np.ndarray, period: int = 1) -> float:
    """max over positions of 1ᵀM1: a record whose gradients all point in one direction."""
    return max(float(M[np.ix_(rounds, rounds)].sum()) for rounds in classes(len(M), period))


def bracket(M: np.ndarray, period: int = 1) -> tuple[float, float]:
    """(below, above) max uᵀMu over vectors |u_t| <= 1 on the rounds of the worst position."""
    pairs = [_semidefinite(M[np.ix_(rounds, rounds)]) for rounds in classes(len(M), period)]
    return max(low for low, _ in pairs), max(high for _, high in pairs)


def _semidefinite(M: np.ndarray, tolerance: float = 1e-8, sweeps: int = 20_000) -> tuple[float, float]:
    """Lower bound by Burer and Monteiro; upper bound by the dual min Σy with diag(y) - M >= 0."""
    M = (M + M.T) / 2
    used = np.diag(M) > 0
    M = M[np.ix_(used, used)]
    R = len(M)
    if R == 0:
        return 0.0, 0.0
    V = np.random.default_rng(R).standard_normal((R, min(R, int(np.sqrt(2 * R)) + 2)))
    V[:, 0] += 3.0
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    low, high = 0.0, np.inf
    for sweep in range(sweeps):
        for t in range(R):
            v = M[t] @ V - M[t, t] * V[t]
            V[t] = v / length if (length := np.linalg.norm(v)) > 0 else V[t]
        if sweep % 20 == 19:
            low = max(low, float(np.sum(V * (M @ V))))
            y = np.linalg.norm(M @ V, axis=1)
            excess = max(0.0, float(np.linalg.eigvalsh(M - np.diag(y))[-1]))
            high = min(high, float(y.sum()) + R * excess)
            if high - low <= tolerance * high:
                break
    return low, high


def mu(
    plan: Plan,
    owner: int,
    J: Sequence[int] = (),
    public: str = "nothing",
    period: int = 1,
    number: Number = float,
) -> tuple[float, float]:
    """(below, above) the μ of a record that moves its owner's gradient by at most 1; or infinity twice."""
    M = gram(*coefficients(plan, owner, J, public, number))
    if M is None:
        return np.inf, np.inf
    low, high = bracket(M, period)
    return low**0.5, high**0.5

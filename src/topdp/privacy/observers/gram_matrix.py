"""The Gram matrix M = Aᵀ(BBᵀ)⁺A: how well an observer detects changes of an owner's gradients.

A change u_r of owner i's gradient in round r shifts the mean of the rows that coalition J sees. Whitened by
the covariance of the noise unknown to J (`observer_filter`), the shifts of all rounds form a matrix D with M
= DᵀD. Distinguishing u from no change is as hard as distinguishing N(μ, 1) from N(0, 1), μ² = uᵀMu.

`aligned` computes only sums over rounds, for all owners at once; `grams` computes M itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topdp.base.array_types import Bools, Floats, Ints
from topdp.plan import Plan
from topdp.privacy.observers.observer_filter import FilteredRound, Public, filtered_rounds

ROUNDS_PER_PRODUCT = 64  # rounds between additions to M
# A shift of a noiseless row counts as 0 below this share of the shifts that entered the row.
SHIFT_ROUNDING = 1e-10


def aligned(
    plan: Plan, coalition: Bools, owners: Ints, period: Ints, public: Public = Public.NOTHING
) -> list[Floats]:
    """Return for each of `owners` an array [period]: 1ᵀM1 over the rounds of each residue class.

    `period` [agents]: the modulus of the classes. Values are infinite where J sees the shift without noise.
    """
    if not len(owners):
        return []
    start = np.full(plan.agents, -1)
    start[owners] = np.cumsum(period[owners]) - period[owners]
    columns = int(period[owners].sum())
    squares = np.zeros(columns)
    S = np.zeros((0, columns))
    for r, this in enumerate(filtered_rounds(plan, coalition, public)):
        column = np.where(start[this.owner] >= 0, start[this.owner] + r % period[this.owner], -1)
        S, D, leaks = filter_shifts(this, S, column)
        squares += np.einsum("kc,kc->c", D, D)
        squares[leaks] = np.inf
    return np.split(squares, np.cumsum(period[owners])[:-1])


def grams(plan: Plan, coalition: Bools, owners: Ints, public: Public = Public.NOTHING) -> Iterator[Floats]:
    """Yield M [releases, releases] of each of `owners`, per unit of gradient change.

    Row and column r are infinite where J sees the change of round r without noise.
    """
    R, o = plan.releases, len(owners)
    place = np.full(plan.agents, -1)
    place[owners] = np.arange(o)
    M = np.zeros((o, R, R))
    leak = np.zeros((o, R), bool)
    width = 0
    S = np.zeros((0, 0))
    waiting: list[Floats] = []
    for r, this in enumerate(filtered_rounds(plan, coalition, public)):
        if r == width:
            _add(M, waiting, width)
            width, grown = (
                min(R, r + ROUNDS_PER_PRODUCT),
                np.zeros((len(S), o, min(R, r + ROUNDS_PER_PRODUCT))),
            )
            grown[:, :, :r] = S.reshape(len(S), o, r)
            S = grown.reshape(len(S), o * width)
        column = np.where(place[this.owner] >= 0, place[this.owner] * width + r, -1)
        S, D, leaks = filter_shifts(this, S, column)
        waiting.append(D)
        leak[:, :width] |= leaks.reshape(o, width)
    _add(M, waiting, width)
    for owner in range(o):
        M[owner][leak[owner]] = np.inf
        M[owner][:, leak[owner]] = np.inf
        yield M[owner]


def filter_shifts(this: FilteredRound, S: Floats, column: Ints) -> tuple[Floats, Floats, Bools]:
    """Filter shifts S [unknown rows, columns] through one round.

    Return the next S, the whitened shifts that are seen, and a mask of the columns that leak (are seen
    without noise). `column` [live]: the column that the gradient of this round enters in each row; -1 for
    none.
    """
    # S ← W S + step; D is the part of it that J sees; S ← S - K D (Kalman 1960)
    S = np.asarray(this.mix @ S)
    rows = np.flatnonzero((column >= 0) & (this.step != 0))
    S[rows, column[rows]] += this.step[rows]
    D: Floats = this.inverse @ S[this.fresh]
    leaks = np.zeros(S.shape[1], bool)
    if len(this.null):
        known = this.null_weights @ S[this.fresh]
        entered = this.null_size[:, None] + np.abs(this.null_weights) @ np.abs(S[this.fresh])
        leaks = (np.abs(S[this.null] - known) > SHIFT_ROUNDING * entered).any(axis=0)
    S = S[: this.kept]
    S -= this.gain.T @ D
    if not np.isfinite(this.guard):
        return S, np.zeros_like(D), leaks | D.any(axis=0)
    return S, D * this.guard, leaks


def _add(M: Floats, waiting: list[Floats], width: int) -> None:
    if not waiting:
        return
    D = np.concatenate(waiting).reshape(-1, len(M), width)
    waiting.clear()
    for owner in range(len(M)):
        shifts_seen = np.ascontiguousarray(D[:, owner])
        M[owner, :width, :width] += shifts_seen.T @ shifts_seen

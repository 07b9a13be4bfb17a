"""What a change of an owner's gradients looks like to an observer: M = Aᵀ(BBᵀ)⁺A, round by round.

A change u_r of owner i's gradient in round r shifts the mean of what coalition J sees. Whitened by what J
does not know (`filtering.py`), the shifts of all sights are the rows of a matrix D with M = DᵀD, and telling
u from no change is as hard as telling N(μ, 1) from N(0, 1), μ² = uᵀMu.

`aligned` keeps sums over rounds only, for all owners at once; `grams` keeps M itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topdp.base.array_types import Bools, Floats, Ints
from topdp.plan import Plan
from topdp.privacy.observers.observer_filter import FilteredRound, Public, filtered_rounds

ROUNDS_PER_PRODUCT = 64  # rounds between additions to M
SHIFT_ROUNDING = 1e-10
"""A shift of a noiseless row counts as none below this share of what entered the row."""


def aligned(
    plan: Plan, coalition: Bools, owners: Ints, period: Ints, public: Public = Public.NOTHING
) -> list[Floats]:
    """[period] for each owner: 1ᵀM1 over the rounds of each residue class modulo `period` [agents].

    Infinite where J sees the shift without noise.
    """
    if not len(owners):
        return []
    start = np.full(plan.agents, -1)
    start[owners] = np.cumsum(period[owners]) - period[owners]
    columns = int(period[owners].sum())
    squares = np.zeros(columns)
    S = np.zeros((0, columns))
    for r, sight in enumerate(filtered_rounds(plan, coalition, public)):
        column = np.where(start[sight.owner] >= 0, start[sight.owner] + r % period[sight.owner], -1)
        S, D, leaks = look(sight, S, column)
        squares += np.einsum("kc,kc->c", D, D)
        squares[leaks] = np.inf
    return np.split(squares, np.cumsum(period[owners])[:-1])


def grams(plan: Plan, coalition: Bools, owners: Ints, public: Public = Public.NOTHING) -> Iterator[Floats]:
    """M [releases, releases] for each owner, per unit of gradient change.

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
    for r, sight in enumerate(filtered_rounds(plan, coalition, public)):
        if r == width:
            _add(M, waiting, width)
            width, grown = (
                min(R, r + ROUNDS_PER_PRODUCT),
                np.zeros((len(S), o, min(R, r + ROUNDS_PER_PRODUCT))),
            )
            grown[:, :, :r] = S.reshape(len(S), o, r)
            S = grown.reshape(len(S), o * width)
        column = np.where(place[sight.owner] >= 0, place[sight.owner] * width + r, -1)
        S, D, leaks = look(sight, S, column)
        waiting.append(D)
        leak[:, :width] |= leaks.reshape(o, width)
    _add(M, waiting, width)
    for owner in range(o):
        M[owner][leak[owner]] = np.inf
        M[owner][:, leak[owner]] = np.inf
        yield M[owner]


def look(sight: FilteredRound, S: Floats, column: Ints) -> tuple[Floats, Floats, Bools]:
    """One round of shifts S [unknown rows, columns]: the next S, the whitened shift seen, columns that leak.

    `column` [live]: which column the gradient of this round enters in each row; -1 for none.
    """
    # S ← W S + step; the part of it that J sees; S ← S - K D (Kalman 1960)
    S = np.asarray(sight.mix @ S)
    rows = np.flatnonzero((column >= 0) & (sight.step != 0))
    S[rows, column[rows]] += sight.step[rows]
    D: Floats = sight.inverse @ S[sight.fresh]
    leaks = np.zeros(S.shape[1], bool)
    if len(sight.null):
        said = sight.null_weights @ S[sight.fresh]
        most = sight.null_size[:, None] + np.abs(sight.null_weights) @ np.abs(S[sight.fresh])
        leaks = (np.abs(S[sight.null] - said) > SHIFT_ROUNDING * most).any(axis=0)
    S = S[: sight.kept]
    S -= sight.gain.T @ D
    if not np.isfinite(sight.guard):
        return S, np.zeros_like(D), leaks | D.any(axis=0)
    return S, D * sight.guard, leaks


def _add(M: Floats, waiting: list[Floats], width: int) -> None:
    if not waiting:
        return
    D = np.concatenate(waiting).reshape(-1, len(M), width)
    waiting.clear()
    for owner in range(len(M)):
        seen = np.ascontiguousarray(D[:, owner])
        M[owner, :width, :width] += seen.T @ seen

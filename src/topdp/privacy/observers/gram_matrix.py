"""The Gram matrix M = Aᵀ(BBᵀ)⁺A: how well an observer detects changes of an owner's gradients.

A change u_r of owner i's gradient in round r shifts the mean of the rows that coalition J sees. Whitened by
the covariance of the noise unknown to J (`observer_filter`), the shifts of all rounds form a matrix D with M
= DᵀD. Distinguishing u from no change is as hard as distinguishing N(μ, 1) from N(0, 1), μ² = uᵀMu.

`aligned` computes only sums over rounds, for all owners at once; `grams` computes M itself; `bands` computes
M near its diagonal, with a bound on the rest, for long plans.

The effect of a change dies out: an observer learns about it within a few rounds, or never, because fresh
noise hides it. So `bands` follows the shift of round s until the information that it can still reveal is
negligible. Everything that is seen from a given round onwards depends on the rows of this round and on noise
drawn later. An observer of those rows themselves would learn SᵀP⁻¹S of a shift S, with P their covariance
given the past. The rows that are seen cannot reveal more.

**Guarantees.** Of `bands`: the whitened shift of each change is D_s = near part + far part, and |far part| <=
`rest`[s]. `values` is the Gram matrix of the near parts. Hence for every u, |Σ u_s D_s| lies within Σ |u_s|
rest[s] of the length that `values` gives (triangle inequality).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from topdp.base.array_types import Bools, Floats, Ints
from topdp.plan import Plan
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.observer_filter import FilteredRound, Public, filtered_rounds, whiten

# In plans with more releases, M is computed near its diagonal only, with a bound on the rest (`Band`).
LONG_PLAN_RELEASES = 512

ROUNDS_PER_BLOCK = 64  # rounds between additions to M, and between attempts to drop old changes
# A shift of a noiseless row counts as 0 below this share of the shifts that entered the row.
SHIFT_ROUNDING = 1e-10

# The most that the far part of a change may add to a length, relative to the largest change seen. Half of it
# is for rounding.
MAX_FAR_PART = 1e-10

# A shift of a row without noise of its own counts as 0 below this share of the shifts that entered the row.
NOISELESS_ROUNDING = 1e-13


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
    R = plan.releases
    for band in bands(plan, coalition, owners, public, whole=True):
        padded = np.zeros((R, 2 * R))
        line, item = padded.strides
        as_strided(padded, (R, R), (line + item, item))[:] = band.values
        M = padded[:, :R] + np.triu(padded[:, :R], 1).T
        M[band.leaks] = np.inf
        M[:, band.leaks] = np.inf
        yield M


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


@dataclass(frozen=True)
class Band:
    """The band of M of one owner, per unit of gradient change: M[r, r + k] = values[r, k]."""

    values: Floats  # [releases, width]
    rest: Floats  # [releases]
    leaks: Bools  # [releases]: whether the change is seen without noise

    def leading(self, releases: int) -> Band:
        """Return the band of the first `releases`: the information if the owner's data enter no later one."""
        values = self.values[:releases].copy()
        values[np.arange(releases)[:, None] + np.arange(values.shape[1]) >= releases] = 0.0
        return Band(values, self.rest[:releases], self.leaks[:releases])


def bands(
    plan: Plan,
    coalition: Bools,
    owners: Ints,
    public: Public = Public.NOTHING,
    *,
    widest: int | None = None,
    whole: bool = False,
) -> Iterator[Band]:
    """Yield the band of each owner, as the agents marked in `coalition` see it together.

    `whole`: follow each change to the end, so that the band is all of M. Raise NotCovered if changes have to
    be followed for more than `widest` rounds.
    """
    R, o = plan.releases, len(owners)
    place = np.full(plan.agents, -1)
    place[owners] = np.arange(o)
    values, rest, leaks = (
        np.zeros((o, R, R if whole else ROUNDS_PER_BLOCK)),
        np.zeros((o, R)),
        np.zeros((o, R), bool),
    )
    low = high = 0  # the changes that are followed
    S = np.zeros((0, 0))
    waiting: list[Floats] = []
    for r, this in enumerate(filtered_rounds(plan, coalition, public)):
        if r == high:
            values = _with(values, waiting, low, high)
            followed = S.reshape(len(S), o, high - low)
            dropped, charge = (0, 0.0) if whole else _done(this, followed, float(values[:, :, 0].max()))
            if widest is not None and high - low - dropped > widest:
                raise NotCovered(
                    f"The view has to follow each change for more than {widest} rounds, because "
                    "information travels slowly in this plan. Set privacy.allow_slow=true to compute it "
                    "anyway, use fewer rounds, or guarantee='worst-case'."
                )
            rest[:, low : low + dropped] = charge
            low, high = low + dropped, min(R, r + ROUNDS_PER_BLOCK)
            wider = np.zeros((len(S), o, high - low))
            wider[:, :, : r - low] = followed[:, :, dropped:]
            S = wider.reshape(len(S), o * (high - low))
        column = np.where(place[this.owner] >= 0, place[this.owner] * (high - low) + r - low, -1)
        S, D, leaked = filter_shifts(this, S, column)
        waiting.append(D)
        leaks[:, low:high] |= leaked.reshape(o, -1)
    values = _with(values, waiting, low, high)
    for owner in range(o):
        yield Band(values[owner], rest[owner], leaks[owner])


def _with(values: Floats, waiting: list[Floats], low: int, high: int) -> Floats:
    """Return the band of M with the products of the shifts that were seen since the last call.

    Empties `waiting`, the whitened shifts D [seen, owners·width] of each round.
    """
    width = high - low
    if not waiting:
        return values
    if width > values.shape[2]:
        values = np.pad(values, ((0, 0), (0, 0), (0, width - values.shape[2])))
    D = np.concatenate(waiting).reshape(-1, len(values), width)
    waiting.clear()
    for owner in range(len(values)):
        shifts_seen = np.ascontiguousarray(D[:, owner])
        padded = np.zeros((width, 2 * width))
        padded[:, :width] = shifts_seen.T @ shifts_seen
        line, item = padded.strides
        values[owner, low:high, :width] += as_strided(padded, (width, width), (line + item, item))
    return values


def _done(this: FilteredRound, S: Floats, largest: float) -> tuple[int, float]:
    """Return the number of the oldest changes whose rest is negligible, and the bound on each rest."""
    charge = MAX_FAR_PART * float(np.sqrt(largest))
    if not S.size:
        return S.shape[2], charge
    shifts = np.asarray(this.mix @ S.reshape(len(S), -1))
    white = whiten(this.before, this.variance)
    if not np.isfinite(white.guard):
        return 0, charge
    left = white.inverse @ shifts[white.fresh] * white.guard
    over = np.einsum("kc,kc->c", left, left) > (charge / 2) ** 2
    # Rows without noise of their own reveal nothing new, unless a change shifts only them.
    alone = np.abs(shifts[white.null] - white.weights @ shifts[white.fresh])
    entered = np.where(this.variance > 0, this.size, 0.0)[white.null]  # without noise nothing was rounded
    over |= (alone > NOISELESS_ROUNDING * entered[:, None]).any(axis=0)
    over = over.reshape(S.shape[1:]).any(axis=0)
    return (int(over.argmax()) if over.any() else len(over)), charge

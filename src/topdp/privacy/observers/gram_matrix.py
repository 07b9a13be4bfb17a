"""The Gram matrix M = Aᵀ(BBᵀ)⁺A: how well an observer detects changes of an owner's gradients.

A change u_r of owner i's gradient in round r shifts the mean of the rows that coalition J sees. The shifts of
all rounds, whitened by the covariance of the noise unknown to J (`observer_filter`), form a matrix D with
M = DᵀD. To distinguish u from no change is as hard as to distinguish N(μ, 1) from N(0, 1), with μ² = uᵀMu.

`aligned` computes only sums of M over rounds, for all owners at once. `grams` computes M itself. `bands` is
for long plans: it computes M near its diagonal, and a bound on the rest.

The effect of a change dies out: an observer learns about the change within a few rounds, or never, because
fresh noise hides it. So `bands` follows the shift of round s until the information that it can still reveal
is negligible. Everything that J sees from a given round onwards depends on the rows of this round and on
noise drawn later. An observer of all these rows would learn SᵀP⁻¹S about a shift S, where P is their
covariance given what J saw before. The rows that J sees cannot reveal more.

**Guarantees.** In `bands`, the whitened shift of each change is D_s = near part + far part, with |far part|
<= `rest`[s]. `values` is the Gram matrix of the near parts. Hence, for every u, |Σ u_s D_s| differs from the
length that `values` gives by at most Σ |u_s| rest[s] (triangle inequality), and by `rounding`. `rest`
includes what the rounding of shifts can reveal (`FilteredRound.error`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from topdp.base.array_types import Bools, Floats, Ints
from topdp.base.rounding import gamma
from topdp.plan import Plan
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.observer_filter import FilteredRound, Public, filtered_rounds, whiten

# In plans with more releases, M is computed near its diagonal only, with a bound on the rest (`Band`).
LONG_PLAN_RELEASES = 512

# The number of rounds between additions to M, and between attempts to stop following old changes.
ROUNDS_PER_BLOCK = 64
# A shift of a seen row without noise counts as 0 if it is below this share of the shifts that entered the
# row.
SHIFT_ROUNDING = 1e-10

# The most that the far part of a change may add to a length, relative to the largest change seen. Half of it
# is for rounding.
MAX_FAR_PART = 1e-10

# A bound on rounding above this share of the largest change is replaced by exact arithmetic, where possible.
COSTLY_ROUNDING = 1e-9

# The same share as SHIFT_ROUNDING, for the decision whether an old change can still reveal something.
NOISELESS_ROUNDING = 1e-13


def aligned(
    plan: Plan, coalition: Bools, owners: Ints, period: Ints, public: Public = Public.NOTHING
) -> list[Floats]:
    """Return for each of `owners` the sum of the elements of M over each residue class of rounds [period].

    `coalition` [agents]: the members of J. `period` [agents]: the modulus of each agent's residue classes. A
    sum is infinite if J sees the shift without noise.
    """
    if not len(owners):
        return []
    start = np.full(plan.agents, -1)
    start[owners] = np.cumsum(period[owners]) - period[owners]
    columns = int(period[owners].sum())
    squares = np.zeros(columns)
    S = np.zeros((0, columns))
    for r, this in enumerate(filtered_rounds(plan, coalition, public, trust_null_rows=True)):
        column = np.where(start[this.owner] >= 0, start[this.owner] + r % period[this.owner], -1)
        S, D, leaks = filter_shifts(this, S, column)
        squares += np.einsum("kc,kc->c", D, D)
        squares[leaks] = np.inf
    return np.split(squares, np.cumsum(period[owners])[:-1])


def grams(plan: Plan, coalition: Bools, owners: Ints, public: Public = Public.NOTHING) -> Iterator[Floats]:
    """Yield M [releases, releases] of each of `owners`, per unit of gradient change.

    Row and column r are infinite if J sees the change of round r without noise.
    """
    R = plan.releases
    for band in bands(plan, coalition, owners, public, whole=True, trust_null_rows=True):
        padded = np.zeros((R, 2 * R))
        line, item = padded.strides
        as_strided(padded, (R, R), (line + item, item))[:] = band.values
        M = padded[:, :R] + np.triu(padded[:, :R], 1).T
        M[band.leaks] = np.inf
        M[:, band.leaks] = np.inf
        yield M


def filter_shifts(this: FilteredRound, S: Floats, column: Ints) -> tuple[Floats, Floats, Bools]:
    """Filter shifts S [unknown rows, columns] through one round; each column is a change or a sum of changes.

    Return the next S, the whitened shifts that J sees, and a mask of the columns that leak (are seen without
    noise). `column` [live]: the column of S to which the gradient in each row belongs; -1: none.
    """
    # S ← W S + step; D is the part of S that J sees; S ← S - K D (Kalman 1960)
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
    # [releases]: a bound on rounding. For noise that is no larger than that of the plan, the exact entry
    # (r, s) of the near part differs from `values` by at most √M_rr·rounding[s] + rounding[r]·√M_ss.
    rounding: Floats | float = 0.0

    @property
    def costly(self) -> bool:
        """Whether the bound on rounding is infinite, or visible in the answer."""
        largest = float(np.sqrt(np.maximum(self.values[:, 0], 0.0)).max(initial=0.0))
        return not bool(np.max(self.rounding, initial=0.0) <= COSTLY_ROUNDING * largest)

    def leading(self, releases: int) -> Band:
        """Return the band for the case that the owner's data enter only the first `releases` releases."""
        values = self.values[:releases].copy()
        values[np.arange(releases)[:, None] + np.arange(values.shape[1]) >= releases] = 0.0
        rounding = np.broadcast_to(self.rounding, self.rest.shape)
        return Band(values, self.rest[:releases], self.leaks[:releases], rounding[:releases])


def bands(
    plan: Plan,
    coalition: Bools,
    owners: Ints,
    public: Public = Public.NOTHING,
    *,
    widest: int | None = None,
    whole: bool = False,
    trust_null_rows: bool = False,
) -> Iterator[Band]:
    """Yield the band of each of `owners`, as the agents marked in `coalition` [agents] see it together.

    `whole`: follow each change to the end, so that the band is all of M. `widest`: the most rounds for which
    a change may be followed; raise NotCovered if more are needed. `trust_null_rows`: as in `filtered_rounds`.
    """
    R, o = plan.releases, len(owners)
    reveals = np.zeros((o, R))  # the most that a change reveals, by the noise of its own rows
    errors = np.zeros(R + 1)  # the errors of all rounds before, relative to that
    end = np.full(R, R)  # the round from which a change is not followed
    observations = 0
    position = np.full(plan.agents, -1)
    position[owners] = np.arange(o)
    values = np.zeros((o, R, R if whole else ROUNDS_PER_BLOCK))
    rest, leaks = np.zeros((o, R)), np.zeros((o, R), bool)
    low = high = 0  # the changes of rounds low .. high - 1 are followed
    S = np.zeros((0, 0))
    waiting: list[Floats] = []
    rounds = filtered_rounds(plan, coalition, public, trust_null_rows=trust_null_rows)
    for r, this in enumerate(rounds):
        errors[r + 1] = errors[r] + (0.0 if trust_null_rows else this.error)
        if not trust_null_rows:
            mine = np.flatnonzero((position[this.owner] >= 0) & (this.step != 0))
            with np.errstate(divide="ignore"):
                squares = np.square(this.step[mine]) / this.hides[mine]
            reveals[:, r] = 1.01 * np.sqrt(np.bincount(position[this.owner[mine]], squares, minlength=o))
        observations += len(this.fresh)
        if not this.kept:  # nothing is left of any change
            end[: r + 1] = np.minimum(end[: r + 1], r + 1)
        if r == high:
            values = _with_products(values, waiting, low, high)
            followed = S.reshape(len(S), o, high - low)
            dropped, charge = 0, 0.0
            if not whole:
                dropped, charge = _negligible(this, followed, float(values[:, :, 0].max()), trust_null_rows)
            if widest is not None and high - low - dropped > widest:
                raise NotCovered(
                    f"The view has to follow each change for more than {widest} rounds, because "
                    "information travels slowly in this plan. Set privacy.allow_slow=true to compute it "
                    "anyway, use fewer rounds, or guarantee='worst-case'."
                )
            rest[:, low : low + dropped] = charge
            end[low : low + dropped] = np.minimum(end[low : low + dropped], r)
            low, high = low + dropped, min(R, r + ROUNDS_PER_BLOCK)
            wider = np.zeros((len(S), o, high - low))
            wider[:, :, : r - low] = followed[:, :, dropped:]
            S = wider.reshape(len(S), o * (high - low))
        column = np.where(position[this.owner] >= 0, position[this.owner] * (high - low) + r - low, -1)
        S, D, leaked = filter_shifts(this, S, column)
        waiting.append(D)
        leaks[:, low:high] |= leaked.reshape(o, -1)
    values = _with_products(values, waiting, low, high)
    share = errors[end] - errors[:-1]
    with np.errstate(invalid="ignore"):
        rounding = np.where(reveals > 0, np.where(share < 0.5, share, np.inf) * reveals, 0.0)
    products = gamma(observations + R) * np.sqrt(np.maximum(values[:, :, 0], 0.0))
    for owner in range(o):
        yield Band(
            values[owner], rest[owner] + rounding[owner], leaks[owner], rounding[owner] + products[owner]
        )


def _with_products(values: Floats, waiting: list[Floats], low: int, high: int) -> Floats:
    """Return the band `values` of M plus the products of the shifts that J saw since the last call.

    `waiting`: the whitened shifts D [seen, owners·width] of each round; the list is emptied.
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


def _negligible(this: FilteredRound, S: Floats, largest: float, trust_null_rows: bool) -> tuple[int, float]:
    """Return how many of the oldest changes can be dropped, and the bound on what each can still reveal.

    `S` [unknown rows, owners, changes]: the shifts. `largest`: the most that one change has revealed so far.
    """
    charge = MAX_FAR_PART * float(np.sqrt(largest))
    if not S.size:
        return S.shape[2], charge
    shifts = np.asarray(this.mix @ S.reshape(len(S), -1))
    white = whiten(this.before, this.variance)
    uncertain = not trust_null_rows and (this.variance[white.null] > 0).any()
    if uncertain or not np.isfinite(white.guard):
        return 0, charge
    revealed = white.inverse @ shifts[white.fresh] * white.guard
    over = np.einsum("kc,kc->c", revealed, revealed) > (charge / 2) ** 2
    # A row without noise of its own reveals nothing new, unless its shift differs from that of the other
    # rows.
    alone = np.abs(shifts[white.null] - white.weights @ shifts[white.fresh])
    entered = np.where(this.variance > 0, this.size, 0.0)[white.null]  # without noise there is no rounding
    over |= (alone > NOISELESS_ROUNDING * entered[:, None]).any(axis=0)
    over = over.reshape(S.shape[1:]).any(axis=0)
    return (int(over.argmax()) if over.any() else len(over)), charge

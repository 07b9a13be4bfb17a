"""The Gram matrix M = Aᵀ(BBᵀ)⁻¹A of small plans in ball arithmetic, for noise that spans many decades.

All rows that the observer sees are written as O = A u + B z. u are the changes of the owners' gradients, and
z are the draws that the observer does not know. `gram_matrix` computes the same M by a filter.

**Guarantees.** Every number is a ball that contains the exact value (Johansson 2017, Arb). The bands contain
the middles, and `rounding` bounds the radii. There is no result if the balls do not prove that BBᵀ is
invertible.
"""

from __future__ import annotations

import threading
from typing import Any

import flint
import numpy as np

from topdp.base.array_types import Bools, Floats, Ints
from topdp.base.rounding import UNIT_ROUNDOFF
from topdp.plan import Plan
from topdp.privacy.observers.gram_matrix import Band
from topdp.privacy.observers.observer_filter import Public, live_rows, unknown_draws

PRECISION_BITS = 640

# The most rows that an observer may see, and the most numbers in A and B.
MAX_EXACT_ROWS, MAX_EXACT_NUMBERS = 300, 200_000

# Flint has one precision for all threads.
_lock = threading.Lock()


def exact_bands(plan: Plan, coalition: Bools, owners: Ints, public: Public) -> list[Band] | None:
    """Return the band of each of `owners`, which is all of M, or None if it is too large or not certain."""
    unknown = unknown_draws(plan, coalition)
    in_sight = np.logical_and(*live_rows(plan, coalition, unknown, public))
    draws = sum(len(_draws(plan, r, unknown)) for r in range(plan.releases))
    changes = plan.releases * len(owners)
    if in_sight.sum() > MAX_EXACT_ROWS or in_sight.sum() * (changes + draws) > MAX_EXACT_NUMBERS:
        return None
    with _lock:
        precision, flint.ctx.prec = flint.ctx.prec, PRECISION_BITS
        try:
            return _bands(_visible(plan, in_sight, unknown, owners), changes, plan.releases)
        except ZeroDivisionError:  # BBᵀ may be singular
            return None
        finally:
            flint.ctx.prec = precision


def _draws(plan: Plan, r: int, unknown: Bools) -> Ints:
    """Return the draws of round r that the observer does not know."""
    draws = np.unique(plan.draw[r][(plan.draw[r] >= 0) & (plan.std[r] != 0)])
    return np.asarray(draws[unknown[draws]], np.int64)


def _visible(plan: Plan, seen: Bools, unknown: Bools, owners: Ints) -> list[dict[int, Any]]:
    """Return the rows that the observer sees, as the coefficients of changes and of draws, by column.

    Change s of the owner at position p has column p·releases + s. Draws have the columns after the changes.
    """
    position = {int(i): p for p, i in enumerate(owners)}
    column = plan.releases * len(owners)
    before: dict[int, dict[int, Any]] = {}
    visible: dict[int, dict[int, Any]] = {}  # by identity, so that a row counts once
    for r in range(plan.releases):
        this = plan[r]
        draws = {int(d): column + place for place, d in enumerate(_draws(plan, r, unknown))}
        column += len(draws)
        rows: dict[int, dict[int, Any]] = {}
        for a in np.flatnonzero(this.exists).tolist():
            mixed = zip(this.source[a].tolist(), this.weight[a].tolist(), strict=True)
            sources = [(b, w) for b, w in mixed if r > 0 and b >= 0 and w != 0]
            added = zip(this.draw[a].tolist(), this.std[a].tolist(), strict=True)
            noise = [(d, std) for d, std in added if d in draws and std != 0]
            step = this.step[a] if plan.owner[a] in position else 0.0
            if len(sources) == 1 and sources[0][1] == 1 and not noise and step == 0:
                rows[a] = before[sources[0][0]]  # the same row once more
                continue
            row: dict[int, Any] = {}
            for source, weight in sources:
                for at, value in before[source].items():
                    row[at] = row.get(at, 0) + flint.arb(weight) * value
            if step != 0:
                row[position[int(plan.owner[a])] * plan.releases + r] = flint.arb(float(step))
            for d, std in noise:
                row[draws[d]] = row.get(draws[d], 0) + flint.arb(std)
            rows[a] = row
        visible |= {id(rows[a]): rows[a] for a in np.flatnonzero(seen[r]).tolist()}
        before = rows
    return list(visible.values())


def _bands(visible: list[dict[int, Any]], changes: int, releases: int) -> list[Band]:
    """Return the bands of M from the coefficients of the rows that the observer sees.

    Raise ZeroDivisionError if BBᵀ may be singular.
    """
    leaks = np.zeros(changes, bool)
    noisy = []
    for row in visible:
        if max(row, default=-1) >= changes:
            noisy.append(row)
        else:  # without noise, a row shows all changes that are in it
            leaks[list(row)] = True
    columns = {c: place for place, c in enumerate(sorted({c for row in noisy for c in row if c >= changes}))}
    A, B = flint.arb_mat(len(noisy), changes), flint.arb_mat(len(noisy), len(columns))
    for a, row in enumerate(noisy):
        for c, value in row.items():
            if c < changes:
                A[a, c] = value
            else:
                B[a, columns[c]] = value
    if noisy:
        M = A.transpose() * (B * B.transpose()).solve(A)
    else:
        M = flint.arb_mat(changes, changes)
    bands = []
    for start in range(0, changes, releases):
        middle, radius = np.zeros((2, releases, releases))
        for r in range(releases):
            for s in range(releases - r):
                entry = M[start + r, start + r + s]
                middle[r, s], radius[r, s] = float(entry.mid()), float(entry.rad())
        bands.append(_band(middle, radius, leaks[start : start + releases]))
    return bands


def _band(middle: Floats, radius: Floats, leaks: Bools) -> Band:
    """Return the band with these entries, in the layout of `Band.values`."""
    length = np.sqrt(np.maximum(middle[:, 0], 0.0))
    width = np.arange(len(middle))
    ahead = np.concatenate([length, np.ones(len(middle))])[width[:, None] + width]
    error = 1.01 * radius + 2 * UNIT_ROUNDOFF * np.abs(middle)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error > 0, error / (length[:, None] * ahead), 0.0).max()
    # Beside an entry that is not 0, a diagonal entry of 0 is an underflow: then nothing is bounded.
    rounding = share * length if np.isfinite(share) else np.full(len(middle), np.inf)
    return Band(middle, np.zeros(len(middle)), leaks, rounding)

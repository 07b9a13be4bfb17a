"""Checks whether the noise in every row of a run is the noise that the plan states.

Someone who knows all rows, gradients and canaries can subtract from a row everything but its noise. The rest
at the canaries' coordinates is whitened with the covariance that follows from the plan. In a correct run the
result consists of independent standard normal numbers, with one *noise row* for each row that has noise of
its own given the rows before it. The checks are tests of this, with exact distributions or bounds:

    spread        sums of squares, of each noise row, of each agent and of all (chi-square)
    mean          sums, of the same numbers (normal)
    independence  the cosine of any two noise rows, of one release or of different ones (beta)
    canaries      the inner product with what the canaries add to the rows (mixture bound)
    records       the inner product with the clipped gradient of the planted records (mixture bound)
    exact rows    what remains in rows without noise of their own (nothing but rounding)

**Guarantees.** A correct run is flagged with probability at most `FALSE_FLAGS`. This probability is divided
evenly among the checks, and in each check among its tests (Bonferroni). This holds for any number of
canaries, up to the rounding of float32: rows whose noise is too small for float32 are not tested. The mixture
bound (Robbins 1970) also holds if lengths depend on earlier noise, as those of the planted gradients do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betainc, gammainc, gammaincc, ndtr

from topdp.base.array_types import Bools, Floats, Ints
from topdp.plan import Plan, Round
from topdp.privacy.observers.observer_filter import whiten

FALSE_FLAGS = 1e-3
"""The largest probability that any check flags a correct run."""

REMEMBERED_ROWS = 8192  # noise rows with which later ones are compared; bounds time and memory

EXACT_TOLERANCE = 1e-4  # of the largest number in a row; rounding in float32 is a thousandth of it
RESOLVED_NOISE = 1e-5  # of the same; smaller noise is not tested
LOST_NOISE = 1e-3  # of the planned length of a noise row; a shorter one has no direction


@dataclass(frozen=True, kw_only=True)
class Check:
    """The most unusual finding of one check."""

    name: str
    tests: int
    found: float
    planned: float
    where: str
    p: float  # the probability of a finding at least as unusual in a correct run, times `tests`; at most 1

    @property
    def flagged(self) -> bool:
        return self.p < FALSE_FLAGS / len(CHECK_NAMES)

    def __str__(self) -> str:
        return f"{self.name} {self.found:.3g} instead of {self.planned:.3g} ({self.where})"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "flagged": self.flagged}


class Columns(NamedTuple):
    """Numbers of all rows of one release, along coordinates or along directions."""

    before: Floats  # [rows, columns]: of the previous release; NaN for rows that do not exist
    rows: Floats  # [rows, columns]
    gradients: Floats  # [agents, columns]: mean gradients with everything that was planted


class PlantedColumn(NamedTuple):
    """One column along the gradient of the planted records."""

    column: Columns
    planned: float  # the planned length of their contribution to the owner's mean gradient


CHECK_NAMES = ("spread", "mean", "independence", "canaries", "records", "exact rows")


class NoiseChecks:
    """The sums from which the checks of one run are computed, release by release."""

    def __init__(self, plan: Plan, owner: int) -> None:
        """`owner`: the agent with the canaries and the planted records."""
        self.plan, self.owner = plan, owner
        self._labels: list[tuple[int, int]] = []  # (release, row) of each noise row
        self._sums: list[Floats] = []  # of each release: [noise rows, 2] sums and sums of squares
        self._columns = 0
        self._rest, self._rest_label, self._exact = 0.0, (0, 0), 0
        self._cosine, self._pair, self._pairs = 0.0, ((0, 0), (0, 0)), 0
        self._remembered = np.zeros((0, 0), np.float32)
        self._strength = {name: np.zeros(2) for name in ("canaries", "records")}

    def add(
        self, release: int, columns: Columns, canaries: Floats, planted: PlantedColumn | None = None
    ) -> None:
        """Add a release. `canaries` [columns]: what the canaries added to the owner's mean gradient."""
        this = self.plan[release]
        noise = _Whitened.of(this, columns)
        rest, fresh = noise.split(_remainder(this, columns, self.plan))
        self._note_rest(release, noise, rest)
        labels = [(release, row) for row in noise.rows.tolist()]
        self._sums.append(np.stack([fresh.sum(axis=1), (fresh**2).sum(axis=1)], axis=1))
        self._columns = fresh.shape[1]
        self._compare(fresh, labels)
        self._labels += labels
        step = np.where(self.plan.owner == self.owner, this.step, 0.0)[:, None]
        self._add_strength("canaries", noise.split(step * canaries)[1], fresh)
        if planted is not None:
            along = noise.split(_remainder(this, planted.column, self.plan))[1]
            self._add_strength("records", noise.split(step * planted.planned)[1], along)

    def results(self) -> tuple[Check, ...]:
        """Return all checks that had something to test."""
        checks = [self._exact_rows(), self._independence()]
        checks += [self._strength_check(name) for name in self._strength]
        if self._labels:
            checks += self._moments()
        by_name = {check.name: check for check in checks if check.tests}
        return tuple(by_name[name] for name in CHECK_NAMES if name in by_name)

    def _note_rest(self, release: int, noise: _Whitened, rest: Floats) -> None:
        self._exact += len(rest)
        share = np.abs(rest).max(axis=1, initial=0.0) / np.maximum(noise.size[noise.null], 1e-300)
        if len(share) and share.max() > self._rest:
            self._rest, self._rest_label = float(share.max()), (release, int(noise.null[share.argmax()]))

    def _compare(self, fresh: Floats, labels: list[tuple[int, int]]) -> None:
        """Find the largest cosine of two noise rows of which at least one is new."""
        length = np.linalg.norm(fresh, axis=1, keepdims=True)
        lost = length < LOST_NOISE * math.sqrt(fresh.shape[1])
        unit = np.where(lost, 0.0, fresh / np.where(lost, 1.0, length)).astype(np.float32)
        old = self._remembered if self._remembered.size else unit[:0]
        cosines = np.abs(unit @ np.concatenate([old, unit]).T)
        cosines[:, len(old) :][np.tril_indices(len(unit))] = 0.0
        self._pairs += len(unit) * len(old) + len(unit) * (len(unit) - 1) // 2
        if cosines.size and cosines.max() > self._cosine:
            new, other = np.unravel_index(cosines.argmax(), cosines.shape)
            self._cosine = float(cosines[new, other])
            earlier = [*self._labels[len(self._labels) - len(old) :], *labels]
            self._pair = labels[int(new)], earlier[int(other)]
        self._remembered = np.concatenate([old, unit])[-REMEMBERED_ROWS:]

    def _add_strength(self, name: str, planned: Floats, found: Floats) -> None:
        self._strength[name] += (float((planned * found).sum()), float((planned**2).sum()))

    def _moments(self) -> Iterator[Check]:
        sums, labels = np.concatenate(self._sums), np.array(self._labels)
        agents = self.plan.owner[labels[:, 1]].astype(np.int64)
        names = [self._name(label) for label in self._labels]
        names += [f"all rows of agent {agent}" for agent in np.unique(agents)] + ["all rows"]
        member = np.concatenate(
            [np.eye(self.plan.agents)[agents].T[np.unique(agents)], np.ones((1, len(sums)))]
        )
        sums = np.concatenate([sums, member @ sums])
        count = np.concatenate([np.ones(len(labels)), member.sum(axis=1)]) * self._columns
        # A sum of squares of k standard normal numbers is chi-square with k degrees of freedom.
        tails = [tail(count / 2, sums[:, 1] / 2) for tail in (gammainc, gammaincc)]
        spread = np.sqrt(sums[:, 1] / count)
        yield _most_unusual("spread", 2 * np.minimum(*tails), spread, 1.0, names)
        mean = sums[:, 0] / np.sqrt(count)
        yield _most_unusual("mean", 2 * ndtr(-np.abs(mean)), sums[:, 0] / count, 0.0, names)

    def _independence(self) -> Check:
        # 1 - cos² is beta((k-1)/2, 1/2) for two independent directions in k dimensions.
        p = (
            float(betainc((self._columns - 1) / 2, 0.5, max(0.0, 1 - self._cosine**2)))
            if self._pairs
            else 1.0
        )
        return Check(
            name="independence",
            tests=self._pairs,
            found=self._cosine,
            planned=0.0,
            where=" and ".join(self._name(label) for label in self._pair),
            p=min(1.0, p * self._pairs),
        )

    def _strength_check(self, name: str) -> Check:
        product, square = self._strength[name].tolist()
        # E exp(x·product - x²·square/2) <= 1 for all x; the mean over x from N(0, 1) is this, and 1/p.
        p = math.sqrt(1 + square) * math.exp(-min(product**2 / (2 * (1 + square)), 700.0))
        return Check(
            name=name,
            tests=int(square > 0),
            found=1 + product / square if square else 1.0,
            planned=1.0,
            where=f"all rows of agent {self.owner}",
            p=min(1.0, p),
        )

    def _exact_rows(self) -> Check:
        return Check(
            name="exact rows",
            tests=self._exact,
            found=self._rest,
            planned=0.0,
            where=self._name(self._rest_label),
            p=float(self._rest <= EXACT_TOLERANCE),
        )

    def _name(self, label: tuple[int, int]) -> str:
        release, row = label
        return f"row {row} of agent {self.plan.owner[row]} in release {release}"


@dataclass(frozen=True, eq=False, kw_only=True)
class _Whitened:
    """How the noise of one release becomes independent standard normal numbers."""

    rows: Ints  # the rows of the plan with noise of their own
    inverse: Floats  # [rows, rows]: L⁻¹ of their covariance; [rows] if they are independent
    null: Ints  # the other rows that exist, except those whose noise is too small to test
    weights: Floats  # [null, rows]: their noise follows from that of `rows`
    size: Floats  # [rows of the plan]: the largest number that enters a row

    @classmethod
    def of(cls, this: Round, columns: Columns) -> _Whitened:
        size = _largest_term(this, columns)
        used = (this.draw >= 0) & (this.std != 0)
        variance = np.where(used, this.std**2, 0.0).sum(axis=1)
        noisy = this.exists & (variance > 0)
        resolved = noisy & (np.sqrt(variance) > RESOLVED_NOISE * size)
        rows, still = np.flatnonzero(resolved), np.flatnonzero(this.exists & ~noisy)
        entries = this.draw[rows][used[rows]]
        if len(np.unique(entries)) == len(entries):
            inverse, weights = 1 / np.sqrt(variance[rows]), np.zeros((len(still), len(rows)))
            return cls(rows=rows, inverse=inverse, null=still, weights=weights, size=size)
        numbers, at = np.unique(entries, return_inverse=True)
        N = np.zeros((len(rows), len(numbers)))
        np.add.at(N, (np.nonzero(used[rows])[0], at), this.std[rows][used[rows]])
        white = whiten(N @ N.T, variance[rows])
        weights = np.zeros((len(still) + len(white.null), len(white.fresh)))
        weights[len(still) :] = white.weights
        null = np.concatenate([still, rows[white.null]])
        return cls(rows=rows[white.fresh], inverse=white.inverse, null=null, weights=weights, size=size)

    def split(self, remainder: Floats) -> tuple[Floats, Floats]:
        """Return what remains in the null rows, and the whitened numbers of the noise rows."""
        own = remainder[self.rows]
        fresh = self.inverse[:, None] * own if self.inverse.ndim == 1 else self.inverse @ own
        return remainder[self.null] - self.weights @ own, fresh


def _sources(this: Round) -> Iterator[tuple[Bools, Ints, Floats]]:
    for source, weight in zip(this.source.T, this.weight.T, strict=True):
        used = (source >= 0) & (weight != 0) & this.exists
        yield used, source[used].astype(np.int64), weight[used, None]


def _remainder(this: Round, columns: Columns, plan: Plan) -> Floats:
    """Return each row without the rows and the gradient that enter it, [rows, columns]."""
    rest = columns.rows - this.step[:, None] * columns.gradients[plan.owner]
    for used, source, weight in _sources(this):
        rest[used] -= weight * columns.before[source]
    return rest


def _largest_term(this: Round, columns: Columns) -> Floats:
    """Return the largest number of each row and of the rows that enter it, [rows]."""
    size = np.where(this.exists, np.abs(columns.rows).max(axis=1), 0.0)
    for used, source, weight in _sources(this):
        size[used] += np.abs(weight[:, 0]) * np.abs(columns.before[source]).max(axis=1)
    return size


def _most_unusual(name: str, p: Floats, found: Floats, planned: float, names: list[str]) -> Check:
    worst = int(np.argmin(p))
    return Check(
        name=name,
        tests=len(p),
        found=float(found[worst]),
        planned=planned,
        where=names[worst],
        p=min(1.0, float(p[worst]) * len(p)),
    )

"""Arrays of the rows that affect losses to observers of every estimate, for many observers at once.

A *question* is: how much does an observer learn about some owners? It states the observer, the owners, and
which rows may be hidden from the observer. All other rows count as seen. A row is hidden if it may be hidden,
and if the observer does not read it, make it, or make another row from it. This file arranges the rows and
rounds in arrays. `_reader_tracking` computes the covariance of the hidden rows. `observer_filter` is for
observers that do not read estimates.

**Guarantees.** The caller may choose which rows may be hidden, because counting more rows as seen never
lowers a loss. Rows that reveal nothing are left out: seen rows that contain neither a hidden row nor a
gradient of an owner in the question, and hidden rows that enter no later row. `UnsuitedError` is raised for a
row that is made from two hidden rows, for a draw that enters two rows, and for a row that reveals something
and has no noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topdp.base.array_types import Bools, Floats, Ints
from topdp.base.rounding import LARGEST_SAFE_VARIANCE, LEAST_SAFE_VARIANCE, gamma
from topdp.plan import Capability, Plan, unsupported
from topdp.privacy.observers.observer_filter import unknown_draws

NO_ROW = -1

# The values that pad the arrays of a layout.
EMPTY_ENTRIES = {"at": NO_ROW, "weight": 0.0, "variance": 0.0, "tells": False, "step": 0.0, "owner": NO_ROW}


class UnsuitedError(Exception):
    """The plan has a form that this method does not support. Callers catch this error; users never see it."""


class ReaderQuestion(NamedTuple):
    """How much do `members` learn about `owners`, if only the rows `hidden` may be hidden from them?"""

    members: tuple[int, ...]
    owners: Ints
    hidden: Ints


def related_columns(relation: Any, rows: Ints) -> Ints:
    """Return the columns of the sparse matrix `relation` that have an entry in one of `rows`."""
    parts = [relation.indices[relation.indptr[a] : relation.indptr[a + 1]] for a in rows.tolist()]
    return np.unique(np.concatenate(parts)).astype(np.int64) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class RowFlow:
    """A plan whose estimates are public, and which of its other rows enter which rows.

    Raise UnsuitedError for a plan that the method does not support.
    """

    plan: Plan

    def __post_init__(self) -> None:
        plan = self.plan
        for draw in plan.draw.values:
            entering = draw[draw >= 0]
            if len(np.unique(entering)) != len(entering):
                raise UnsuitedError("A draw enters two rows.")
        for r in range(1, plan.releases):
            used = plan.source[r][(plan.source[r] >= 0) & (plan.weight[r] != 0)]
            if not plan.exists[r - 1, used].all():
                raise UnsuitedError("A row is made from a row that does not exist.")
        if need := unsupported(plan, {Capability.SHARED_DRAWS}):
            raise UnsuitedError(f"Not covered: {need}.")

    @cached_property
    def secret(self) -> Bools:
        """For each row, whether it is neither an estimate nor a memory row, as Booleans [m]."""
        return np.asarray((np.arange(self.plan.rows) >= self.plan.agents) & ~self.plan.memories)

    @cached_property
    def users(self) -> Any:
        """Whether row b is made from the `secret` row a in some release, as entry (a, b), sparse [m, m]."""
        plan, m = self.plan, self.plan.rows
        codes: Ints = np.empty(0, np.int64)
        kinds = np.unique(np.stack([plan.source.which, plan.weight.which]), axis=1)
        for start in range(0, kinds.shape[1], 64):
            of_source, of_weight = kinds[:, start : start + 64]
            source = plan.source.values[of_source]
            used = (source >= 0) & (plan.weight.values[of_weight] != 0) & self.secret[source]
            row = np.nonzero(used)[1]
            codes = np.union1d(codes, source[used].astype(np.int64) * m + row)
        return sparse.csr_array((np.ones(len(codes), bool), (codes // m, codes % m)), shape=(m, m))

    @cached_property
    def rows_of(self) -> list[Ints]:
        """The rows that each agent makes."""
        order = np.argsort(self.plan.owner, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.plan.owner, minlength=self.plan.agents))[:-1])


@dataclass(frozen=True, kw_only=True)
class ReaderLayout:
    """The relevant rows of a batch of questions, as arrays [releases, batch, rows] padded to one size.

    `at`: the position of the hidden row of the previous round that enters the row (there is at most one), or
    NO_ROW. `weight`: the weight of that hidden row. `variance`: of the fresh noise in the row that the
    observer does not know. `live`: whether the row is hidden and enters a later row. `tells`: whether the row
    is seen, and contains a hidden row or the gradient of an owner in the question. `step`: the factor of that
    gradient.
    """

    at: NDArray[np.int32]
    weight: Floats
    variance: Floats
    live: Bools
    tells: Bools
    step: Floats
    owner: NDArray[np.int32]  # [batch, rows] the position among the owners of the question, or NO_ROW

    @property
    def widest(self) -> int:
        """The largest number of live rows in a round."""
        return int(self.live.sum(axis=2).max(initial=0))


def lay_out(flow: RowFlow, questions: Sequence[ReaderQuestion]) -> ReaderLayout:
    """Return the layout of `questions`, padded to the size of the largest question.

    Callers should batch questions of similar size.
    """
    shared: dict[tuple[bytes, bytes], _SharedRows] = {}
    parts = []
    for question in questions:
        key = question.owners.tobytes(), question.hidden.tobytes()
        if key not in shared:
            shared[key] = _shared_rows(flow, question.owners, question.hidden)
        parts.append(_question_rows(flow.plan, shared[key], question.members))
    width = max(part["at"].shape[1] for part in parts)
    whole: dict[str, NDArray[Any]] = {}
    for name, empty in EMPTY_ENTRIES.items():
        arrays = [part[name] for part in parts]
        whole[name] = np.full((*arrays[0].shape[:-1], len(arrays), width), empty, arrays[0].dtype)
        for b, array in enumerate(arrays):
            whole[name][..., b, : array.shape[-1]] = array
    live = _live(whole["at"], whole["tells"])
    noise = whole["variance"][whole["tells"] | live]
    if (noise <= 0).any():
        raise UnsuitedError("A row has no noise.")
    if not ((noise > LEAST_SAFE_VARIANCE) & (noise < LARGEST_SAFE_VARIANCE)).all():
        raise UnsuitedError("Some noise is too small or too large for float64.")
    return ReaderLayout(live=live, **whole)


@dataclass(frozen=True, eq=False, kw_only=True)
class _SharedRows:
    """The part of a layout that does not depend on the observer, as arrays [releases, rows] or as stated."""

    rows: Ints  # [rows] their numbers in the plan
    exists: Bools
    hideable: Bools  # [rows] whether the row may be hidden
    at: Ints  # [releases, rows, sources] the position of the source if it may be hidden, or NO_ROW
    weight: Floats  # [releases, rows, sources]
    step: Floats
    owner: NDArray[np.int32]  # [rows]
    variance: Floats  # of all fresh noise, whether or not the observer knows it


def _shared_rows(flow: RowFlow, owners: Ints, hidden: Ints) -> _SharedRows:
    """Return the rows that matter for `owners` if only rows `hidden` may be hidden."""
    plan = flow.plan
    hidden = hidden[flow.secret[hidden]]
    mine = [flow.rows_of[i] for i in owners.tolist()]
    rows = np.unique(np.concatenate([hidden, related_columns(flow.users, hidden), *mine]).astype(np.int64))
    index = np.full(plan.rows, NO_ROW, np.int32)
    index[hidden] = np.searchsorted(rows, hidden)
    source = plan.source.values[:, rows]
    weight = plan.weight.values[:, rows][plan.weight.which]
    exists = np.asarray((source >= 0).any(axis=-1))[plan.source.which]
    at = np.where(source >= 0, index[source], NO_ROW)[plan.source.which]
    at[weight == 0] = NO_ROW
    at[0] = NO_ROW
    position = np.full(plan.agents, NO_ROW, np.int32)
    position[owners] = np.arange(len(owners))
    owner = position[plan.owner[rows]]
    step = -plan.rate[:, None] * plan.carries.values[:, rows][plan.carries.which]
    step = np.where((owner >= 0) & exists, step, 0.0)
    variance = _variance(plan, np.zeros(plan.draws, bool), rows)
    return _SharedRows(
        rows=rows,
        exists=exists,
        hideable=index[rows] >= 0,
        at=at,
        weight=weight,
        step=step,
        owner=owner,
        variance=variance,
    )


def _question_rows(plan: Plan, shared: _SharedRows, members: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Return the arrays of `ReaderLayout` for one question, [releases, rows], except `live`."""
    rows, at = shared.rows, shared.at
    J = np.zeros(plan.agents, bool)
    J[list(members)] = True
    own = J[plan.owner[rows]]
    readers = plan.readers.values[:, rows]
    reads = ((readers >= 0) & J[readers]).any(axis=-1)
    unknown = shared.exists & (shared.hideable & ~own)
    if reads.any():
        unknown &= ~reads[plan.readers.which]
    # J knows the rows from which it makes its own rows.
    made = at[1:, own]
    round, row, slot = np.nonzero(made >= 0)
    unknown[round, made[round, row, slot]] = False
    R, count, sources = at.shape
    enters = np.zeros(at.shape, bool)
    enters[1:] = (at[1:] >= 0) & unknown[np.arange(R - 1)[:, None, None], at[1:]]
    if sources > 1 and (np.count_nonzero(enters, axis=-1) > 1).any():
        raise UnsuitedError("A row is made from two hidden rows.")
    hidden_source, share = np.full((R, count), NO_ROW, np.int32), np.zeros((R, count))
    for s in range(sources):
        hidden_source[enters[:, :, s]] = at[:, :, s][enters[:, :, s]]
        share[enters[:, :, s]] = shared.weight[:, :, s][enters[:, :, s]]
    tells = shared.exists & ~unknown & ((hidden_source >= 0) | (shared.step != 0))
    known = ~unknown_draws(plan, J)
    mine = known[plan.draw.values[:, rows]] & (plan.draw.values[:, rows] >= 0)
    variance = _variance(plan, known, rows) if mine.any() else shared.variance
    same = {"step": shared.step, "owner": shared.owner}
    return {"at": hidden_source, "weight": share, "variance": variance, "tells": tells, **same}


def _live(at: NDArray[np.int32], tells: Bools) -> Bools:
    """Return whether a row enters, directly or through other rows, a row for which `tells` is true."""
    live = np.zeros_like(tells)
    for r in range(len(at) - 1, 0, -1):
        batch, row = np.nonzero((tells[r] | live[r]) & (at[r] >= 0))
        live[r - 1, batch, at[r, batch, row]] = True
    return live


def _variance(plan: Plan, known: Bools, rows: Ints) -> Floats:
    """Return the variance of the fresh noise in `rows` [releases, rows], without draws marked in `known`.

    The result is rounded down.
    """
    draw = plan.draw.values[:, rows]
    counts = (draw >= 0) & ~known[draw]
    square = np.square(plan.std.values[:, rows])
    if len(counts) == 1:
        variance = (square * counts).sum(axis=-1)[plan.std.which]
    else:
        variance = (square[plan.std.which] * counts[plan.draw.which]).sum(axis=-1)
    return np.asarray(variance * np.square(plan.scale)[:, None] * (1 - gamma(draw.shape[-1] + 8)))

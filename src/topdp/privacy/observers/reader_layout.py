"""Which rows of a plan matter to an observer who reads every estimate: as arrays for many observers at once.

A *question* is who looks, at whose data, and which rows may be hidden from it; all other rows count as seen.
A row is hidden where it may be, and the observer neither reads nor makes it, nor makes anything of it. This
file sorts rows and rounds; `tracking` follows what is not known of the hidden ones. Not for observers who do
not read estimates (`filtering`).

**Guarantees.** Whatever may be hidden is a choice of who asks: counting more rows as seen never makes anybody
learn less. Left out are rows that say nothing: seen ones in which neither a hidden row nor a gradient of the
owners in question enters, and hidden ones that nothing later is made of. `UnsuitedError`: a row in which two
hidden rows meet, a draw that enters two rows, or a row that tells something and has no noise.
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
from topdp.plan import Capability, Plan, unsupported

NO_ROW = -1


class UnsuitedError(Exception):
    """The plan is not of the kind that is followed here; never shown to users."""


class ReaderQuestion(NamedTuple):
    """What `members` learn of `owners`, if no rows but `hidden` are hidden from them."""

    members: tuple[int, ...]
    owners: Ints
    hidden: Ints


@dataclass(frozen=True)
class RowFlow:
    """A plan whose estimates everybody reads, and which of its other rows ever enter which rows."""

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
                raise UnsuitedError("A row is made of one that is not there.")
        if need := unsupported(plan, {Capability.SHARED_DRAWS}):
            raise UnsuitedError(f"Not covered: {need}.")

    @cached_property
    def secret(self) -> Bools:
        """[m]: rows that are neither estimates nor memories of estimates."""
        return np.asarray((np.arange(self.plan.rows) >= self.plan.agents) & ~self.plan.memories)

    @cached_property
    def users(self) -> Any:
        """Sparse [m, m]: row b is ever made of secret row a."""
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
        """The rows of every agent."""
        order = np.argsort(self.plan.owner, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.plan.owner, minlength=self.plan.agents))[:-1])

    def entered(self, rows: Ints) -> Ints:
        """The rows that are ever made of some of these."""
        users = self.users
        parts = [users.indices[users.indptr[a] : users.indptr[a + 1]] for a in rows.tolist()]
        return np.unique(np.concatenate(parts)).astype(np.int64) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class ReaderLayout:
    """The rows that matter to a batch of questions, [releases, batch, rows]; padded with rows that are not.

    `at`: the position of the one hidden row of the round before that enters, or NO_ROW; `weight`: with what
    weight. `live`: hidden, and something later is made of it. `tells`: seen, and a hidden row or the step of
    an owner in question enters. `variance`: of the fresh noise that the observers do not know.
    """

    at: NDArray[np.int32]
    weight: Floats
    variance: Floats
    live: Bools
    tells: Bools
    step: Floats
    owner: NDArray[np.int32]  # [batch, rows] position among the owners of the question, or NO_ROW

    @property
    def widest(self) -> int:
        """The most rows that are live in a round."""
        return int(self.live.sum(axis=2).max(initial=0))


def lay_out(ways: RowFlow, questions: Sequence[ReaderQuestion]) -> ReaderLayout:
    """The arrays of some questions; they are padded to the largest, so ask alike ones together."""
    grounds: dict[tuple[bytes, bytes], _SharedRows] = {}
    found = []
    for question in questions:
        key = question.owners.tobytes(), question.hidden.tobytes()
        if key not in grounds:
            grounds[key] = _shared_rows(ways, question.owners, question.hidden)
        found.append(_question_rows(ways, grounds[key], question.members))
    width = max(part.at.shape[1] for part in found)

    def padded(name: str, empty: object) -> NDArray[Any]:
        parts = [getattr(part, name) for part in found]
        shape = (parts[0].shape[0], len(parts), width) if parts[0].ndim == 2 else (len(parts), width)
        whole = np.full(shape, empty, parts[0].dtype)
        for b, part in enumerate(parts):
            whole[..., b, : part.shape[-1]] = part
        return whole

    at, tells, variance = padded("at", NO_ROW), padded("tells", False), padded("variance", 0.0)
    live = _live(at, tells)
    if (variance[tells | live] <= 0).any():
        raise UnsuitedError("A row has no noise.")
    step, owner = padded("step", 0.0), padded("owner", NO_ROW)
    return ReaderLayout(at, padded("weight", 0.0), variance, live, tells, step, owner)


class _SharedRows(NamedTuple):
    """What does not depend on who looks: rows that matter, [releases, rows] and [releases, rows, sources]."""

    rows: Ints
    exists: Bools
    hideable: Bools  # [rows]
    at: Ints  # the hideable row of the round before that each source is
    weight: Floats
    step: Floats
    owner: NDArray[np.int32]
    variance: Floats  # of all fresh noise, whoever knows it


class _QuestionRows(NamedTuple):
    """One question: the parts of `ReaderLayout`, [releases, rows]."""

    at: NDArray[np.int32]
    weight: Floats
    variance: Floats
    tells: Bools
    step: Floats
    owner: NDArray[np.int32]


def _shared_rows(ways: RowFlow, owners: Ints, hidden: Ints) -> _SharedRows:
    plan = ways.plan
    hidden = hidden[ways.secret[hidden]]
    mine = [ways.rows_of[i] for i in owners.tolist()]
    rows = np.unique(np.concatenate([hidden, ways.entered(hidden), *mine]).astype(np.int64))
    place = np.full(plan.rows, NO_ROW, np.int32)
    place[hidden] = np.searchsorted(rows, hidden)
    source = plan.source.values[:, rows]
    weight = plan.weight.values[:, rows][plan.weight.which]
    exists = np.asarray((source >= 0).any(axis=-1))[plan.source.which]
    at = np.where(source >= 0, place[source], NO_ROW)[plan.source.which]
    at[weight == 0] = NO_ROW
    at[0] = NO_ROW
    position = np.full(plan.agents, NO_ROW, np.int32)
    position[owners] = np.arange(len(owners))
    owner = position[plan.owner[rows]]
    step = -plan.rate[:, None] * plan.carries.values[:, rows][plan.carries.which]
    step = np.where((owner >= 0) & exists, step, 0.0)
    variance = _variance(plan, np.zeros(plan.draws, bool), rows)
    return _SharedRows(rows, exists, place[rows] >= 0, at, weight, step, owner, variance)


def _question_rows(ways: RowFlow, ground: _SharedRows, members: tuple[int, ...]) -> _QuestionRows:
    plan, rows, at = ways.plan, ground.rows, ground.at
    J = np.zeros(plan.agents, bool)
    J[list(members)] = True
    own = J[plan.owner[rows]]
    readers = plan.readers.values[:, rows]
    reads = ((readers >= 0) & J[readers]).any(axis=-1)
    unknown = ground.exists & (ground.hideable & ~own)
    if reads.any():
        unknown &= ~reads[plan.readers.which]
    # What J makes its own rows of, it has.
    made = at[1:, own]
    round, row, slot = np.nonzero(made >= 0)
    unknown[round, made[round, row, slot]] = False
    R, count, sources = at.shape
    enters = np.zeros(at.shape, bool)
    enters[1:] = (at[1:] >= 0) & unknown[np.arange(R - 1)[:, None, None], at[1:]]
    if sources > 1 and (np.count_nonzero(enters, axis=-1) > 1).any():
        raise UnsuitedError("Two hidden rows meet in one.")
    one, share = np.full((R, count), NO_ROW, np.int32), np.zeros((R, count))
    for s in range(sources):
        one[enters[:, :, s]] = at[:, :, s][enters[:, :, s]]
        share[enters[:, :, s]] = ground.weight[:, :, s][enters[:, :, s]]
    tells = ground.exists & ~unknown & ((one >= 0) | (ground.step != 0))
    known = np.asarray(((plan.known_by >= 0) & J[plan.known_by]).any(axis=1))
    for agent in members:  # who makes a row knows what enters it
        entering = plan.draw.values[:, ways.rows_of[agent]]
        known[entering[entering >= 0]] = True
    mine = known[plan.draw.values[:, rows]] & (plan.draw.values[:, rows] >= 0)
    variance = _variance(plan, known, rows) if mine.any() else ground.variance
    return _QuestionRows(one, share, variance, tells, ground.step, ground.owner)


def _live(at: NDArray[np.int32], tells: Bools) -> Bools:
    """Hidden rows of which something is made that tells something, at once or later."""
    live = np.zeros_like(tells)
    for r in range(len(at) - 1, 0, -1):
        batch, row = np.nonzero((tells[r] | live[r]) & (at[r] >= 0))
        live[r - 1, batch, at[r, batch, row]] = True
    return live


def _variance(plan: Plan, known: Bools, rows: Ints) -> Floats:
    """[releases, rows]: of the fresh noise of a row, without the draws that are known."""
    draw = plan.draw.values[:, rows]
    counts = (draw >= 0) & ~known[draw]
    square = np.square(plan.std.values[:, rows])
    if len(counts) == 1:
        variance = (square * counts).sum(axis=-1)[plan.std.which]
    else:
        variance = (square[plan.std.which] * counts[plan.draw.which]).sum(axis=-1)
    return np.asarray(variance * np.square(plan.scale)[:, None])

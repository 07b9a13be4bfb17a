"""Large graphs: what observers learn at most of an owner, by the neighbourhood of the owner alone.

Every row that is made outside a ball around the owner counts as seen, by everybody. Then nothing depends on
what is not in the ball, and an observer far from it learns no more than anybody else who reads all that. A
larger ball hides more and costs more: balls grow around the observers that may learn most, until those have
been looked at with the largest ball that is allowed. Not for small graphs, where `closely` looks at all.

**Guarantees.** An upper bound for every coalition of so many agents, never a sample of them: who sees more
rows never learns less, and the proof of `adaptive` (docs/privacy.md) holds for any rows that are seen in the
order of rounds. A coalition is bounded by its *trace*: its members that read, make or know noise of rows in
the ball, or of rows that are made of those. The rest of the coalition has nothing that is not seen anyhow.
`lower` is 0: nothing is said from below. The same on any number of cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from topdp.base.array_types import Ints
from topdp.base.progress import Progress, silent
from topdp.plan import Plan
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.band_bounds import bracket_band
from topdp.privacy.observers.parallel_map import parallel_map
from topdp.privacy.observers.reader_layout import ReaderQuestion, RowFlow, UnsuitedError, lay_out
from topdp.privacy.observers.reader_tracking import track_changes
from topdp.privacy.observers.view import View, amplified
from topdp.privacy.observers.worst_case import every_round, information
from topdp.privacy.query import Query

Trace = tuple[int, ...]

BALL_ROW_LIMITS = (160, 80, 40, 20, 0)
"""Rows that may be hidden in a ball, at most; the first that is affordable is taken."""

SLOW_BALL_ROW_LIMIT = 400
"""The same where slow answers are allowed."""

MAX_UNASKED_SECONDS = 600.0
"""Seconds of one core that a bound may take unasked."""

MAX_BALL_RADIUS = 8
"""Links from the owner to the edge of its ball, at most."""

MAX_FIRST_TRACES = 24
"""Traces that are looked at one by one in the first ball; where there are more, it is as small as can be."""

BALL_FOLLOWED_ROUNDS, BALL_BEARABLE_REST = 64, 2e-5
"""Rounds for which a change is followed, and what may be left of it then, per largest change."""

ROWS_PER_BATCH = 8192
"""Rows of all the questions of a batch."""

MAX_LISTED_AGENTS = 2000
"""Agents up to whom the answer lists every pair; beyond, an owner has its largest alone."""


@dataclass(frozen=True)
class PlanNeighbourhoods:
    """Who is how near to whom in a plan, by rows."""

    ways: RowFlow
    balls: dict[tuple[int, int], Ints] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.ways.plan

    @cached_property
    def _links(self) -> Any:
        """Sparse [n, n]: somebody makes a row of a hidden row of somebody else."""
        n, owner = self.plan.agents, self.plan.owner
        source, user = self.ways.users.nonzero()
        pairs = np.unique(owner[source].astype(np.int64) * n + owner[user])
        links = sparse.csr_array((np.ones(len(pairs)), (pairs // n, pairs % n)), shape=(n, n))
        return (links + links.T).tocsr()

    @cached_property
    def _readers(self) -> Any:
        """Sparse [m, n]: the agent ever reads the row."""
        return _relation(self.plan.readers.values, self.plan.rows, self.plan.agents)

    @cached_property
    def _knowers(self) -> Any:
        """Sparse [m, n]: the agent knows noise that enters the row."""
        draws = _relation(self.plan.draw.values, self.plan.rows, self.plan.draws)
        return (draws @ _relation(self.plan.known_by[None], self.plan.draws, self.plan.agents)).tocsr()

    def hidden(self, owner: int, reach: int) -> Ints:
        """The rows that may be hidden in the ball of so many links around an owner."""
        key = owner, reach
        if key not in self.balls:
            ball = np.array([owner])
            for _ in range(reach):
                ball = np.union1d(ball, _columns(self._links, ball))
            rows = np.concatenate([self.ways.rows_of[k] for k in ball.tolist()])
            self.balls[key] = np.sort(rows[self.ways.secret[rows]])
        return self.balls[key]

    def near(self, owner: int, reach: int) -> frozenset[int]:
        """The other agents that have something of the ball that is not seen by everybody."""
        hidden = self.hidden(owner, reach)
        rows = np.union1d(hidden, self.ways.entered(hidden))
        rows = np.union1d(rows, self.ways.rows_of[owner])
        near = {*self.plan.owner[rows].tolist(), *_columns(self._knowers, rows).tolist()}
        return frozenset(near | set(_columns(self._readers, hidden).tolist())) - {owner}

    def farthest(self, owner: int, room: int) -> int:
        """The reach of the largest ball that has room."""
        reach = 0
        while reach < MAX_BALL_RADIUS:
            wider = self.hidden(owner, reach + 1)
            if len(wider) > room or len(wider) == len(self.hidden(owner, reach)):
                break
            reach += 1
        return reach


@dataclass
class _OwnerBounds:
    """μ² at unit sensitivity at most, of the traces that together stand for all coalitions."""

    number: int
    farthest: int
    found: dict[tuple[int, Trace], float] = field(default_factory=dict)  # (reach, trace)

    def largest(self) -> tuple[int, Trace]:
        return max(self.found, key=lambda key: (self.found[key], key))


def neighbourhood_bound(
    ways: RowFlow,
    exposure: Exposure,
    colluders: int = 1,
    owners: Sequence[int] | None = None,
    progress: Progress = silent,
    room: int = BALL_ROW_LIMITS[0],
    workers: int | None = None,
) -> View:
    """What any `colluders` agents learn at most of each owner; `owners`: default all.

    `room`: rows that may be hidden in a ball. More of them is tighter, and takes longer.

    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy import adaptive, exposure
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(20), steps, np.full(20, 5.0), seed=0)
    >>> exposed = exposure(20, sensitivity=1.0)
    >>> seen = bounded_nearby(RowFlow(plan), exposed, room=10)
    >>> bool(1 < seen.worst().max() / adaptive(plan, exposed).worst().max() < 1.05)
    True
    """
    around = PlanNeighbourhoods(ways)
    asked = list(range(ways.plan.agents)) if owners is None else list(owners)
    search = _BallSearch(around, exposure.periods(), colluders, room, workers)
    found = search.all(asked, progress)
    return _view(around, exposure, colluders, found)


def affordable_ball_rows(ways: RowFlow, query: Query) -> int:
    """The room that there is time for; refused where there is none at all."""
    if query.allow_slow:
        return SLOW_BALL_ROW_LIMIT
    around = PlanNeighbourhoods(ways)
    n = ways.plan.agents
    some = range(0, n, max(1, n // 25))
    for room in BALL_ROW_LIMITS:
        work = sum(_seconds(around, i, query.colluders, room) for i in some) * n / len(some)
        if work <= MAX_UNASKED_SECONDS:
            return room
    raise NotCovered(
        f"The adaptive answer of {ways.plan.releases} releases among {n} agents takes about {work / 60:.0f} "
        "minutes on one core, even as a bound by the nearest rows alone. Set privacy.allow_slow=true to have "
        "it anyway, take fewer colluders or rounds, or choose guarantee='worst-case'."
    )


def _seconds(around: PlanNeighbourhoods, owner: int, colluders: int, room: int) -> float:
    """Of one core, roughly: for the first balls, and for those of the readers that grow to the end."""
    farthest, first = around.farthest(owner, room), 0
    inner = len(around.near(owner, 0))
    if farthest and _sets(len(around.near(owner, 1)), colluders) <= MAX_FIRST_TRACES:
        first = 1
    total = 0.0
    for reach in range(first, farthest + 1):
        rows = len(around.hidden(owner, reach))
        near = len(around.near(owner, reach)) if reach <= 1 else inner
        # Measured on one core of an AMD EPYC: seconds a round, by rows that may be hidden.
        total += _sets(near, colluders) * (4e-6 + 3.5e-7 * rows + 8e-9 * rows**2)
    return total * around.plan.releases


def _sets(agents: int, most: int) -> int:
    return sum(math.comb(agents, size) for size in range(most + 1))


class _BallSearch:
    """Balls that grow around whoever may learn most."""

    def __init__(
        self, around: PlanNeighbourhoods, periods: Ints, colluders: int, room: int, workers: int | None
    ) -> None:
        self.around, self.periods, self.colluders = around, periods, colluders
        self.room, self.workers = room, workers

    def all(self, owners: Sequence[int], progress: Progress) -> list[_OwnerBounds]:
        states = [_OwnerBounds(i, self.around.farthest(i, self.room)) for i in owners]
        pending = [(state, self._first(state)) for state in states]
        done, total = 0, 0
        while pending:
            asked = [(state, reach, trace) for state, nodes in pending for reach, trace in nodes]
            batches = self._batched(asked)
            total += len(batches)
            for batch, values in zip(batches, parallel_map(self._values, batches, self.workers), strict=True):
                for (state, reach, trace), value in zip(batch, values, strict=True):
                    state.found[reach, trace] = value
                done += 1
                progress("accounting", done, total, unit="observer")
            pending = [(state, nodes) for state in states if (nodes := self._grown(state))]
        return states

    def _first(self, state: _OwnerBounds) -> list[tuple[int, Trace]]:
        for reach in range(min(1, state.farthest), -1, -1):
            near = self.around.near(state.number, reach)
            nodes = [(reach, trace) for trace in _up_to(self.colluders, near)]
            if len(nodes) <= MAX_FIRST_TRACES:
                break
        return nodes

    def _grown(self, state: _OwnerBounds) -> list[tuple[int, Trace]]:
        """Takes out the largest, where its ball can grow, and says what stands for it in the larger one."""
        reach, trace = state.largest()
        if reach >= state.farthest or state.found[reach, trace] == 0:
            return []
        del state.found[reach, trace]
        # Its coalitions have their other members, if any, outside the smaller ball.
        new = self.around.near(state.number, reach + 1) - self.around.near(state.number, reach)
        return [
            (reach + 1, tuple(sorted((*trace, *others))))
            for others in _up_to(self.colluders - len(trace), new)
        ]

    def _batched(self, asked: list[_Node]) -> list[list[_Node]]:
        """Balls of like size together, as many as have room."""

        def size(node: _Node) -> int:
            return len(self.around.hidden(node[0].number, node[1]))

        batches: list[list[_Node]] = []
        room = 0
        for node in sorted(asked, key=lambda node: (size(node), node[0].number, node[2])):
            needs = 4 * size(node) + 8  # rows that are made of hidden ones, too
            if needs > room:
                batches.append([])
                room = ROWS_PER_BATCH
            batches[-1].append(node)
            room -= needs
        return batches

    def _values(self, batch: list[_Node]) -> list[float]:
        questions = [
            ReaderQuestion(trace, np.array([state.number]), self.around.hidden(state.number, reach))
            for state, reach, trace in batch
        ]
        periods = self.periods[[state.number for state, _, _ in batch]][:, None]
        try:
            told = track_changes(
                lay_out(self.around.ways, questions), None, BALL_FOLLOWED_ROUNDS, rest=BALL_BEARABLE_REST
            )
        except UnsuitedError:  # a row without noise, say: all others together are the bound then
            return [np.inf] if len(batch) == 1 else [self._values([node])[0] for node in batch]
        return [
            bracket_band(one.bands[0], int(period), np.inf)[1]
            for one, period in zip(told, periods[:, 0], strict=True)
        ]


_Node = tuple[_OwnerBounds, int, Trace]


def _view(around: PlanNeighbourhoods, exposure: Exposure, colluders: int, found: list[_OwnerBounds]) -> View:
    n, periods = around.plan.agents, exposure.periods()
    per_release = information(around.plan)
    ceiling = np.array([every_round(per_release[:, i], int(periods[i])) for i in range(n)])
    listed = colluders == 1 and n <= MAX_LISTED_AGENTS
    observers: tuple[Trace, ...] = tuple((j,) for j in range(n)) if listed else ((),)
    upper = np.full((n, len(observers)), np.nan)
    for state in found:
        i = state.number
        if listed:
            # Who is in no trace is far from the balls in which nobody is.
            upper[i] = max((value for (_, trace), value in state.found.items() if not trace), default=0.0)
            for (_, trace), value in state.found.items():
                upper[i, list(trace)] = value
            upper[i, i] = np.nan
        else:
            upper[i] = state.found[state.largest()]
    upper = exposure.sensitivity[:, None] * np.minimum(np.sqrt(upper), ceiling[:, None])
    asked = ~np.isnan(upper)
    reach = sorted({state.largest()[0] for state in found})
    note = (
        f"at most: bounded by what is within {_from_to(reach)} links of each agent, all rows beyond counted "
        "as seen; privacy.allow_slow=true looks farther, and asks for less noise."
    )
    return View(observers, np.where(asked, 0.0, np.nan), upper, asked, amplified(exposure, per_release), note)


def _from_to(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"


def _up_to(count: int, agents: frozenset[int]) -> list[Trace]:
    """All sets of at most so many of them."""
    return [others for size in range(count + 1) for others in itertools.combinations(sorted(agents), size)]


def _columns(relation: Any, rows: Ints) -> Ints:
    """All that some of these rows are related to."""
    parts = [relation.indices[relation.indptr[a] : relation.indptr[a + 1]] for a in rows.tolist()]
    return np.unique(np.concatenate(parts)).astype(np.int64) if parts else np.empty(0, np.int64)


def _relation(values: Any, rows: int, columns: int) -> Any:
    """Sparse [rows, columns] of lists [kinds, rows, ...] padded with negative numbers."""
    codes = np.empty(0, np.int64)
    for kind in values:
        row, slot = np.nonzero(kind >= 0)
        codes = np.union1d(codes, row.astype(np.int64) * columns + kind[row, slot])
    return sparse.csr_array((np.ones(len(codes)), (codes // columns, codes % columns)), shape=(rows, columns))

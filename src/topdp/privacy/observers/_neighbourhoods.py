"""Upper bounds for large graphs, each computed from the neighbourhood of one owner.

The neighbourhood is a ball around the owner. Every row made outside the ball counts as seen by all observers.
Then the bound does not depend on rows outside the ball, and a distant observer learns no more than any other
observer that reads all these rows. In a larger ball, more rows are hidden: its bound is tighter, and takes
longer. Balls grow for the observers that may learn most, up to the largest ball that is allowed. On small
graphs `_estimate_readers` computes every observer instead.

**Guarantees.** The result is an upper bound for every coalition of `colluders` agents, never for a sample of
them. An observer that sees more rows never learns less, and the proof of `adaptive` (docs/privacy.md) holds
for any rows that are seen in the order of rounds. A coalition is bounded by its *trace*. The trace contains
the members that read, make or know noise of rows in the ball, or of rows that are made from these rows. The
other members know nothing that does not already count as seen. `lower` is 0, because no lower bound is
computed. The result does not depend on the number of cores.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from topdp.base.array_types import Ints
from topdp.base.progress import Progress
from topdp.plan import Plan
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers._mu_bounds import bracket_band
from topdp.privacy.observers._parallel_map import parallel_map
from topdp.privacy.observers._reader_layout import (
    ReaderQuestion,
    RowFlow,
    UnsuitedError,
    lay_out,
    related_columns,
)
from topdp.privacy.observers._reader_tracking import ChangeTracker
from topdp.privacy.observers.view import View, amplified
from topdp.privacy.observers.worst_case import every_round_mu, information
from topdp.privacy.query import DEFAULT_QUERY, Query

Trace = tuple[int, ...]

# The limits on the number of rows that may be hidden in a ball. The first affordable limit is used.
BALL_ROW_LIMITS = (160, 80, 40, 20, 0)

# The limit if slow answers are allowed.
SLOW_BALL_ROW_LIMIT = 400

# The seconds on one core that a bound may take by default.
MAX_UNASKED_SECONDS = 600.0

# The largest radius of a ball, in edges.
MAX_BALL_RADIUS = 8

# The most traces of the first ball. If there are more, the search begins with the smallest ball.
MAX_FIRST_TRACES = 24

# The most rounds for which a change is followed, and the rest that may be ignored, relative to the largest
# change. A bound on the rest is added.
BALL_FOLLOWED_ROUNDS, BALL_BEARABLE_REST = 64, 2e-5

# The most rows of all questions in a batch.
ROWS_PER_BATCH = 8192

# With more agents than this, the answer has only the largest value of each owner, not of every pair.
MAX_LISTED_AGENTS = 2000


@dataclass(frozen=True)
class PlanNeighbourhoods:
    """The balls around agents of a plan. Agents are adjacent if one uses a hidden row of the other."""

    flow: RowFlow
    balls: dict[tuple[int, int], Ints] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.flow.plan

    @cached_property
    def _links(self) -> Any:
        """Whether one agent makes a row from a hidden row of the other, sparse [n, n]."""
        n, owner = self.plan.agents, self.plan.owner
        source, user = self.flow.users.nonzero()
        pairs = np.unique(owner[source].astype(np.int64) * n + owner[user])
        links = sparse.csr_array((np.ones(len(pairs)), (pairs // n, pairs % n)), shape=(n, n))
        return (links + links.T).tocsr()

    @cached_property
    def _readers(self) -> Any:
        """Whether the agent reads the row in some release, sparse [m, n]."""
        return _relation(self.plan.readers.values, self.plan.rows, self.plan.agents)

    @cached_property
    def _knowers(self) -> Any:
        """Whether the agent knows noise that enters the row, sparse [m, n]."""
        draws = _relation(self.plan.draw.values, self.plan.rows, self.plan.draws)
        return (draws @ _relation(self.plan.known_by[None], self.plan.draws, self.plan.agents)).tocsr()

    def hidden(self, owner: int, reach: int) -> Ints:
        """Return the rows that may be hidden in the ball of radius `reach` (in edges) around `owner`."""
        key = owner, reach
        if key not in self.balls:
            ball = np.array([owner])
            for _ in range(reach):
                ball = np.union1d(ball, related_columns(self._links, ball))
            rows = np.concatenate([self.flow.rows_of[k] for k in ball.tolist()])
            self.balls[key] = np.sort(rows[self.flow.secret[rows]])
        return self.balls[key]

    def near(self, owner: int, reach: int) -> frozenset[int]:
        """Return the agents that can be in a trace of the ball of radius `reach` around `owner`.

        These are the other agents that read, make or know noise of rows which do not count as seen, or of
        rows made from these.
        """
        hidden = self.hidden(owner, reach)
        rows = np.union1d(hidden, related_columns(self.flow.users, hidden))
        rows = np.union1d(rows, self.flow.rows_of[owner])
        near = {*self.plan.owner[rows].tolist(), *related_columns(self._knowers, rows).tolist()}
        return frozenset(near | set(related_columns(self._readers, hidden).tolist())) - {owner}

    def farthest(self, owner: int, room: int) -> int:
        """Return the radius, in edges, of the largest ball around `owner` with at most `room` hidden rows."""
        reach = 0
        while reach < MAX_BALL_RADIUS:
            wider = self.hidden(owner, reach + 1)
            if len(wider) > room or len(wider) == len(self.hidden(owner, reach)):
                break
            reach += 1
        return reach


@dataclass
class _OwnerBounds:
    """Upper bounds of one owner's μ² at unit sensitivity, one for each ball radius and trace.

    Every coalition has one of these traces (see the module).
    """

    number: int  # of the owner
    farthest: int  # the largest allowed radius of its ball
    bounds: dict[tuple[int, Trace], float] = field(default_factory=dict)  # by radius and trace

    def largest(self) -> tuple[int, Trace]:
        """Return the radius and trace with the largest bound."""
        return max(self.bounds, key=lambda key: (self.bounds[key], key))


def neighbourhood_bound(
    flow: RowFlow, exposure: Exposure, query: Query = DEFAULT_QUERY, room: int = BALL_ROW_LIMITS[0]
) -> View:
    """Return upper bounds on the loss of each owner to any coalition of `query.colluders` agents.

    `room`: the most rows that may be hidden in a ball; a larger number gives tighter bounds and takes longer.

    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy import adaptive, exposure
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(20), steps, np.full(20, 5.0), seed=0)
    >>> exposed = exposure(20, sensitivity=1.0)
    >>> seen = neighbourhood_bound(RowFlow(plan), exposed, room=10)
    >>> bool(1 < seen.worst().max() / adaptive(plan, exposed).worst().max() < 1.05)
    True
    """
    around = PlanNeighbourhoods(flow)
    search = _BallSearch(around, exposure.periods(), query.colluders, room)
    return _view(around, exposure, query.colluders, search.all(query.progress))


def affordable_ball_rows(flow: RowFlow, query: Query) -> int:
    """Return the largest affordable limit on hidden rows per ball; raise NotCovered if there is none."""
    if query.allow_slow:
        return SLOW_BALL_ROW_LIMIT
    around = PlanNeighbourhoods(flow)
    n = flow.plan.agents
    some = range(0, n, max(1, n // 25))
    for room in BALL_ROW_LIMITS:
        work = sum(_seconds(around, i, query.colluders, room) for i in some) * n / len(some)
        if work <= MAX_UNASKED_SECONDS:
            return room
    raise NotCovered(
        f"The adaptive answer of {flow.plan.releases} releases among {n} agents takes about {work / 60:.0f} "
        "minutes on one core, even as a bound by the nearest rows only. Set privacy.allow_slow=true to "
        "compute it anyway, use fewer colluders or rounds, or guarantee='worst-case'."
    )


def _seconds(around: PlanNeighbourhoods, owner: int, colluders: int, room: int) -> float:
    """Return the estimated seconds on one core for all balls of one owner."""
    farthest, first = around.farthest(owner, room), 0
    inner = len(around.near(owner, 0))
    if farthest and _sets(len(around.near(owner, 1)), colluders) <= MAX_FIRST_TRACES:
        first = 1
    total = 0.0
    for reach in range(first, farthest + 1):
        rows = len(around.hidden(owner, reach))
        near = len(around.near(owner, reach)) if reach <= 1 else inner
        # The seconds for one round as a function of the rows that may be hidden, measured on an AMD EPYC
        # core.
        total += _sets(near, colluders) * (4e-6 + 3.5e-7 * rows + 8e-9 * rows**2)
    return total * around.plan.releases


def _sets(agents: int, most: int) -> int:
    """Return the number of sets of at most `most` of `agents` agents."""
    return sum(math.comb(agents, size) for size in range(most + 1))


class _BallSearch:
    """The search that enlarges the ball of each owner for the traces that may learn most."""

    def __init__(self, around: PlanNeighbourhoods, periods: Ints, colluders: int, room: int) -> None:
        self.around, self.periods, self.colluders, self.room = around, periods, colluders, room

    def all(self, progress: Progress) -> list[_OwnerBounds]:
        """Return the bounds of all owners."""
        owners = range(self.around.plan.agents)
        states = [_OwnerBounds(i, self.around.farthest(i, self.room)) for i in owners]
        pending = [(state, self._first(state)) for state in states]
        done, total = 0, 0
        while pending:
            asked = [(state, reach, trace) for state, nodes in pending for reach, trace in nodes]
            batches = self._batched(asked)
            total += len(batches)
            for batch, values in zip(batches, parallel_map(self._values, batches), strict=True):
                for (state, reach, trace), value in zip(batch, values, strict=True):
                    state.bounds[reach, trace] = value
                done += 1
                progress("accounting", done, total, unit="observer")
            pending = [(state, nodes) for state in states if (nodes := self._grown(state))]
        return states

    def _first(self, state: _OwnerBounds) -> list[tuple[int, Trace]]:
        """Return the radius and the traces with which the search for an owner begins."""
        for reach in range(min(1, state.farthest), -1, -1):
            near = self.around.near(state.number, reach)
            nodes = [(reach, trace) for trace in _up_to(self.colluders, near)]
            if len(nodes) <= MAX_FIRST_TRACES:
                break
        return nodes

    def _grown(self, state: _OwnerBounds) -> list[tuple[int, Trace]]:
        """Remove the trace with the largest bound if its ball can grow, and return its replacements.

        These are the traces of the same coalitions in the next larger ball.
        """
        reach, trace = state.largest()
        if reach >= state.farthest or state.bounds[reach, trace] == 0:
            return []
        del state.bounds[reach, trace]
        # Other members of these coalitions, if there are any, have no part in the smaller ball.
        new = self.around.near(state.number, reach + 1) - self.around.near(state.number, reach)
        return [
            (reach + 1, tuple(sorted((*trace, *others))))
            for others in _up_to(self.colluders - len(trace), new)
        ]

    def _batched(self, asked: list[_Node]) -> list[list[_Node]]:
        """Return `asked` in batches of balls of similar size."""

        def size(node: _Node) -> int:
            return len(self.around.hidden(node[0].number, node[1]))

        batches: list[list[_Node]] = []
        room = 0
        for node in sorted(asked, key=lambda node: (size(node), node[0].number, node[2])):
            needs = 4 * size(node) + 8  # includes rows that are made from hidden rows
            if needs > room:
                batches.append([])
                room = ROWS_PER_BATCH
            batches[-1].append(node)
            room -= needs
        return batches

    def _values(self, batch: list[_Node]) -> list[float]:
        """Return an upper bound of μ² for each ball and trace in `batch`."""
        questions = [
            ReaderQuestion(trace, np.array([state.number]), self.around.hidden(state.number, reach))
            for state, reach, trace in batch
        ]
        periods = self.periods[[state.number for state, _, _ in batch]].tolist()
        try:
            layout = lay_out(self.around.flow, questions)
            tracked = ChangeTracker(layout, None, BALL_FOLLOWED_ROUNDS, rest=BALL_BEARABLE_REST).all()
        except (
            UnsuitedError
        ):  # such as a row without noise; the loss to all others together is then the bound
            return [np.inf] if len(batch) == 1 else [self._values([node])[0] for node in batch]
        return [
            bracket_band(changes.bands[0], period, np.inf)[1]
            for changes, period in zip(tracked, periods, strict=True)
        ]


_Node = tuple[_OwnerBounds, int, Trace]  # an owner, the radius of its ball, and a trace


def _view(around: PlanNeighbourhoods, exposure: Exposure, colluders: int, bounds: list[_OwnerBounds]) -> View:
    """Return the bounds as a view, with one observer for each agent or one that stands for all coalitions."""
    n = around.plan.agents
    per_release = information(around.plan)
    ceiling = every_round_mu(per_release, exposure.periods())
    listed = colluders == 1 and n <= MAX_LISTED_AGENTS
    observers: tuple[Trace, ...] = tuple((j,) for j in range(n)) if listed else ((),)
    upper = np.full((n, len(observers)), np.nan)
    for state in bounds:
        i = state.number
        if listed:
            # The bound of the empty trace is that of agents outside the ball.
            upper[i] = max((value for (_, trace), value in state.bounds.items() if not trace), default=0.0)
            for (_, trace), value in state.bounds.items():
                upper[i, list(trace)] = value
            upper[i, i] = np.nan
        else:
            upper[i] = state.bounds[state.largest()]
    upper = exposure.sensitivity[:, None] * np.minimum(np.sqrt(upper), ceiling[:, None])
    asked = ~np.isnan(upper)
    reach = sorted({state.largest()[0] for state in bounds})
    edges = f"{reach[0]} to {reach[-1]}" if len(reach) > 1 else f"{reach[0]}"
    note = (
        f"at most: bounded by the rows within {edges} edges of each agent, all rows beyond counted as seen; "
        "privacy.allow_slow=true uses larger neighbourhoods, and needs less noise."
    )
    return View(
        observers=observers,
        lower=np.where(asked, 0.0, np.nan),
        upper=upper,
        asked=asked,
        samples=amplified(exposure, per_release),
        note=note,
    )


def _up_to(count: int, agents: frozenset[int]) -> list[Trace]:
    """Return all sets of at most `count` of these agents."""
    return [others for size in range(count + 1) for others in itertools.combinations(sorted(agents), size)]


def _relation(values: Any, rows: int, columns: int) -> Any:
    """Return whether `values` [kinds, rows, ...] contains a column in some kind, sparse [rows, columns].

    Negative values are padding.
    """
    codes = np.empty(0, np.int64)
    for kind in values:
        row, slot = np.nonzero(kind >= 0)
        codes = np.union1d(codes, row.astype(np.int64) * columns + kind[row, slot])
    return sparse.csr_array((np.ones(len(codes)), (codes // columns, codes % columns)), shape=(rows, columns))

"""Which rows of a round this process makes, and their places in memory.

If other processes hold some agents (`ranks/`), the rows of those agents from which local rows are mixed are
called *guests*. In memory, they follow the local rows. `row_mixing` makes rows, and `ranks/ranked_engine`
transfers guests.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np

from topdp.base.array_types import Bools, Ints
from topdp.plan import Plan


@final
class RowLayout:
    """The layout of `plan` on rank `here`.

    `home[agent]` is the rank that holds the agent; if `home` is None, this process holds all agents.
    """

    def __init__(self, plan: Plan, home: Ints | None = None, here: int = 0) -> None:
        self.plan = plan
        self.here = here
        self.home = np.zeros(plan.agents, np.int64) if home is None else np.asarray(home, np.int64)
        self.whole = bool((self.home == here).all())
        self.agents = np.flatnonzero(self.home == here)  # the agents that this process holds
        self.place_of = np.full(plan.agents, -1)  # [agents]: the place of an agent's gradient; -1: not here
        self.place_of[self.agents] = np.arange(len(self.agents))
        self._is_local: Bools = self.home[plan.owner] == here
        self._guests = lru_cache(maxsize=4)(self._guests_of)

    def made(self, round: int) -> Ints:
        """Return the rows that this process makes in `round`, in ascending order.

        For round -1, return the agents, because their starts take the place of rows.
        """
        if round < 0:
            return self.agents
        return np.flatnonzero(self.plan.exists[round] & self._is_local)

    def guests(self, round: int) -> dict[tuple[int, int], Ints]:
        """Return for each (sender, receiver) of ranks the rows that are sent between them before `round`.

        The sender made these rows in the previous round, and the receiver mixes them in `round`. For round 0,
        they are starts and have the numbers of their owners.
        """
        return {} if self.whole else self._guests(round)

    def arriving(self, round: int) -> list[tuple[int, Ints]]:
        """Return (sending rank, rows) for the rows that this rank receives, in the order of storage."""
        return [(origin, rows) for (origin, to), rows in self.guests(round).items() if to == self.here]

    def place(self, round: int) -> Ints:
        """Return [rows] the place of each row of the previous round.

        The place is -1 if another rank made the row and it is no guest.
        """
        guests = [rows for _, rows in self.arriving(round)]
        if round == 0:
            return self._places(self.plan.agents, self.agents, *guests)[self.plan.owner]
        return self._places(self.plan.rows, self.made(round - 1), *guests)

    def place_made(self, round: int) -> Ints:
        """Return [rows] the place of each row of `round`; -1 for a row that this process does not make."""
        return self._places(self.plan.rows, self.made(round))

    @staticmethod
    def _places(count: int, *rows: Ints) -> Ints:
        place, numbers = np.full(count, -1), np.concatenate(rows)
        place[numbers] = np.arange(len(numbers))
        return place

    def needs_guests(self, round: int) -> Bools:
        """Return [rows] whether each row is mixed from rows that other ranks made."""
        if self.whole:
            return np.zeros(self.plan.rows, bool)
        source, used = self._sources(round)
        return np.asarray((used & (self.home[self.plan.owner[source]] != self.here)).any(axis=1))

    @property
    def capacity(self) -> int:
        """The largest number of rows in memory: the rows of a round and the guests of the next round."""
        if self.whole:
            return int(self.plan.exists.sum(axis=1).max())
        rounds = range(self.plan.releases)
        guests = [sum(len(rows) for _, rows in self.arriving(r)) for r in rounds]
        made = [len(self.made(r)) for r in range(-1, self.plan.releases)]
        return max(count + more for count, more in zip(made, [*guests, 0], strict=True))

    def _sources(self, round: int) -> tuple[Ints, Bools]:
        source = np.asarray(self.plan.source[round], np.int64)
        return source, (source >= 0) & (self.plan.weight[round] != 0)

    def _guests_of(self, round: int) -> dict[tuple[int, int], Ints]:
        plan, (source, used) = self.plan, self._sources(round)
        to = np.broadcast_to(self.home[plan.owner][:, None], source.shape)[used]
        row = source[used]
        origin = self.home[plan.owner[row]]
        if round == 0:
            row = np.asarray(plan.owner[row], np.int64)
        away = origin != to
        ranks, numbers = int(self.home.max()) + 1, plan.rows
        travels = np.unique((origin[away] * ranks + to[away]) * numbers + row[away])
        ways, first = np.unique(travels // numbers, return_index=True)
        parts = np.split(travels % numbers, first)[1:]
        return {divmod(way, ranks): rows for way, rows in zip(ways.tolist(), parts, strict=True)}

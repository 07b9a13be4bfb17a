"""Which rows of a round are made here, and where rows stand: all of them, or those of some agents.

Where some agents are held elsewhere (`ranks/`), the rows of theirs that ours are mixed of are guests: they
stand behind our own. Says nothing of how rows are made (`mixing`) or how guests come (`ranks/exchange`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np

from topdp.base.array_types import Bools, Ints
from topdp.plan import Plan


@final
class RowLayout:
    """Of `plan`, with agents on `home[agent]`, as seen from `here`; without homes everything is here."""

    def __init__(self, plan: Plan, home: Ints | None = None, here: int = 0) -> None:
        self.plan = plan
        self.here = here
        self.home = np.zeros(plan.agents, np.int64) if home is None else np.asarray(home, np.int64)
        self.whole = bool((self.home == here).all())
        self.agents = np.flatnonzero(self.home == here)
        """Those held here."""
        self.place_of = np.full(plan.agents, -1)
        """[agents]: where the gradient of an agent stands; -1: elsewhere."""
        self.place_of[self.agents] = np.arange(len(self.agents))
        self._mine: Bools = self.home[plan.owner] == here
        self._guests = lru_cache(maxsize=4)(self._guests_of)

    def made(self, round: int) -> Ints:
        """The rows that are made here in `round`, in the order of their numbers; -1: the agents' starts."""
        if round < 0:
            return self.agents
        return np.flatnonzero(self.plan.exists[round] & self._mine)

    def guests(self, round: int) -> dict[tuple[int, int], Ints]:
        """By (from, to): rows of the round before that are mixed elsewhere than they were made.

        Before round 0 they are starts, and have the numbers of their owners.
        """
        return {} if self.whole else self._guests(round)

    def arriving(self, round: int) -> list[tuple[int, Ints]]:
        """From where, and which: the rows that come here, in the order in which they stand."""
        return [(origin, rows) for (origin, to), rows in self.guests(round).items() if to == self.here]

    def place(self, round: int) -> Ints:
        """[rows]: where each row of the round before stands; -1: neither made here nor a guest."""
        guests = [rows for _, rows in self.arriving(round)]
        if round == 0:
            return self._standing(self.plan.agents, self.agents, *guests)[self.plan.owner]
        return self._standing(self.plan.rows, self.made(round - 1), *guests)

    def place_made(self, round: int) -> Ints:
        """[rows]: where each row that was made here in `round` stands; -1: it was not."""
        return self._standing(self.plan.rows, self.made(round))

    @staticmethod
    def _standing(count: int, *rows: Ints) -> Ints:
        place, standing = np.full(count, -1), np.concatenate(rows)
        place[standing] = np.arange(len(standing))
        return place

    def needs_guests(self, round: int) -> Bools:
        """[rows]: which rows are mixed of others that were made elsewhere."""
        if self.whole:
            return np.zeros(self.plan.rows, bool)
        source, used = self._sources(round)
        return np.asarray((used & (self.home[self.plan.owner[source]] != self.here)).any(axis=1))

    @property
    def capacity(self) -> int:
        """Room for the rows of any round and, behind them, for the guests of the next."""
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

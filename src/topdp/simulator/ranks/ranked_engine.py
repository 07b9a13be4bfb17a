"""The engine over all ranks: each advances the agents that it holds, and knows what all of them reached.

For the loop of a run it is an engine like any other. What is asked of it is asked on all ranks, in the same
order; where one fails, all end.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.simulator.engine import Engine, State
from topdp.simulator.evaluation import Evaluation
from topdp.simulator.ranks.process_group import Group

AT_ONCE = 1 << 26  # numbers that travel at once


@final
class RankedEngine:
    """`engine` of the agents held here, in `group` with those of all others."""

    def __init__(self, engine: Engine, group: Group) -> None:
        self.engine, self.group = engine, group
        self.plan, self.metrics, self.shards = engine.plan, engine.metrics, engine.shards

    def start(self, start: Tensor) -> State:
        return self.engine.start(start)

    def resume(self, releases: int, rows: Tensor) -> State:
        return self.engine.resume(releases, rows)

    def advance(self, state: State) -> State:
        """Makes the next release."""
        return self.group.together(lambda: self.engine.advance(state))

    def holds(self, state: State) -> bool:
        return self.engine.holds(state)

    def forget_buffers(self) -> None:
        self.engine.forget_buffers()

    def evaluate(self, state: State) -> Evaluation:
        """Loss and metrics of all agents, on every rank."""
        here = self.group.together(lambda: self.engine.evaluate(state))
        parts = self.group.all({"": here.loss, **here.metrics})
        found = {name: self._in_order([part[name] for part in parts]) for name in parts[0]}
        return Evaluation(found.pop(""), found)

    def reported(self, state: State) -> Tensor:
        """On rank 0 those of all agents [agents, d]; elsewhere none [0, d]."""
        rows = self.engine.reported(state).detach().cpu()
        home, d = self.engine.layout.home, rows.shape[1]
        some = max(1, AT_ONCE // d)
        if not self.group.leads:
            for part in torch.split(rows, some):
                self.group.exchange([(0, part.contiguous())], [])()
            return rows[:0]
        found = torch.empty(len(home), d, dtype=rows.dtype)
        for rank in range(self.group.size):
            theirs = torch.from_numpy(np.flatnonzero(home == rank))
            for first, part in zip(range(0, len(theirs), some), torch.split(theirs, some), strict=True):
                values = rows[first : first + len(part)]
                if rank != 0:
                    values = torch.empty(len(part), d, dtype=rows.dtype)
                    self.group.exchange([], [(rank, values)])()
                found[part] = values
        return found

    def _in_order(self, parts: list[np.ndarray]) -> np.ndarray:
        home = self.engine.layout.home
        found = np.empty((len(home), *parts[0].shape[1:]), parts[0].dtype)
        for rank, values in enumerate(parts):
            found[home == rank] = values
        return found

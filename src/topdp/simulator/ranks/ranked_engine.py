"""A simulation over several ranks: each steps the engine of the agents that it holds.

All ranks must call the same methods in the same order; if one fails, all end.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.simulator.engine import Engine
from topdp.simulator.evaluation import Evaluation
from topdp.simulator.ranks.process_group import ProcessGroup
from topdp.simulator.simulation import SimulationWrapper, State

MAX_GATHERED_NUMBERS = 1 << 26  # of rows that are sent at a time


@final
class RankedEngine(SimulationWrapper):
    """`engine` of the agents held here, in `group` with the engines of the others."""

    def __init__(self, engine: Engine, group: ProcessGroup) -> None:
        super().__init__(engine)
        self.group, self._home = group, engine.layout.home

    def advance(self, state: State, at_most: int = 1) -> State:
        return self.group.together(lambda: self._inner.advance(state))

    def evaluate(self, state: State) -> Evaluation:
        """Return loss and metrics of all agents, on every rank."""
        here = self.group.together(lambda: self._inner.evaluate(state))
        parts = self.group.all({"": here.loss, **here.metrics})
        values = {name: self._in_order([part[name] for part in parts]) for name in parts[0]}
        return Evaluation(values.pop(""), values)

    def reported(self, state: State) -> Tensor:
        """Return on rank 0 the reported rows of all agents [agents, d]; on other ranks an empty [0, d]."""
        rows = self._inner.reported(state).detach().cpu()
        d = rows.shape[1]
        count = max(1, MAX_GATHERED_NUMBERS // d)
        if not self.group.leads:
            for part in torch.split(rows, count):
                self.group.exchange([(0, part.contiguous())], [])()
            return rows[:0]
        gathered = torch.empty(len(self._home), d, dtype=rows.dtype)
        for rank in range(self.group.size):
            theirs = torch.from_numpy(np.flatnonzero(self._home == rank))
            for first, part in zip(range(0, len(theirs), count), torch.split(theirs, count), strict=True):
                values = rows[first : first + len(part)]
                if rank != 0:
                    values = torch.empty(len(part), d, dtype=rows.dtype)
                    self.group.exchange([], [(rank, values)])()
                gathered[part] = values
        return gathered

    def _in_order(self, parts: list[np.ndarray]) -> np.ndarray:
        ordered = np.empty((len(self._home), *parts[0].shape[1:]), parts[0].dtype)
        for rank, values in enumerate(parts):
            ordered[self._home == rank] = values
        return ordered

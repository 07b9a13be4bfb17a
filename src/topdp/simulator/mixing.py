"""One round of rows: rows = mix·rows + step·gradient + noise, row by row. mixing_cuda.py is the GPU's.

The arithmetic of engine.py, kept apart because each device wants it in another shape. Which rows are made of
what is read from the plan; a draw does not depend on which other rows are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topdp.data.threads import single_threaded_pool
from topdp.plan import Plan
from topdp.plan.arrays import Ints
from topdp.simulator.draws import Draws


class Work(NamedTuple):
    """What one round needs: the rows of the round before, the agents' gradients, and where rows are put."""

    round: int
    before: Tensor  # [rows made in the round before, d]; before round 0 the agents' starts
    gradient: Tensor | None  # [agents, d]; None: somebody else adds them
    out: Tensor  # [rows made in this round, d]


def slots(plan: Plan, round: int) -> Ints:
    """Where each row of the round before stands in its buffer; before round 0, its owner's start."""
    if round == 0:
        return plan.owner.astype(np.int64)
    return np.cumsum(plan.exists[round - 1]) - 1


Recipe = tuple[list[tuple[int, float]], int, float, list[tuple[int, float]]]
"""Of a row: (place of a source, weight) of each, owner, step, (draw, deviation) of each."""


class RowByRow:
    """A row at a time stays in the processor's cache; rows are independent, so threads share them."""

    def __init__(self, plan: Plan, noise: Draws, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.noise = noise
        self.workers = torch.get_num_threads() if device.type == "cpu" else 1
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, work: Work) -> None:
        recipes = list(self._recipes(work.round))

        def make(part: range) -> None:
            z = torch.empty_like(work.out[0])
            for position in part:
                sources, owner, step, draws = recipes[position]
                target = work.out[position]
                parts = [(work.before[place], weight) for place, weight in sources]
                if step and work.gradient is not None:
                    parts.append((work.gradient[owner], step))
                _sum_into(target, parts)
                for draw, std in draws:
                    target.add_(self.noise.fill(z, work.round, draw), alpha=std)

        if self.workers == 1:
            make(range(len(recipes)))
            return
        if self._pool is None:
            self._pool = single_threaded_pool(self.workers)
        list(self._pool.map(make, (range(w, len(recipes), self.workers) for w in range(self.workers))))

    def _recipes(self, round: int) -> Iterator[Recipe]:
        """What each row of the round is made of, in the order in which rows are put."""
        this, place = self.plan[round], slots(self.plan, round)
        rows = np.flatnonzero(this.exists)
        columns = (this.source, this.weight, self.plan.owner, this.step, this.draw, this.std)
        for sources, weights, owner, step, draws, stds in zip(
            *(c[rows].tolist() for c in columns), strict=True
        ):
            mixed = [(int(place[s]), w) for s, w in zip(sources, weights, strict=True) if s >= 0 and w]
            yield mixed, owner, step, [(d, s) for d, s in zip(draws, stds, strict=True) if d >= 0 and s]


def _sum_into(target: Tensor, parts: list[tuple[Tensor, float]]) -> None:
    """target = Σ weight·part, in the order of the parts; nothing is read of what it holds."""
    if not parts:
        target.zero_()
        return
    first, weight = parts[0]
    torch.mul(first, weight, out=target)
    for part, weight in parts[1:]:
        target.add_(part, alpha=weight)

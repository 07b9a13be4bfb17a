"""One round of rows: rows = mix·rows + step·gradient + noise, row by row. mixing_cuda.py is the GPU's.

The arithmetic of engine.py, kept apart because each device wants it in another shape. Which rows are made of
what is read from the plan; a draw does not depend on which other rows are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from topdp.data.threads import single_threaded_pool
from topdp.plan import Plan
from topdp.plan.arrays import Ints
from topdp.simulator.draws import Draws
from topdp.simulator.layout import Layout


class Work(NamedTuple):
    """What one round needs: the rows of the round before, the agents' gradients, and where rows are put."""

    round: int
    before: Tensor  # [rows made in the round before, d], then guests; before round 0 the agents' starts
    gradient: Tensor  # [agents, d]
    out: Tensor  # [rows made in this round, d]
    only: Ints | None = None  # places in `out` that are filled now; None: all
    first: int = 0  # whose gradient is the first: its place among the agents that are held


Recipe = tuple[list[tuple[int, float]], int, float, list[tuple[int, float]]]
"""Of a row: (place of a source, weight) of each, place of its gradient, step, (draw, deviation) of each."""


class RowByRow:
    """A row at a time stays in the processor's cache; rows are independent, so threads share them."""

    def __init__(self, plan: Plan, noise: Draws, device: torch.device, layout: Layout | None = None) -> None:
        self.plan = plan
        self.layout = layout or Layout(plan)
        self.device = device
        self.noise = noise
        self.workers = torch.get_num_threads() if device.type == "cpu" else 1
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, work: Work) -> None:
        filled = range(len(work.out)) if work.only is None else work.only.tolist()
        recipes = list(self._recipes(work, filled))
        rounded = self.plan.rounded is not None

        def make(worker: int) -> None:
            # Where rows are rounded they are added up apart, and rounded once, when they are put in place.
            apart = torch.empty_like(work.out[0], dtype=torch.float32) if rounded else None
            for position, (sources, whose, step, draws) in recipes[worker :: self.workers]:
                target = work.out[position] if apart is None else apart
                parts = [(work.before[place], weight) for place, weight in sources]
                if step:
                    parts.append((work.gradient[whose], step))
                _sum_into(target, parts)
                for draw, std in draws:
                    self.noise.add(target, std, work.round, draw)
                if apart is not None:
                    work.out[position].copy_(apart)

        if self.workers == 1:
            make(0)
            return
        if self._pool is None:
            self._pool = single_threaded_pool(self.workers)
        list(self._pool.map(make, range(self.workers)))

    def _recipes(self, work: Work, filled: Sequence[int]) -> Iterator[tuple[int, Recipe]]:
        """Where rows of the round are put, and what each is made of."""
        this, place = self.plan[work.round], self.layout.place(work.round)
        rows = self.layout.made(work.round)[list(filled)]
        whose = self.layout.place_of[self.plan.owner[rows]] - work.first
        columns = (this.source, this.weight, this.step, this.draw, this.std)
        each = zip(filled, whose.tolist(), *(column[rows].tolist() for column in columns), strict=True)
        for position, owner, sources, weights, step, draws, stds in each:
            mixed = [(int(place[s]), w) for s, w in zip(sources, weights, strict=True) if s >= 0 and w]
            drawn = [(d, s) for d, s in zip(draws, stds, strict=True) if d >= 0 and s]
            yield position, (mixed, owner, step, drawn)


def _sum_into(target: Tensor, parts: list[tuple[Tensor, float]]) -> None:
    """target = Σ weight·part, in the order of the parts; nothing is read of what it holds."""
    if not parts:
        target.zero_()
        return
    first, weight = parts[0]
    if first.dtype != target.dtype:  # a product of fewer bits would be rounded to those
        first = target.copy_(first)
    torch.mul(first, weight, out=target)
    for part, weight in parts[1:]:
        target.add_(part, alpha=weight)

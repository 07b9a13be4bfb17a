"""One round of rows: rows = mix·rows + step·gradient + noise, row by row. mixing_cuda.py is the GPU's.

The arithmetic of engine.py, kept apart because each device wants it in another shape. Which rows are made of
what is read from the plan; a draw does not depend on which other rows are made.
"""

from __future__ import annotations

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
    only: Ints | None = None  # places in `out` that are filled now; None: all. On a CPU
    first: int = 0  # whose gradient is the first: its place among the agents that are held. On a CPU


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
        rows, place = self.layout.made(work.round), self.layout.place(work.round)
        this, whose = self.plan[work.round], self.layout.place_of[self.plan.owner] - work.first
        filled = range(len(rows)) if work.only is None else work.only.tolist()

        def make(worker: int) -> None:
            generator = torch.Generator(self.device)
            z = torch.empty_like(work.out[0])
            for position in filled[worker :: self.workers]:
                row, target = rows[position], work.out[position]
                target.zero_()
                for source, weight in zip(this.source[row], this.weight[row], strict=True):
                    if source >= 0 and weight:
                        target.add_(work.before[place[source]], alpha=float(weight))
                if this.step[row]:
                    target.add_(work.gradient[whose[row]], alpha=float(this.step[row]))
                for draw, std in zip(this.draw[row], this.std[row], strict=True):
                    if draw >= 0 and std:
                        self.noise.fill(z, work.round, int(draw), generator)
                        target.add_(z, alpha=float(std))

        if self.workers == 1:
            make(0)
            return
        if self._pool is None:
            self._pool = single_threaded_pool(self.workers)
        list(self._pool.map(make, range(self.workers)))

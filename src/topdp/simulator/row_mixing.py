"""One round of rows: rows = mix·rows + step·gradient + noise, row by row. mixing_cuda.py is the GPU's.

The arithmetic of engine.py, kept apart because each device wants it in another shape. Which rows are made of
what is read from the plan; a draw does not depend on which other rows are made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.errors import InputError
from topdp.learning.core_threads import run_in_parts
from topdp.plan import Plan
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.simulated_noise import Draws


class RowWork(NamedTuple):
    """What one round needs: the rows of the round before, the agents' gradients, and where rows are put."""

    round: int
    before: Tensor  # [rows made in the round before, d], then guests; before round 0 the agents' starts
    gradient: Tensor  # [agents, d]; may stand in `out` where estimates will, each in its agent's place
    out: Tensor  # [rows made in this round, d]
    only: Ints | None = None  # places in `out` that are filled now; None: all
    first: int = 0  # whose gradient is the first: its place among the agents that are held


class CpuMixer:
    """Each row in one pass (`one_pass`); rows are independent, so threads share them."""

    def __init__(self, plan: Plan, noise: Draws, layout: RowLayout | None = None) -> None:
        self.plan = plan
        self.layout = layout or RowLayout(plan)
        self.noise = noise

    def __call__(self, work: RowWork) -> None:
        if work.out.device.type != "cpu":  # a GPU without kernels of ours: the processor does it
            here = work._replace(before=work.before.cpu(), gradient=work.gradient.cpu(), out=work.out.cpu())
            self(here)
            work.out.copy_(here.out)
            return
        from topdp.simulator import fused_rows  # what it needs is not needed with a GPU

        before, gradient, out = (_array(part) for part in (work.before, work.gradient, work.out))
        rounded = self.plan.rounded is not None
        if gradient.dtype == np.uint16:  # no gradients: rows stand in for them, and are not read
            gradient = np.empty((0, out.shape[1]), np.float32)
        kind = np.dtype(np.float32) if rounded else gradient.dtype  # of sums
        # Messages first: gradients may stand where estimates will.
        filled = np.arange(len(work.out)) if work.only is None else work.only
        estimates = self.layout.made(work.round)[filled] < self.plan.agents
        for places in filter(len, (filled[~estimates], filled[estimates])):
            recipes = self._recipes(work, places, kind)
            _expect_inside(recipes, before, gradient, out)

            def make(some: slice, recipes: tuple[Any, ...] = recipes) -> None:
                fused_rows.make(before, gradient, out, *(part[some] for part in recipes), rounded)

            run_in_parts(make, len(places))

    def _recipes(self, work: RowWork, places: Ints, kind: np.dtype[Any]) -> tuple[Any, ...]:
        """Of what rows are made, as `one_pass.make` takes it: one line a row, numbers of this `kind`."""
        this, place = self.plan[work.round], self.layout.place(work.round)
        rows = self.layout.made(work.round)[places]
        source, draw = (column[rows].astype(np.int64) for column in (this.source, this.draw))
        std = np.where(draw < 0, 0, this.std[rows]).astype(kind)
        seeds = np.zeros((*std.shape, 2), np.uint64)
        seeds[std != 0] = self.noise.seeds(work.round, draw[std != 0])
        whose = self.layout.place_of[self.plan.owner[rows]] - work.first
        weight, step = (column[rows].astype(kind) for column in (this.weight, this.step))
        used = (source >= 0) & (weight != 0)
        if (place[source[used]] < 0).any():
            raise InputError(f"Expected round {work.round} to mix rows that are here, got others.")
        return places, np.where(used, place[source], -1), weight, whose, step, seeds, std


def _expect_inside(recipes: tuple[Any, ...], before: Any, gradient: Any, out: Any) -> None:
    """Compiled loops look at nothing twice: what lies outside would be read, or written, all the same."""
    places, source, _, whose, step, _, _ = recipes
    used = whose[step != 0]
    for indices, rows, least in ((places, out, 0), (source, before, -1), (used, gradient, 0)):
        if indices.size and not least <= indices.min() <= indices.max() < len(rows):
            raise InputError(f"Expected rows 0 to {len(rows) - 1} of a round, got others.")
    if len({part.shape[1] for part in (before, gradient, out)}) > 1:
        raise InputError("Expected rows and gradients of one length, got others.")


def _array(rows: Tensor) -> Any:
    """The same numbers for NumPy, which knows no bfloat16: of those the bits."""
    if rows.stride(1) != 1:
        raise InputError("Expected rows without gaps, got others.")
    return (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).detach().numpy()

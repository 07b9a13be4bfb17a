"""Makes the rows of a round on the CPU: row = mix·rows + step·gradient + noise.

`row_mixing_cuda` does the same on a GPU. The plan states what rows are made from; a draw does not depend on
which other rows are made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.errors import InputError
from topdp.learning.core_threads import run_in_parts
from topdp.plan import Plan
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.simulated_noise import Draws


@dataclass(frozen=True, eq=False, kw_only=True)
class RowWork:
    """The inputs of one round, and the place of its rows."""

    round: int
    before: Tensor  # [rows made in the round before, d], then guests; before round 0 the agents' starts
    gradient: Tensor  # [agents, d]; may share the memory of the estimates in `out`, row by row
    out: Tensor  # [rows made in this round, d]
    only: Ints | None = None  # places in `out` to fill now; None: all
    first: int = 0  # the place of the agent with the first gradient, among the agents that are held


class CpuMixer:
    """Makes each row in one pass (`fused_rows`); rows are independent, so threads share them."""

    def __init__(self, plan: Plan, noise: Draws, layout: RowLayout | None = None) -> None:
        self.plan = plan
        self.layout = layout or RowLayout(plan)
        self.noise = noise

    def __call__(self, work: RowWork) -> None:
        if work.out.device.type != "cpu":  # a GPU without our kernels: compute on the processor
            here = replace(work, before=work.before.cpu(), gradient=work.gradient.cpu(), out=work.out.cpu())
            self(here)
            work.out.copy_(here.out)
            return
        from topdp.simulator import fused_rows  # what it needs is not needed with a GPU

        before, gradient, out = (_array(part) for part in (work.before, work.gradient, work.out))
        rounded = self.plan.rounded is not None
        if gradient.dtype == np.uint16:  # no gradients: rows take their place, and are not read
            gradient = np.empty((0, out.shape[1]), np.float32)
        kind = np.dtype(np.float32) if rounded else gradient.dtype  # of sums
        # Messages first: gradients may share the memory of estimates.
        filled = np.arange(len(work.out)) if work.only is None else work.only
        estimates = self.layout.made(work.round)[filled] < self.plan.agents
        for places in filter(len, (filled[~estimates], filled[estimates])):
            recipes = self._recipes(work, places, kind)
            _expect_inside(recipes, before, gradient, out)

            def make(some: slice, recipes: tuple[Any, ...] = recipes) -> None:
                fused_rows.make(before, gradient, out, *(part[some] for part in recipes), rounded)

            run_in_parts(make, len(places))

    def _recipes(self, work: RowWork, places: Ints, kind: np.dtype[Any]) -> tuple[Any, ...]:
        """Return the arguments of `fused_rows.make` for these rows, with numbers of type `kind`."""
        this, place = self.plan[work.round], self.layout.place(work.round)
        rows = self.layout.made(work.round)[places]
        source, draw = (column[rows].astype(np.int64) for column in (this.source, this.draw))
        std = np.where(draw < 0, 0, this.std[rows]).astype(kind)
        seeds = np.zeros((*std.shape, 2), np.uint64)
        seeds[std != 0] = self.noise.seeds(work.round, draw[std != 0])
        owner = self.layout.place_of[self.plan.owner[rows]] - work.first
        weight, step = (column[rows].astype(kind) for column in (this.weight, this.step))
        used = (source >= 0) & (weight != 0)
        if (place[source[used]] < 0).any():
            raise InputError(f"Expected round {work.round} to mix only rows that exist, got others.")
        return places, np.where(used, place[source], -1), weight, owner, step, seeds, std


def _expect_inside(recipes: tuple[Any, ...], before: Any, gradient: Any, out: Any) -> None:
    """Check indices before compiled loops, which would read and write outside of arrays."""
    places, source, _, owner, step, _, _ = recipes
    used = owner[step != 0]
    for indices, rows, least in ((places, out, 0), (source, before, -1), (used, gradient, 0)):
        if indices.size and not least <= indices.min() <= indices.max() < len(rows):
            raise InputError(f"Expected rows 0 to {len(rows) - 1} of a round, got others.")
    if len({part.shape[1] for part in (before, gradient, out)}) > 1:
        raise InputError("Expected rows and gradients of one length, got others.")


def _array(rows: Tensor) -> Any:
    """Return the rows as a NumPy array; bfloat16, which NumPy lacks, as bits."""
    if rows.stride(1) != 1:
        raise InputError("Expected rows without gaps, got others.")
    return (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).detach().numpy()

"""The computation of the rows of a round on the CPU: row = mix·rows + step·gradient + noise.

`row_mixing_cuda` does the same on a GPU. The plan states from what each row is made. A draw does not depend
on which other rows are made.
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
    """The inputs of one round, and the memory for its rows."""

    round: int
    before: Tensor  # [rows made in the previous round, d], then guests; before round 0 the agents' starts
    gradient: Tensor  # [agents, d]; may share the memory of the estimates in `out`, row by row
    out: Tensor  # [rows made in this round, d]
    only: Ints | None = None  # the places in `out` to fill now; None means all
    first: int = 0  # the place, among the agents of this process, of the agent with the first gradient


class CpuMixer:
    """A mixer that makes each row in one pass (`fused_rows`); threads make different rows."""

    def __init__(self, plan: Plan, noise: Draws, layout: RowLayout | None = None) -> None:
        self.plan = plan
        self.layout = layout or RowLayout(plan)
        self.noise = noise

    def __call__(self, work: RowWork) -> None:
        if work.out.device.type != "cpu":  # a device without topdp's kernels: compute on the CPU
            on_cpu = replace(work, before=work.before.cpu(), gradient=work.gradient.cpu(), out=work.out.cpu())
            self(on_cpu)
            work.out.copy_(on_cpu.out)
            return
        from topdp.simulator import fused_rows  # imports Numba, which is not needed with a GPU

        before, gradient, out = (_array(part) for part in (work.before, work.gradient, work.out))
        rounded = self.plan.rounded is not None
        if gradient.dtype == np.uint16:  # there are no gradients; these are rows, which are not read
            gradient = np.empty((0, out.shape[1]), np.float32)
        kind = np.dtype(np.float32) if rounded else gradient.dtype  # the number type of sums
        # Messages are made first, because gradients may share the memory of estimates.
        filled = np.arange(len(work.out)) if work.only is None else work.only
        estimates = self.layout.made(work.round)[filled] < self.plan.agents
        for places in filter(len, (filled[~estimates], filled[estimates])):
            recipes = self._recipes(work, places, kind)
            _expect_inside(recipes, before, gradient, out)

            def make(some: slice, recipes: tuple[Any, ...] = recipes) -> None:
                *parts, names, std = (part[some] for part in recipes)
                fused_rows.make(before, gradient, out, *parts, self.noise.keys, names, std, rounded)

            run_in_parts(make, len(places))

    def _recipes(self, work: RowWork, places: Ints, kind: np.dtype[Any]) -> tuple[Any, ...]:
        """Return the arguments of `fused_rows.make` for these rows, with numbers of type `kind`."""
        this, place = self.plan[work.round], self.layout.place(work.round)
        rows = self.layout.made(work.round)[places]
        source, draw = (column[rows].astype(np.int64) for column in (this.source, this.draw))
        std = np.where(draw < 0, 0, this.std[rows]).astype(kind)
        names = self.noise.names(work.round, np.where(draw < 0, 0, draw))
        owner = self.layout.place_of[self.plan.owner[rows]] - work.first
        weight, step = (column[rows].astype(kind) for column in (this.weight, this.step))
        used = (source >= 0) & (weight != 0)
        if (place[source[used]] < 0).any():
            missing = source[used][place[source[used]] < 0][0]
            raise InputError(f"Expected round {work.round} to mix only rows that exist, got row {missing}.")
        return places, np.where(used, place[source], -1), weight, owner, step, names, std


def _expect_inside(recipes: tuple[Any, ...], before: Any, gradient: Any, out: Any) -> None:
    """Raise InputError if an index is too large or too small.

    Compiled loops do not check indices, and would read and write outside of arrays.
    """
    places, source, _, owner, step, _, _ = recipes
    used = owner[step != 0]
    for indices, rows, least in ((places, out, 0), (source, before, -1), (used, gradient, 0)):
        if indices.size and not least <= indices.min() <= indices.max() < len(rows):
            found = f"{indices.min()} to {indices.max()}"
            raise InputError(f"Expected rows {least} to {len(rows) - 1} of a round, got {found}.")
    if len(lengths := {part.shape[1] for part in (before, gradient, out)}) > 1:
        raise InputError(f"Expected rows and gradients of one length, got {sorted(lengths)}.")


def _array(rows: Tensor) -> Any:
    """Return the rows as a NumPy array; NumPy lacks bfloat16, so such rows are returned as bits."""
    if rows.stride(1) != 1:
        raise InputError(f"Expected rows without gaps, got a distance of {rows.stride(1)} between numbers.")
    return (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).detach().numpy()

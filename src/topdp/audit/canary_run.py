"""One run of a plan with canaries in it: the same engine, noise, batches and gradients as any run.

What it hands out is everything at the canaries' coordinates; what an observer may use of it, `scores` knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from topdp.audit.canaries import AuditError, Canaries, Chosen
from topdp.audit.canary_scores import Seen
from topdp.base.array_types import Floats
from topdp.data.batch_selection import Selection
from topdp.plan import Plan
from topdp.runs.assembly import Assembly
from topdp.simulator.engine import Engine, Intervention
from topdp.simulator.simulated_noise import Draws, SimulatedDraws


def execute(
    parts: Assembly, plan: Plan, canaries: Canaries, signs: Floats, seed: int, noise: Draws | None = None
) -> Iterator[Seen]:
    """Round after round. `seed`: of noise, samples and random layers; `noise`: instead of the seed's."""
    drawn = noise or SimulatedDraws(seed, plan.draws, plan.releases)
    clip, batches = parts.config.privacy.clip, parts.batches
    at = torch.from_numpy(canaries.coordinates).to(parts.device)
    known: list[Floats] = []

    def plant(round: int, chosen: Selection, sums: Tensor) -> None:
        assert isinstance(chosen, Chosen)
        known[:] = [_numbers(sums[:, at] / chosen.divisor.to(sums)[:, None])]
        canaries.add(sums[canaries.owner], clip, signs[round], chosen.used)

    def draw(number: int, round: int) -> Floats:
        if parts.device.type != "cpu":
            raise AuditError("Draws that agents share cannot be read back from a GPU: use --device cpu.")
        row = torch.empty(parts.flat.dimension, dtype=parts.flat.dtype)
        return _numbers(drawn.fill(row, round, number)[at])

    engine = Engine(
        plan,
        parts.gradients,
        parts.shards,
        batches,
        seed=seed,
        device=parts.device,
        draws=drawn,
        select=lambda round, device: canaries.select(batches, seed, round, device),
        intervention=Intervention(plant=plant, every_row=True),
    )
    state = engine.start(parts.start)
    for round in range(plan.releases):
        state = engine.advance(state)
        rows = np.full((plan.rows, len(canaries)), np.nan)
        rows[plan.exists[round]] = _numbers(state.rows[:, at])
        yield Seen(rows, known[0], partial(draw, round=round))


def _numbers(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().double().cpu().numpy())

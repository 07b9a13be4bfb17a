"""Execute a plan with canaries: the same engine, noise, batches and gradients as in any run.

Yields everything at the canaries' coordinates. `canary_scores` restricts it to what the observer sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from topdp.audit.canaries import AuditError, Canaries, CanarySelection
from topdp.audit.canary_scores import ObservedRound
from topdp.base.array_types import Floats
from topdp.data.batch_selection import Selection
from topdp.plan import Plan
from topdp.runs.assembly import Assembly
from topdp.simulator.engine import Engine, Intervention
from topdp.simulator.simulated_noise import Draws, SimulatedDraws


def execute(
    parts: Assembly, plan: Plan, canaries: Canaries, signs: Floats, seed: int, noise: Draws | None = None
) -> Iterator[ObservedRound]:
    """Yield the rounds. `seed` determines noise, samples and random layers; `noise` replaces its draws."""
    noise = noise or SimulatedDraws(seed, plan.draws, plan.releases)
    clip, batches = parts.run.config.privacy.clip, parts.run.batches
    at = torch.from_numpy(canaries.coordinates).to(parts.device)
    gradients: list[Floats] = []

    def plant(round: int, selection: Selection, sums: Tensor) -> None:
        assert isinstance(selection, CanarySelection)
        gradients[:] = [_numbers(sums[:, at] / selection.divisor.to(sums)[:, None])]
        canaries.add(sums[canaries.owner], clip, signs[round], selection.used)

    def draw(number: int, round: int) -> Floats:
        if parts.device.type != "cpu":
            raise AuditError("Draws that agents share cannot be read back from a GPU. Use --device cpu.")
        row = torch.empty(parts.flat.dimension, dtype=parts.flat.dtype)
        return _numbers(noise.fill(row, round, number)[at])

    engine = Engine(
        plan,
        parts.gradients,
        parts.shards,
        batches,
        seed=seed,
        device=parts.device,
        draws=noise,
        select=lambda round, device: canaries.select(batches, seed, round, device),
        intervention=Intervention(plant=plant, every_row=True),
    )
    state = engine.start(parts.start)
    for round in range(plan.releases):
        state = engine.advance(state)
        rows = np.full((plan.rows, len(canaries)), np.nan)
        rows[plan.exists[round]] = _numbers(state.rows[:, at])
        yield ObservedRound(rows, gradients[0], partial(draw, round=round))


def _numbers(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().double().cpu().numpy())

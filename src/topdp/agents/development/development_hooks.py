"""What replaces an agent's hooks in demonstrations, rehearsals and tests: seeds, canaries, failpoints.

**Guarantees.** None. With a seed the noise can be repeated, and with canaries the agent's gradients are
written down without noise; the ledger and every result record both for good. A round that is computed again
after a crash is noted again, so the notes are of what was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from topdp.agents.agreement.card_succession import load_identities
from topdp.agents.development.failpoints import Failpoints
from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.agent_rows import PlanPart
from topdp.audit.canaries import AuditError
from topdp.audit.rehearsal_record import RECORDING_FOLDER, AgentRecording, RehearsalCanaries
from topdp.base.array_types import Floats
from topdp.data.batch_selection import select
from topdp.errors import InputError
from topdp.plan import Plan
from topdp.plan.batches import Batches
from topdp.simulator.simulated_noise import SimulatedDraws

logger = logging.getLogger("topdp.agents")


@final
class SeededDraws(AgentDraws):
    """Draws named by a seed. Anyone who knows the seed can subtract the noise."""

    def __init__(self, seed: int, plan: Plan, dtype: torch.dtype = torch.float32) -> None:
        """`dtype`: that of the model, in which the simulator draws."""
        self.seed, self.dtype = seed, dtype
        self._noise = SimulatedDraws(seed, plan.draws, plan.releases)

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        z = self._noise.fill(torch.empty_like(row, dtype=self.dtype), round, draw)
        row.add_(z.to(row.dtype), alpha=std)

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        selection = select(batches, self.seed, round)
        assert selection.indices is not None and selection.weights is not None
        return selection.indices[agent][selection.weights[agent] > 0]


@dataclass(frozen=True)
class Rehearse:
    """Canaries that all agents were given, and the state folder in which this one takes notes."""

    planted: RehearsalCanaries
    state: Path


@final
class DevelopmentHooks(AgentHooks):
    """Hooks for development: draws of a seed, canaries in place of records, and failpoints, each optional."""

    def __init__(
        self,
        *,
        seeded: bool = False,
        rehearse: Rehearse | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        self.seeded, self.rehearsal = seeded, rehearse is not None
        self._rehearse = rehearse
        self._notes = AgentRecording(rehearse.state / RECORDING_FOLDER) if rehearse else None
        self._failpoints = failpoints or Failpoints()
        self._gradient: Floats | None = None

    def draws(self, part: PlanPart, seed: int, dtype: torch.dtype) -> AgentDraws:
        return SeededDraws(seed, part.plan, dtype) if self.seeded else super().draws(part, seed, dtype)

    def prepare(self, part: PlanPart, batches: Batches, clip: float, start: Tensor) -> None:
        if self._rehearse is None or self._notes is None:
            return
        planted = self._rehearse.planted
        if planted.plan != part.plan.digest():
            raise AuditError(
                "Expected canaries that were planted for this manifest, got those of another plan."
            )
        self._part, self._batches, self._clip = part, batches, clip
        self._coordinates = torch.from_numpy(planted.canaries.coordinates)
        self._notes.keep_start(self._at_canaries(start))

    def mean_gradient(
        self, round: int, chosen: Tensor | None, mean_of: Callable[[Tensor | None], Tensor]
    ) -> Tensor:
        """Note the mean without canaries, then add those that stand among the round's records."""
        if self._rehearse is None:
            return mean_of(chosen)
        planted, canaries = self._rehearse.planted, self._rehearse.planted.canaries
        records = torch.arange(self._batches.records) if chosen is None else chosen
        owns = self._part.agent == canaries.owner
        used = canaries.among(records.numpy())
        mean = mean_of(records[torch.from_numpy(used < 0)] if owns else records)
        self._gradient = self._at_canaries(mean)
        if owns:
            canaries.add(mean, self._clip / self._batches.divisor, planted.signs[round], used[used >= 0])
        return mean

    def rows_made(
        self, round: int, rows: Mapping[int, Tensor], received: Mapping[int, Tensor], draws: AgentDraws
    ) -> None:
        if self._notes is None:
            return
        self._notes.keep(
            round,
            {row: self._at_canaries(value) for row, value in rows.items()},
            {row: self._at_canaries(value) for row, value in received.items()},
            self._gradient,
            {draw: self._at_canaries(value) for draw, value in self._shared(round, rows, draws).items()},
        )
        self._gradient = None

    def reached(self, point: str) -> None:
        self._failpoints.reached(point)

    def _shared(self, round: int, rows: Mapping[int, Tensor], draws: AgentDraws) -> dict[int, Tensor]:
        """The draws of `round` that another agent knows too. Drawn again, they are the same."""
        like = next(iter(rows.values()))
        shared = {draw: torch.zeros_like(like) for _, draw, _ in self._part.shared(round)}
        for draw, row in shared.items():
            draws.add(row, 1.0, round, draw)
        return shared

    def _at_canaries(self, row: Tensor) -> Floats:
        return np.asarray(row[self._coordinates].double().numpy())


def rehearsal_hooks(start: Mapping[str, Any], *, seeded: bool, canaries: Path | None) -> DevelopmentHooks:
    """The hooks of an agent process that gets the arguments `start`; its log warns of each."""
    name, rehearse = load_identities(start["identity"])[0].card.name, None
    if canaries is not None:
        if start["live_pairing"]:
            raise InputError("--canaries: expected an agent that follows a plan. Remove --live-pairing.")
        rehearse = Rehearse(RehearsalCanaries.load(canaries), start["state"])
        words = (
            "%s: REHEARSAL: canaries stand in the place of records, and gradients are written down without "
            "noise in %s; not for data that others must not see"
        )
        logger.warning(words, name, start["state"] / RECORDING_FOLDER, extra={"event": "rehearsal"})
    if seeded:
        words = "%s: SEEDED: anyone who knows the seed can repeat the noise; for tests"
        logger.warning(words, name, extra={"event": "seeded"})
    return DevelopmentHooks(seeded=seeded, rehearse=rehearse, failpoints=Failpoints.from_environment())

"""One agent's part in a rehearsal for an audit: canaries in the place of its records, and its notes.

Off unless the agent is given a file of canaries. Not for judging what was noted: `audit`.

**Guarantees.** None for the agent's own records: its gradients are written down without noise. A round that
is computed again after a crash is noted again, so the notes are of what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.audit.canaries import AuditError
from topdp.audit.rehearsal_record import NOTES, Notes, Planted
from topdp.base.array_types import Floats
from topdp.plan import Plan


@final
class Rehearsal:
    """What `agent` does with the canaries that all agents of a rehearsal were given."""

    def __init__(
        self, planted: Planted, plan: Plan, agent: int, clip: float, start: Tensor, state: Path
    ) -> None:
        if planted.plan != plan.digest():
            raise AuditError(
                "Expected canaries that were planted for this manifest, got those of another plan."
            )
        self.planted, self.clip, self.notes = planted, clip, Notes(state / NOTES)
        self.mine = agent == planted.canaries.owner
        self._at = torch.from_numpy(planted.canaries.coordinates)
        self._gradient: Floats | None = None
        self.notes.keep_start(self._numbers(start))

    def left(self, records: Tensor) -> Tensor:
        """Of the records of a round those whose place no canary has."""
        if not self.mine:
            return records
        return records[torch.from_numpy(self.planted.canaries.among(records.numpy()) < 0)]

    def plant(self, round: int, records: Tensor, mean: Tensor, divisor: int) -> None:
        """Notes the mean gradient without canaries, then adds those that stand among the round's records."""
        self._gradient = self._numbers(mean)
        if self.mine:
            canaries = self.planted.canaries
            used = canaries.among(records.numpy())
            canaries.add(mean, self.clip / divisor, self.planted.signs[round], used[used >= 0])

    def keep(
        self,
        round: int,
        made: Mapping[int, Tensor],
        received: Mapping[int, Tensor],
        shared: Mapping[int, Tensor],
    ) -> None:
        """The rows of a round, before they leave, and the draws that another agent knows too."""
        self.notes.keep(
            round,
            {row: self._numbers(value) for row, value in made.items()},
            {row: self._numbers(value) for row, value in received.items()},
            self._gradient,
            {draw: self._numbers(value) for draw, value in shared.items()},
        )
        self._gradient = None

    def _numbers(self, row: Tensor) -> Floats:
        return np.asarray(row[self._at].double().numpy())

"""The hooks of agents in demonstrations, rehearsals and tests: seeded draws, canaries and failpoints.

**Guarantees.** None. With a seed anyone can reproduce the noise, and with canaries the agent records its
gradients without noise; the ledger and every result state both permanently. A round that is computed again
after a crash is recorded again, so the recordings describe what was sent.

With `TOPDP_FAILPOINT=after_ledger:3` a process kills itself when it reaches that point for the third time, by
SIGKILL as in a power cut: nothing is flushed, and no handler runs. Tests in one process pass their own action
instead, which abandons the agent.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from topdp.agents.agreement.card_succession import load_identities
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
from topdp.plan.noise_key import NoiseKey
from topdp.simulator.simulated_noise import SimulatedDraws

logger = logging.getLogger("topdp.agents")

FAILPOINT_VARIABLE = "TOPDP_FAILPOINT"

ROUND_POINTS = (
    "before_compute",
    "before_ledger",
    "in_ledger",
    "after_ledger",
    "before_send",
    "after_send",
    "before_receive",
    "after_receive",
)
"""The points of a planned round, in the order in which an agent reaches them."""

PAIRING_POINTS = ("after_propose", "after_prepare", "before_commit", "after_commit", "after_told")
"""The points of an exchange."""

SHARING_POINTS = ("after_key", "after_mark")
"""The points of an agent that shares draws."""


class Failpoints:
    """Counts how often an agent reaches each point, and acts at the chosen one, if any."""

    def __init__(self, choice: str | None = None, act: Callable[[str], None] | None = None) -> None:
        """`choice`: a point and a count, such as `after_ledger:3`. `act`: by default, kill the process."""
        points = ROUND_POINTS + PAIRING_POINTS + SHARING_POINTS
        self._counts: Counter[str] = Counter()
        self.name, _, count = (choice or "").partition(":")
        if choice and (self.name not in points or not count.isdigit() or int(count) < 1):
            raise InputError(
                f"Expected {FAILPOINT_VARIABLE}=NAME:COUNT with NAME one of {', '.join(points)}, got "
                f"{choice!r}."
            )
        self.count = int(count or 0)
        self._act = act or (lambda name: os.kill(os.getpid(), signal.SIGKILL))

    def reached(self, name: str) -> None:
        self._counts[name] += 1
        if name == self.name and self._counts[name] == self.count:
            self._act(name)


@final
class SeededDraws(AgentDraws):
    """Draws that a seed determines. Anyone who knows the seed can subtract the noise."""

    def __init__(self, seed: int, plan: Plan, dtype: torch.dtype = torch.float32) -> None:
        """`dtype`: the type of the model, in which the simulator draws."""
        self.seed, self.dtype, self._key = seed, dtype, NoiseKey.of_seed(seed)
        self._noise = SimulatedDraws(self._key, plan.draws, plan.releases)

    def add(self, row: Tensor, std: float, round: int, draw: int) -> None:
        z = self._noise.fill(torch.empty_like(row, dtype=self.dtype), round, draw)
        row.add_(z.to(row.dtype), alpha=std)

    def sample(self, batches: tuple[Batches, ...], agent: int, round: int) -> Tensor:
        selection = select(batches, self.seed, round, key=self._key)
        assert selection.indices is not None and selection.weights is not None
        return selection.indices[agent][selection.weights[agent] > 0]


@dataclass(frozen=True)
class Rehearsal:
    """What one agent of a rehearsal needs: the canaries of all agents, and its own recording of its rows."""

    planted: RehearsalCanaries
    recording: AgentRecording


@final
class DevelopmentHooks(AgentHooks):
    """Hooks for development: seeded draws, canaries in place of records, and failpoints, each optional."""

    def __init__(
        self,
        *,
        seeded: bool = False,
        rehearsal: Rehearsal | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        self.seeded, self.rehearsal = seeded, rehearsal is not None
        self._rehearsal = rehearsal
        self._failpoints = failpoints or Failpoints()
        self._gradient: Floats | None = None
        self._added: Floats | None = None

    def draws(self, part: PlanPart, seed: int, dtype: torch.dtype) -> AgentDraws:
        return SeededDraws(seed, part.plan, dtype) if self.seeded else super().draws(part, seed, dtype)

    def prepare(self, part: PlanPart, batches: Batches, clip: float, start: Tensor) -> None:
        if self._rehearsal is None:
            return
        planted = self._rehearsal.planted
        if planted.plan != part.plan.digest():
            raise AuditError(
                "Expected canaries that were planted for this manifest, got those of another plan."
            )
        self._part, self._batches, self._clip = part, batches, clip
        self._coordinates = torch.from_numpy(planted.canaries.coordinates)
        self._rehearsal.recording.keep_start(self._at_canaries(start))

    def mean_gradient(
        self, round: int, chosen: Tensor | None, mean_of: Callable[[Tensor | None], Tensor]
    ) -> Tensor:
        """Record the mean without canaries, then add the canaries among the round's records."""
        if self._rehearsal is None:
            return mean_of(chosen)
        planted, canaries = self._rehearsal.planted, self._rehearsal.planted.canaries
        records = torch.arange(self._batches.records) if chosen is None else chosen
        is_owner = self._part.agent == canaries.owner
        used = canaries.among(records.numpy())
        mean = mean_of(records[torch.from_numpy(used < 0)] if is_owner else records)
        self._gradient = self._at_canaries(mean)
        if is_owner:
            canaries.add(mean, self._clip / self._batches.divisor, planted.signs[round], used[used >= 0])
            self._added = self._at_canaries(mean) - self._gradient
        return mean

    def rows_made(
        self, round: int, rows: Mapping[int, Tensor], received: Mapping[int, Tensor], draws: AgentDraws
    ) -> None:
        if self._rehearsal is None:
            return
        self._rehearsal.recording.keep(
            round,
            {row: self._at_canaries(value) for row, value in rows.items()},
            {row: self._at_canaries(value) for row, value in received.items()},
            self._gradient,
            {draw: self._at_canaries(value) for draw, value in self._shared(round, rows, draws).items()},
            self._added,
        )
        self._gradient = self._added = None

    def reached(self, point: str) -> None:
        self._failpoints.reached(point)

    def _shared(self, round: int, rows: Mapping[int, Tensor], draws: AgentDraws) -> dict[int, Tensor]:
        """Return the draws of `round` that another agent knows too; drawing them again gives the same."""
        like = next(iter(rows.values()))
        shared = {draw: torch.zeros_like(like) for _, draw, _ in self._part.shared_in(round)}
        for draw, row in shared.items():
            draws.add(row, 1.0, round, draw)
        return shared

    def _at_canaries(self, row: Tensor) -> Floats:
        return np.asarray(row[self._coordinates].double().numpy())


def rehearsal_hooks(start: Mapping[str, Any], *, seeded: bool, canaries: Path | None) -> DevelopmentHooks:
    """Return the hooks of an agent process with the arguments `start`; log a warning for each."""
    name, rehearsal = load_identities(start["identity"])[0].card.name, None
    if canaries is not None:
        if start["live_pairing"]:
            raise InputError("--canaries: expected an agent that follows a plan. Remove --live-pairing.")
        recording = AgentRecording(start["state"] / RECORDING_FOLDER)
        rehearsal = Rehearsal(RehearsalCanaries.load(canaries), recording)
        text = (
            "%s: REHEARSAL: canaries replace records, and gradients are recorded without noise in %s; not "
            "for data that others must not see"
        )
        logger.warning(text, name, recording.folder, extra={"event": "rehearsal"})
    if seeded:
        text = "%s: SEEDED: anyone who knows the seed can reproduce the noise; for tests"
        logger.warning(text, name, extra={"event": "seeded"})
    failpoints = Failpoints(os.environ.get(FAILPOINT_VARIABLE))
    return DevelopmentHooks(seeded=seeded, rehearsal=rehearsal, failpoints=failpoints)

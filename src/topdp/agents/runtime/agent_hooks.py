"""Hooks by which development replaces steps of an agent; production uses the defaults.

An agent calls its hooks for its draws, its mean gradient, the rows that it made, and at points where tests
may stop it. `agents/development` contains the replacements; a production agent does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from topdp.agents.runtime.agent_draws import AgentDraws, SystemDraws
from topdp.plan.batches import Batches

if TYPE_CHECKING:
    from topdp.agents.runtime.agent_rows import PlanPart


class AgentHooks:
    """The hooks of a production agent: fresh draws, gradients of its own records, no recording, no stops."""

    seeded = False
    """Whether anyone who knows the seed can reproduce the noise. The ledger records it permanently."""

    rehearsal = False
    """Whether gradients are recorded without noise. The ledger records it permanently."""

    def draws(self, part: PlanPart, seed: int, dtype: torch.dtype) -> AgentDraws:
        """Return the draws of the agent. `seed`: the manifest's; `dtype`: the type of the model."""
        return SystemDraws(frozenset(part.partner))

    def prepare(self, part: PlanPart, batches: Batches, clip: float, start: Tensor) -> None:
        """Prepare for the run. Called once, before the first gradient, with the public start row [d]."""

    def mean_gradient(
        self, round: int, chosen: Tensor | None, mean_of: Callable[[Tensor | None], Tensor]
    ) -> Tensor:
        """Return the mean clipped gradient [d] of the records with indices `chosen`; None stands for all."""
        return mean_of(chosen)

    def rows_made(
        self, round: int, rows: Mapping[int, Tensor], received: Mapping[int, Tensor], draws: AgentDraws
    ) -> None:
        """Observe the rows of `round` before they are charged, and the `received` rows used to make them.

        Both map row numbers of the plan to rows [d].
        """

    def reached(self, point: str) -> None:
        """Observe that the agent has reached a named point of a round."""

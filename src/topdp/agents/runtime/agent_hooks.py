"""The one place where development can replace what an agent does; production leaves the defaults.

An agent calls its hooks for its draws, its mean gradient, the rows it made, and at points where tests may
stop it. What replaces them is in `agents/development`, which no production agent imports.
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
    """What a production agent does: fresh draws, its own records only, no notes, no stops."""

    seeded = False
    """Whether noise can be repeated by anyone who knows the seed. The ledger records it for good."""

    rehearsal = False
    """Whether gradients are written down without noise. The ledger records it for good."""

    def draws(self, part: PlanPart, seed: int, dtype: torch.dtype) -> AgentDraws:
        """The draws of the agent. `dtype` is that of the model."""
        return SystemDraws(frozenset(part.partner))

    def prepare(self, part: PlanPart, batches: Batches, clip: float, start: Tensor) -> None:
        """Called once, before the first gradient, with the public start row."""

    def mean_gradient(
        self, round: int, chosen: Tensor | None, mean_of: Callable[[Tensor | None], Tensor]
    ) -> Tensor:
        """The mean clipped gradient of the `chosen` records; None stands for all of them."""
        return mean_of(chosen)

    def rows_made(
        self, round: int, rows: Mapping[int, Tensor], received: Mapping[int, Tensor], draws: AgentDraws
    ) -> None:
        """Called with the rows of `round`, before they are charged, and with the rows they were made of."""

    def reached(self, point: str) -> None:
        """Called at each named point of a round."""

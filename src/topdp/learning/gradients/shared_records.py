"""One set of records for several rows of parameters: the first layer reads it once for all of them.

For stacked runs on the same data. If a model begins with a linear layer, S rows that share an agent's records
are one linear layer of S times the width. After it each row is processed separately. Not for runs with
different records.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from topdp.learning.gradients import agent_products
from topdp.learning.gradients.ghost_norms import Contribution
from topdp.learning.gradients.safe_norms import squared_norms


def shared_linear(a: Tensor, weight: Tensor, bias: Tensor | None, copies: int) -> Tensor:
    """Apply the weights [copies·agents, out, in] to a [agents, b, in]: [copies·agents, b, out]."""
    agents, b, _ = a.shape
    wide = _side_by_side(weight, copies)  # [agents, copies·out, in]
    outputs = agent_products.agent_linear(a, wide, None if bias is None else _side_by_side(bias, copies))
    return outputs.view(agents, b, copies, -1).permute(2, 0, 1, 3).flatten(0, 1)


def _side_by_side(values: Tensor, copies: int) -> Tensor:
    """View [copies·agents, out, ...] as [agents, copies·out, ...]."""
    return by_copy(values, copies).transpose(0, 1).flatten(1, 2)


def by_copy(values: Tensor, copies: int) -> Tensor:
    """View [copies·agents, ...] as [copies, agents, ...]."""
    return values.view(copies, len(values) // copies, *values.shape[1:])


@final
class SharedOuter(Contribution):
    """The weight of a linear layer: gradient = δ aᵀ; a [agents, b, in] for all copies, δ [n, b, out]."""

    def __init__(self, a: Tensor, delta: Tensor) -> None:
        self.a = a
        self.delta = delta

    @property
    def copies(self) -> int:
        return len(self.delta) // len(self.a)

    def squared_norms(self) -> Tensor:
        lengths = squared_norms(self.a).expand(self.copies, -1, -1)
        return lengths.flatten(0, 1) * squared_norms(self.delta)

    def add_to(self, out: Tensor, coefficients: Tensor) -> None:
        scaled = (self.delta * coefficients.unsqueeze(2)).mT  # [n, out, b]
        wide = _side_by_side(scaled, self.copies)  # [agents, copies·out, b]
        sums = self.a.new_empty(*wide.shape[:2], self.a.shape[2])
        agent_products.add_outer(sums, wide.mT, self.a, fresh=True)
        by_copies = sums.view(len(self.a), self.copies, -1).transpose(0, 1)
        by_copy(out, self.copies).add_(by_copies)

    def blank(self, where: Tensor) -> None:
        self.delta = self.delta.masked_fill(where.unsqueeze(2), 0)
        # If the common factor is not finite, neither is the norm of any copy: all of them are blanked.
        self.a = self.a.masked_fill(~torch.isfinite(self.a).all(2, keepdim=True), 0)

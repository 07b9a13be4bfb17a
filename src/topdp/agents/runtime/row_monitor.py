"""What an agent notices of the rows that come in: how far each is from its own, and how long it is.

A row that is much further away than most others', or than any that the same neighbour sent before, is
reported once, and counted. Where the manifest limits drifts, rows beyond the limit are left out of the mix as
if they had not come: the agent's own estimate stands in for them. Robust mixing needs none of this.

**Guarantees.** All of it is a function of rows that were sent. To leave one out departs from the plan, and is
booked as such: where others' noise is counted on, the agent charges by worst case from then on (`budget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import torch
from torch import Tensor

from topdp.agents.wire.link_refusals import RefusalLog

FAR = 5.0
"""Times the median distance of all received rows: told."""

JUMP = 10.0
"""Times the largest distance that rows of the same neighbour had before: told."""

SEEN = 4
"""Rows of a neighbour before its past is compared with."""


class RowMonitor:
    """Of each neighbour: the last distance over the median of all, the last norm, and what was left out."""

    def __init__(self, refusals: RefusalLog, largest_drift: float = 0.0) -> None:
        """`largest_drift`: rows further than so many median distances are left out; 0: none is."""
        self.refusals, self.largest_drift = refusals, largest_drift
        self.drifts: dict[str, float] = {}
        self.norms: dict[str, float] = {}
        self.left_out: dict[str, int] = {}
        self.warnings: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def far(self, round: int, own: Tensor, received: Mapping[str, Tensor]) -> list[str]:
        """Looks at the rows of all senders; returns those whose rows are to be left out."""
        distance = {peer: float(torch.linalg.vector_norm(row - own)) for peer, row in received.items()}
        usual = median(distance.values()) if distance else 0.0
        out = []
        for peer, away in distance.items():
            self.norms[peer] = float(torch.linalg.vector_norm(received[peer]))
            drift = self.drifts[peer] = away / usual if usual else 1.0
            before = self._largest.get(peer, 0.0)
            if self._seen.get(peer, 0) >= SEEN and before and away > JUMP * before:
                words = f"{away / before:.3g} times further from this agent's than any before"
                self._warn(peer, "jump", round, words)
            if drift > FAR:
                words = f"{drift:.3g} times as far from this agent's as the median neighbour's"
                self._warn(peer, "drift", round, words)
            if self.largest_drift and drift > self.largest_drift:
                self.left_out[peer] = self.left_out.get(peer, 0) + 1
                out.append(peer)
            else:
                self._largest[peer] = max(before, away)
            self._seen[peer] = self._seen.get(peer, 0) + 1
        return out

    def _warn(self, peer: str, kind: str, round: int, words: str) -> None:
        self.warnings[peer] = self.warnings.get(peer, 0) + 1
        self.refusals.report(peer, kind, f"the row of round {round} is {words}")

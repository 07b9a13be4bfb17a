"""Monitor how far received rows are from the agent's own row.

A row whose distance is much larger than the median, or than that of all earlier rows of the same neighbour,
is reported once, and counted in the log of refusals; the ledger notes its sender for status, metrics and
result. If the manifest limits the drift, rows beyond the limit are omitted from the mix like rows that did
not arrive: the agent's own estimate replaces them. Robust mixing does not need this.

**Guarantees.** All values are functions of rows that were sent. Omitting a row departs from the plan, and the
ledger records it: if charges rely on the noise of others, the agent charges by the worst case from then on
(`budget_meter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from topdp.agents.wire.link_refusals import RefusalLog

REPORTED_DRIFT = 5.0
"""Times the median distance of all received rows."""

REPORTED_JUMP = 10.0
"""Times the largest distance that rows of the same neighbour had before."""

MIN_PAST_ROWS = 4
"""Rows of a neighbour before jumps are reported."""


class RowMonitor:
    """Compares how far received rows are from the agent's own row.

    `drifts`: for each neighbour, the distance of its last row, divided by the median distance of the rows of
    that round.
    """

    def __init__(
        self,
        refusals: RefusalLog,
        largest_drift: float = 0.0,
        note_suspect: Callable[[str, str], None] = lambda peer, words: None,
    ) -> None:
        """`largest_drift`: omit rows whose distance exceeds this multiple of the median; 0: no limit.

        `note_suspect` records a neighbour with a reported row, and what was wrong with it.
        """
        self.refusals, self.largest_drift, self.note_suspect = refusals, largest_drift, note_suspect
        self.drifts: dict[str, float] = {}
        self._largest: dict[str, float] = {}  # distance of the rows that were not omitted
        self._row_counts: Counter[str] = Counter()

    def find_far(self, round: int, own: Tensor, received: Mapping[str, Tensor]) -> list[str]:
        """Observe the rows of `round`, and return the senders whose rows must be omitted.

        `own` [d]: the agent's own row. `received`: maps each sender to its row [d].
        """
        distance = {peer: float(torch.linalg.vector_norm(row - own)) for peer, row in received.items()}
        middle = median(distance.values()) if distance else 0.0
        omitted = []
        for peer, away in distance.items():
            drift = self.drifts[peer] = away / middle if middle else 1.0
            before = self._largest.get(peer, 0.0)
            row = f"the row of round {round} is"
            if self._row_counts[peer] >= MIN_PAST_ROWS and before and away > REPORTED_JUMP * before:
                words = f"{row} {away / before:.3g} times as far from this agent's row as any earlier one"
                self._report(peer, "jump", words)
            if drift > REPORTED_DRIFT:
                words = f"{row} {drift:.3g} times as far from this agent's row as the median neighbour's"
                self._report(peer, "drift", words)
            if self.largest_drift and drift > self.largest_drift:
                omitted.append(peer)
            else:
                self._largest[peer] = max(before, away)
            self._row_counts[peer] += 1
        return omitted

    def _report(self, peer: str, kind: str, words: str) -> None:
        self.refusals.report(peer, kind, words)
        self.note_suspect(peer, words)

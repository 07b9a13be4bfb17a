"""Rows on the border: each rank sends those that others mix, and fetches those that its own are mixed of.

Which those are follows from the plan, so nobody asks for them. Everything else stays where it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.simulator.ranks.process_group import ProcessGroup
from topdp.simulator.row_layout import RowLayout


@final
class BorderExchange:
    """The engine's `fetch`, over the ranks of `group`. Counts what it sent."""

    def __init__(self, layout: RowLayout, group: ProcessGroup) -> None:
        self.layout, self.group = layout, group
        self.bytes_sent = 0

    def __call__(self, round: int, rows: Tensor) -> Callable[[], None]:
        """`rows`: those made here in the round before, then room for the guests of `round`."""
        layout = self.layout
        made = layout.made(round - 1)
        rows = _padded(rows)
        sent = []
        for (origin, to), wanted in layout.guests(round).items():
            if origin == layout.here:
                places = torch.from_numpy(np.searchsorted(made, wanted)).to(rows.device)
                packed = rows.index_select(0, places)
                self.bytes_sent += packed.numel() * packed.element_size()
                sent.append((to, packed))
        received, first = [], len(made)
        for origin, coming in layout.arriving(round):
            received.append((origin, rows[first : first + len(coming)]))
            first += len(coming)
        return self.group.exchange(sent, received)


def _padded(rows: Tensor) -> Tensor:
    """The same rows to where the next ones begin: without gaps, so that they can be received in place."""
    return rows.as_strided((len(rows), rows.stride(0)), (rows.stride(0), 1))

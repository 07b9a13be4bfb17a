"""Exchanges border rows: each rank sends the rows that others mix, and receives those that it mixes.

The plan determines which rows these are, so ranks need not request them. All other rows stay local.
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
    """The `fetch` of an engine, over the ranks of `group`."""

    def __init__(self, layout: RowLayout, group: ProcessGroup) -> None:
        self.layout, self.group = layout, group

    def __call__(self, round: int, rows: Tensor) -> Callable[[], None]:
        """Start the exchange for `round`, and return a function that waits until all guests have arrived.

        `rows`: the rows made here in the previous round, followed by space for the guests of `round`.
        """
        layout = self.layout
        made = layout.made(round - 1)
        rows = _padded(rows)
        sent = []
        for (origin, to), wanted in layout.guests(round).items():
            if origin == layout.here:
                places = torch.from_numpy(np.searchsorted(made, wanted)).to(rows.device)
                packed = rows.index_select(0, places)
                sent.append((to, packed))
        received, first = [], len(made)
        for origin, coming in layout.arriving(round):
            received.append((origin, rows[first : first + len(coming)]))
            first += len(coming)
        return self.group.exchange(sent, received)


def _padded(rows: Tensor) -> Tensor:
    """Return the same rows with their padding: contiguous, so that they can be received in place."""
    return rows.as_strided((len(rows), rows.stride(0)), (rows.stride(0), 1))

"""Rows on the border: each rank sends those that others mix, and fetches those that its own are mixed of.

Which those are follows from the plan, so nobody asks for them. Everything else stays where it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.simulator.layout import Layout
from topdp.simulator.ranks.group import Group


@final
class Exchange:
    """The engine's `fetch`, over the ranks of `group`. Counts what it sent."""

    def __init__(self, layout: Layout, group: Group) -> None:
        self.layout, self.group = layout, group
        self.bytes_sent = 0

    def __call__(self, round: int, rows: Tensor) -> Callable[[], None]:
        """`rows`: those made here in the round before, then room for the guests of `round`."""
        layout = self.layout
        made = layout.made(round - 1)
        sent = []
        for (origin, to), wanted in layout.guests(round).items():
            if origin == layout.here:
                places = torch.from_numpy(np.searchsorted(made, wanted)).to(rows.device)
                packed = rows.index_select(0, places)
                self.bytes_sent += packed.numel() * packed.element_size()
                sent.append((to, packed))
        received, into, first = [], [], len(made)
        for origin, coming in layout.arriving(round):
            room = rows[first : first + len(coming)]
            # Rows are padded to where they begin: what comes is not, and goes through a tensor of its own.
            tensor = (
                room
                if room.is_contiguous()
                else torch.empty(room.shape, dtype=room.dtype, device=room.device)
            )
            received.append((origin, tensor))
            into.append((room, tensor))
            first += len(coming)
        wait = self.group.exchange(sent, received)

        def arrive() -> None:
            wait()
            for room, tensor in into:
                if tensor is not room:
                    room.copy_(tensor)
            into.clear()
            received.clear()
            sent.clear()

        return arrive

"""Two alternating buffers for the rows of two consecutive releases, and whether each is complete.

Rows begin at multiples of `ROW_ALIGNMENT`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from topdp.learning.models import FlatModel
from topdp.simulator.simulation import State

# In numbers. On a CPU, the last digits of matrix products depend on where rows begin, but an agent's row must
# not depend on how many rows precede it. On a GPU, matrix units compute faster with aligned rows.
ROW_ALIGNMENT = {"cpu": 16, "cuda": 32}

# The number type of rows, by `Plan.rounded`. torch rounds to nearest, ties to even.
ROUNDED_TYPES = {"bfloat16": torch.bfloat16}


def padded_width(dimension: int, device: torch.device) -> int:
    """Return the distance, in numbers, between the starts of two rows of `dimension` numbers."""
    align = ROW_ALIGNMENT[device.type]
    return -(-dimension // align) * align


@final
class RowBuffers:
    """Two buffers of `capacity` rows of type `stored`, on demand; rows of release r are in buffer r mod 2."""

    def __init__(self, capacity: int, flat: FlatModel, rounded: str | None, device: torch.device) -> None:
        """Create the object without memory. Rows are parameters of `flat`, rounded as `Plan.rounded` states.

        `self.dtype` is the type of rows outside the buffers, such as gradients.
        """
        self.capacity, self.dimension, self.dtype, self.device = capacity, flat.dimension, flat.dtype, device
        self.stored = flat.dtype if rounded is None else ROUNDED_TYPES[rounded]
        self.release()

    def release(self) -> None:
        """Free both buffers."""
        self._buffers: list[Tensor] = []
        # For each buffer, the number of releases after its last row was made; None if it is not complete.
        self._complete: list[int | None] = [None, None]

    def of(self, round: int) -> Tensor:
        """Return [capacity, d] the buffer for the rows of `round`."""
        if not self._buffers:
            self._buffers = [self.empty(self.capacity, self.stored) for _ in range(2)]
        return self._buffers[round % 2]

    def begin(self, round: int, count: int) -> Tensor:
        """Return the buffer [count, d] for the rows of `round`, and mark it as incomplete.

        The rows of round - 2, which it contains, will be overwritten.
        """
        out = self.of(round)[:count]
        self._complete[round % 2] = None
        return out

    def begin_both(self) -> None:
        """Mark both buffers as incomplete."""
        self._complete = [None, None]

    def complete(self, releases: int) -> None:
        """Mark the buffer of release number releases - 1 as complete."""
        self._complete[(releases - 1) % 2] = releases

    def holds(self, state: State) -> bool:
        """Return whether the rows of `state` are intact; rows outside the buffers are always intact."""
        for buffer, releases in zip(self._buffers, self._complete, strict=False):
            if buffer.data_ptr() == state.rows.data_ptr():
                return releases == state.releases
        return True

    def empty(self, count: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return new rows [count, d] outside the buffers: aligned, with any content."""
        width = padded_width(self.dimension, self.device)
        rows = torch.empty(count, width, dtype=dtype or self.dtype, device=self.device)
        return rows[:, : self.dimension]

    def copy_of(self, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return an aligned copy of `rows` outside the buffers."""
        return self.empty(len(rows), dtype).copy_(rows)

"""What went wrong in passes that nobody waits for: noted on the device, and read when they are done.

For passes that are recorded and replayed (`cuda_program`): they cannot ask in between whether numbers
are finite, since that is to wait for the device. Whoever records them decides what to do about it.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor


class PassOutcome(NamedTuple):
    """Of all passes since the last look."""

    rows: bool  # the parameters of all agents had a finite norm
    examples: bool  # so had all gradients; or those that had not were left out, as they should

    @property
    def well(self) -> bool:
        return self.rows and self.examples


@final
class FailureFlags:
    """Notes whether rows and gradients are finite. With `blanks`, every pass leaves out those that are not,
    which takes a little longer; without, sums in which there was one are worthless, and it is noted.
    """

    def __init__(self, device: torch.device, blanks: bool = False) -> None:
        self.blanks = blanks
        self._norm = torch.zeros((), dtype=torch.float64, device=device)  # the largest; NaN stays
        self._bad = torch.zeros((), dtype=torch.bool, device=device)

    def note_rows(self, rows: Tensor) -> None:
        torch.maximum(self._norm, torch.linalg.vector_norm(rows), out=self._norm)

    def note_examples(self, bad: Tensor) -> bool:
        """Whether the `bad` ones are to be left out now."""
        if not self.blanks:
            torch.logical_or(self._bad, bad.any(), out=self._bad)
        return self.blanks

    def clear(self) -> None:
        self._norm.zero_()
        self._bad.zero_()

    def read(self) -> PassOutcome:
        """Waits for the device."""
        norm, bad = torch.stack([self._norm, self._bad.to(self._norm)]).tolist()
        return PassOutcome(math.isfinite(norm), not bad)

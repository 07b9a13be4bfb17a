"""Failures of passes that run without waiting for the device: recorded there, and read when the passes are
done.

For passes that are recorded and replayed (`cuda_program`). They cannot check in between whether numbers are
finite, because checking waits for the device. The code that records them decides what to do about a failure.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor


class PassOutcome(NamedTuple):
    """The outcome of all passes since the last `clear`."""

    rows: bool  # the parameters of all agents had finite norms
    examples: bool  # so had all gradients, or the others were left out

    @property
    def ok(self) -> bool:
        """Whether no pass failed."""
        return self.rows and self.examples


@final
class FailureFlags:
    """Records whether rows and gradients are finite.

    With `blanks`, every pass leaves out gradients that are not finite, which takes a little longer. Without,
    a sum that contains such a gradient is worthless, and the flag says so.
    """

    def __init__(self, device: torch.device, blanks: bool = False) -> None:
        self.blanks = blanks
        self._norm = torch.zeros((), dtype=torch.float64, device=device)  # the largest so far; NaN stays
        self._bad = torch.zeros((), dtype=torch.bool, device=device)

    def note_rows(self, rows: Tensor) -> None:
        torch.maximum(self._norm, torch.linalg.vector_norm(rows), out=self._norm)

    def note_examples(self, bad: Tensor) -> bool:
        """Record the `bad` examples; return whether they must be left out now."""
        if not self.blanks:
            torch.logical_or(self._bad, bad.any(), out=self._bad)
        return self.blanks

    def clear(self) -> None:
        self._norm.zero_()
        self._bad.zero_()

    def read(self) -> PassOutcome:
        """Return the outcome. Waits for the device."""
        norm, bad = torch.stack([self._norm, self._bad.to(self._norm)]).tolist()
        return PassOutcome(math.isfinite(norm), not bad)

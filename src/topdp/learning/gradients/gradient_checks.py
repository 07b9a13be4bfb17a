"""Checks of `ClippedGradients`: of its arguments, and whether rows and gradients are finite.

Whether the checks of arguments raise depends on shapes, weights and rows, never on a record. Passes that are
recorded and replayed (`cuda_program`) cannot check in between whether numbers are finite, because checking
waits for the device: `FailureFlags` records failures there, and the code that records the passes decides what
to do about one.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from topdp.errors import InputError, TopdpError
from topdp.learning.models import FlatModel


class DivergedError(TopdpError, FloatingPointError):
    """Training diverged: parameters are not finite. Never raised because of the content of a record."""


def expect_rows(flat: FlatModel, rows: Tensor) -> None:
    """Expect rows [n, d]."""
    if rows.dim() != 2 or rows.shape[1] != flat.dimension or not rows.is_floating_point():
        raise InputError(
            f"Expected rows [n, {flat.dimension}] of floats, got {tuple(rows.shape)} {rows.dtype}."
        )


def expect_inputs(
    flat: FlatModel,
    rows: Tensor,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    out: Tensor | None,
    microbatch: int | None,
    copies: int = 1,
) -> tuple[int, int]:
    """Return (n, b) if all shapes and numbers fit; else raise InputError."""
    expect_rows(flat, rows)
    n, b = rows.shape[0], inputs.shape[1] if inputs.dim() > 1 else -1
    if copies < 1 or n % copies:
        raise InputError(f"Expected copies >= 1 that divide {n} rows, got {copies}.")
    named = {"inputs": (inputs, n // copies), "targets": (targets, n // copies)}
    if weights is not None:
        named["weights"] = (weights, n)
    for name, (value, agents) in named.items():
        if value.shape[:2] != (agents, b):
            raise InputError(
                f"Expected {name} [{agents}, {b}, ...] like rows and inputs, got {tuple(value.shape)}."
            )
    if out is not None and (out.shape != rows.shape or out.dtype != rows.dtype or out.stride(1) != 1):
        raise InputError(
            f"Expected out {tuple(rows.shape)} {rows.dtype} with contiguous rows, got {tuple(out.shape)} "
            f"{out.dtype} with strides {out.stride()}."
        )
    if microbatch is not None and microbatch < 1:
        raise InputError(f"Expected microbatch >= 1, got {microbatch}.")
    return n, b


def expect_finite(rows: Tensor, weights: Tensor | None) -> None:
    """Check rows, which are released, never records: an abort that depends on a record would disclose it."""
    # One pass without a copy, and a single wait on a GPU. Norms are taken row by row: one norm over all rows
    # takes a CPU eight times as long.
    lengths = torch.linalg.vector_norm(rows, dim=1)
    good = [torch.isfinite(lengths).all()]
    if weights is not None:
        good.append(((weights >= 0) & torch.isfinite(weights)).all())
    if bool(torch.stack(good).all()):
        return
    if weights is not None and not bool(good[1]):
        raise InputError("Expected finite weights >= 0, got negative or non-finite ones.")
    raise divergence_error((~torch.isfinite(lengths)).nonzero().flatten().tolist())


def divergence_error(agents: list[int]) -> DivergedError:
    return DivergedError(
        f"Expected parameters with a finite norm, got others for agents {agents}. Lower the learning rate or "
        "the noise."
    )


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

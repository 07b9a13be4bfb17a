"""Checks for `ClippedGradients`: of its arguments, and whether rows and gradients are finite.

Whether a check of arguments raises an error depends on shapes, weights and rows, never on a record. During
passes that are recorded and replayed (`cuda_program`), a check whether numbers are finite is impossible,
because the check would wait for the device. There `FailureFlags` records failures, and the code that
replays the passes decides what to do about them.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from topdp.errors import InputError, TopdpError
from topdp.learning.models import FlatModel


class DivergedError(TopdpError, FloatingPointError):
    """Training diverged: the parameters are not finite.

    The error depends only on the parameters, never on the content of a record.
    """


def expect_rows(flat: FlatModel, rows: Tensor) -> None:
    """Raise InputError unless `rows` are floating-point numbers [n, d]."""
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
    """Return (n, b), the numbers of agents and examples; raise InputError unless all arguments fit."""
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
    """Raise DivergedError if the norm of a row is not finite, and InputError for invalid weights.

    Only rows, which are released, and weights are checked, never records: an error that depends on a record
    would disclose something about it.
    """
    # This takes one pass without a copy, and a single wait on a GPU. Norms are computed row by row, because
    # one norm over all rows takes a CPU eight times as long.
    lengths = torch.linalg.vector_norm(rows, dim=1)
    good = [torch.isfinite(lengths).all()]
    if weights is not None:
        valid = (weights >= 0) & torch.isfinite(weights)
        good.append(valid.all())
    if bool(torch.stack(good).all()):
        return
    if weights is not None and not bool(good[1]):
        raise InputError(f"Expected finite weights >= 0, got {weights[~valid][0].item():g}.")
    raise divergence_error((~torch.isfinite(lengths)).nonzero().flatten().tolist())


def divergence_error(agents: list[int]) -> DivergedError:
    """Return the error that names the `agents` whose parameters are not finite."""
    return DivergedError(
        "Expected parameters with a finite norm, got an infinite or undefined norm for agents "
        f"{agents}. Lower the learning rate or the noise."
    )


@final
class FailureFlags:
    """A record of whether rows and gradients were finite.

    With `blanks`, every pass leaves out gradients that are not finite, which takes a little longer. Without
    `blanks`, a sum that contains such a gradient cannot be used, and the flag says so.
    """

    def __init__(self, device: torch.device, blanks: bool = False) -> None:
        self.blanks = blanks
        self._norm = torch.zeros((), dtype=torch.float64, device=device)  # the largest norm so far, or NaN
        self._bad = torch.zeros((), dtype=torch.bool, device=device)

    def note_rows(self, rows: Tensor) -> None:
        torch.maximum(self._norm, torch.linalg.vector_norm(rows), out=self._norm)

    def note_examples(self, bad: Tensor) -> bool:
        """Record whether an example is `bad`; return whether the caller must leave out the bad examples."""
        if not self.blanks:
            torch.logical_or(self._bad, bad.any(), out=self._bad)
        return self.blanks

    def clear(self) -> None:
        self._norm.zero_()
        self._bad.zero_()

    def read(self) -> tuple[bool, bool]:
        """Wait for the device, and return two findings in all passes since the last `clear`.

        The first: whether the parameters of all agents had finite norms. The second: whether all gradients
        had finite norms, or those without one were left out.
        """
        norm, bad = torch.stack([self._norm, self._bad.to(self._norm)]).tolist()
        return math.isfinite(norm), not bad

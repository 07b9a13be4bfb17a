"""An agent's clipped gradients in float64, whatever the type of its model; and what rounding is left in them.

A sum of N clipped gradients is rounded N times, by as much of itself each time; one record changes all later
partial sums, and so how they are rounded. In float32 that can be more than the record itself. Not for rows:
`sums` adds the gradient to them.

**Guarantees.** `off` bounds how far rounding moves a mean gradient, in both of two neighbouring worlds
together, beside what the clip allows. A record that is not there counts as one whose gradient is zero: the
manifest says how many there are, and an agent with another number does not start. So the shapes of all
products, and with them the order of every sum, are the same in both worlds, and what one record's numbers are
in its own pass depends on no other record. A record on which a model raises would have the others computed by
another path; it is set aside before (`failing`).
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from topdp.errors import InputError
from topdp.learning.gradients import clipped_gradients
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.gradients.per_example_path import first_line
from topdp.learning.gradients.safe_norms import minimum_rounding_unit
from topdp.learning.losses import Loss
from topdp.learning.models import FlatModel

UNIT = 2.0**-53  # of a number: what one operation in float64 is off, at most
FINEST = 2.0**-23
"""Norms of what cancels are enlarged as in float32: so what cancels is at most `ENLARGED` clips long."""

ENLARGED = 1 / (2 * math.sqrt(FINEST))
WIDE = 1024  # records at once
TOGETHER = 64  # records whose products are added up at once, where one record alone has many
MANY = 10_000  # terms of a record where they cannot be counted


@final
class ExactGradients:
    """The sum of an agent's clipped gradients, in float64."""

    def __init__(self, flat: FlatModel, clip: float, loss: str | Loss, clipping: str, record: Tensor) -> None:
        """`record` [1, ...]: what records look like; what is in it does not matter."""
        self.kind = flat.dtype
        self.flat = flat if flat.dtype == torch.float64 else _doubled(flat, record)
        self.terms = terms(self.flat, record)
        self._block = WIDE if self.terms == 1 else TOGETHER
        self._clipped = clipped_gradients.ClippedGradients(self.flat, clip, loss, clipping)

    def sum(
        self, estimate: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """[d] of the records [b, ...] at `estimate`; how many counted as zero is for their owner alone.

        `weights` [b]: 0 for records that stand in for others and add exactly nothing, 1 for all else.
        """
        row, ignored = estimate.double()[None].contiguous(), 0
        out = torch.zeros_like(row)
        # A block at a time: numbers are widened on their way, and stay near the processor.
        for first in range(0, len(inputs), self._block):
            block = slice(first, first + self._block)
            with minimum_rounding_unit(FINEST):
                _, statistics = self._clipped.clipped_sum_and_statistics(
                    row,
                    _wide(inputs[block])[None],
                    _wide(targets[block])[None],
                    None if weights is None else weights[None, block],
                    out=out,
                    microbatch=self._block,
                )
            ignored += int(statistics.ignored[0])
        return out[0], ignored

    def failing(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """[records] whether model or loss raises on them at the public start, as on a class that is none."""
        module = _loaded(self.flat)

        def raises(some: slice) -> bool:
            try:
                with torch.no_grad():
                    self._clipped.loss(module(_wide(inputs[some])), _wide(targets[some]))
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception:  # of the model, on these records
                return True
            return False

        found = torch.zeros(len(inputs), dtype=torch.bool)
        for first in range(0, len(inputs), WIDE):
            some = range(first, min(first + WIDE, len(inputs)))
            if raises(slice(some.start, some.stop)):
                found[some.start : some.stop] = torch.tensor([raises(slice(k, k + 1)) for k in some])
        return found

    def off(self, records: int, clip: float, divisor: int) -> float:
        """How far rounding may move the mean of so many clipped gradients, in two worlds together.

        A sum of k terms is off by k units of the sum of their lengths, which is `records` clips. Where a
        record has many terms that may cancel, those of a block are up to `ENLARGED` times as long as it.
        """
        longest = records if self.terms == 1 else records + TOGETHER * ENLARGED
        units = self.terms * (longest + 8) * records
        # Norms are off by less than 2⁻⁴⁰ of themselves: so much is a record longer than the clip.
        return clip / divisor * (2 * UNIT * units + 2.0**-40)


def terms(flat: FlatModel, record: Tensor) -> int:
    """How many products are added up for one number of one record's gradient, at most: 1 for an MLP.

    >>> terms(FlatModel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))), torch.zeros(1, 3))
    1
    >>> terms(FlatModel(nn.Conv1d(1, 1, 2)), torch.zeros(1, 1, 5))
    4
    """
    counts: dict[nn.Parameter, int] = {}  # several modules may have one in common

    def count(module: nn.Module, given: tuple[object, ...], result: object) -> None:
        sizes = [part.numel() for part in (*given, result) if isinstance(part, Tensor)]
        if isinstance(module, nn.Linear) and isinstance(given[0], Tensor):
            uses = given[0].numel() // module.in_features
        elif isinstance(module, _ConvNd) and isinstance(result, Tensor):
            uses = result.numel() // module.out_channels
        else:
            uses = max(sizes, default=MANY)
        for own in {one for one in module._parameters.values() if one is not None and one.requires_grad}:
            counts[own] = counts.get(own, 0) + uses

    module = _loaded(flat)
    hooks = [
        part.register_forward_hook(count)
        for part in module.modules()
        if any(own is not None and own.requires_grad for own in part._parameters.values())
    ]
    try:
        with torch.no_grad():
            module(_blank(record, flat.dtype))
    except Exception:  # a model that does not take zeros
        return MANY
    finally:
        for hook in hooks:
            hook.remove()
    return max(counts.values(), default=MANY)


def _doubled(flat: FlatModel, record: Tensor) -> FlatModel:
    double = FlatModel(flat.load(flat.flatten().double()))
    try:
        _try(double, record)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of the model: it may raise anything
        try:
            _try(flat, record)
        except Exception:  # nor in its own type: it does not take zeros, and the first gradient will tell
            return double
        raise InputError(
            "Expected a model that also runs in float64, in which agents sum gradients (rounding a sum in "
            f"float32 can show a record), got one that does not: {first_line(error):.200} "
            "Let it take the type of its parameters: no .float(), no fixed dtype."
        ) from error
    return double


def _try(flat: FlatModel, record: Tensor) -> None:
    with torch.no_grad():
        call_model(_loaded(flat), {}, _blank(record, flat.dtype))


def _loaded(flat: FlatModel) -> nn.Module:
    return disable_inference_kernels(flat.load(flat.flatten()).eval())


def _blank(record: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(record, dtype=dtype if record.is_floating_point() else None)


def _wide(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values

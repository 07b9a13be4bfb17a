"""An agent's clipped gradients on its own records, summed in float64 whatever the type of its model.

A sum of N clipped gradients is rounded N times, each time by a share of itself; one record changes all later
partial sums, and so how they are rounded. In float32 that can be more than the record itself. `agent_rows`
adds the gradient to rows.

**Guarantees.** `rounding_bound` bounds how far rounding moves a mean gradient, in both of two neighbouring
worlds together, beside what the clip allows. A record that is missing counts as one whose gradient is zero:
the manifest states the number of records, and an agent with another number does not start. So the shapes of
all products, and with them the order of every sum, are the same in both worlds, and the numbers of one record
in its own pass depend on no other record. A record on which the model raises would send the others along
another path; it is set aside before (`failing`).
"""

from __future__ import annotations

import hmac
import logging
import math
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.errors import InputError
from topdp.learning.gradients import clipped_gradients
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.gradients.per_example_path import first_line
from topdp.learning.gradients.safe_norms import minimum_rounding_unit
from topdp.learning.losses import Loss
from topdp.learning.models import FlatModel
from topdp.plan.batches import Batches, Cycle

logger = logging.getLogger("topdp.agents")

ROUNDING_UNIT = 2.0**-53  # relative error of one operation in float64, at most
FINEST_NORM = 2.0**-23
"""Norms of terms that cancel are enlarged as in float32: those are at most `MAX_ENLARGEMENT` clips long."""

MAX_ENLARGEMENT = 1 / (2 * math.sqrt(FINEST_NORM))
WIDE_BLOCK_RECORDS = 1024  # records of a block, where each number of a gradient is one product
NARROW_BLOCK_RECORDS = 64  # records of a block, where each record has many products
UNKNOWN_TERMS = 10_000  # products of a record where they cannot be counted


@final
class ExactGradients:
    """The sum of an agent's clipped gradients, in float64."""

    def __init__(
        self, flat: FlatModel, clip: float, *, loss: str | Loss, clipping: str, record: Tensor
    ) -> None:
        """`record` [1, ...]: an example of the shape and type of records; its values do not matter."""
        self.kind = flat.dtype
        self.flat = flat if flat.dtype == torch.float64 else _doubled(flat, record)
        self.terms = terms(self.flat, record)
        self._block = WIDE_BLOCK_RECORDS if self.terms == 1 else NARROW_BLOCK_RECORDS
        self._clipped = clipped_gradients.ClippedGradients(self.flat, clip, loss, clipping)

    def sum(
        self, estimate: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """[d] of the records [b, ...] at `estimate`, and how many records counted as zero, which only their
        owner may know.

        `weights` [b]: 0 for records that replace others and add exactly nothing, 1 for all else.
        """
        row, ignored = estimate.double()[None].contiguous(), 0
        out = torch.zeros_like(row)
        # In blocks: numbers are widened on their way, and stay in the processor's cache.
        for first in range(0, len(inputs), self._block):
            block = slice(first, first + self._block)
            with minimum_rounding_unit(FINEST_NORM):
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
        """[records] whether the model or the loss raises on them at the public start, for example on an
        invalid class.
        """
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

        failing = torch.zeros(len(inputs), dtype=torch.bool)
        for first in range(0, len(inputs), WIDE_BLOCK_RECORDS):
            some = range(first, min(first + WIDE_BLOCK_RECORDS, len(inputs)))
            if raises(slice(some.start, some.stop)):
                failing[some.start : some.stop] = torch.tensor([raises(slice(k, k + 1)) for k in some])
        return failing

    def rounding_bound(self, records: int, clip: float, divisor: int) -> float:
        """Bound how far rounding moves the mean of `records` clipped gradients, in two worlds together.

        A sum of k terms is off by k units of the sum of their lengths, which is `records` clips. Where a
        record has many terms that may cancel, those of a block are up to `MAX_ENLARGEMENT` times as long as
        it.
        """
        longest = records if self.terms == 1 else records + NARROW_BLOCK_RECORDS * MAX_ENLARGEMENT
        units = self.terms * (longest + 8) * records
        # Norms are off by less than 2⁻⁴⁰ of themselves: so much is a record longer than the clip.
        return clip / divisor * (2 * ROUNDING_UNIT * units + 2.0**-40)


@final
@dataclass(eq=False, repr=False)
class AgentGradients:
    """The agent's mean clipped gradient, on its own records.

    **Guarantees.** The order of cyclic batches follows from the manifest's seed: it need not be secret, since
    it counts as known. It is fixed before round 0, and the same after every restart. Accounts hold only for
    that: a record that moved to another place in the cycle would be used more often than they say.
    """

    exact: ExactGradients
    records: InitVar[tuple[Tensor, Tensor]]
    _: KW_ONLY
    batches: tuple[Batches, ...]  # of all agents, from the manifest
    agent: int
    seed: int  # the manifest's
    draws: AgentDraws
    hooks: AgentHooks = field(default_factory=AgentHooks)

    def __post_init__(self, records: tuple[Tensor, Tensor]) -> None:
        self.inputs, self.targets = records
        expected = self.batches[self.agent].records
        if len(self.inputs) != expected:
            raise InputError(
                f"Expected {expected} records, as the manifest says, got {len(self.inputs)}: the noise is "
                "calibrated for that number."
            )
        if self.inputs.is_floating_point():
            self.inputs = self.inputs.to(self.exact.kind)
        self._weights: Tensor | None = None
        self._set_aside()

    def mean(self, round: int, estimate: Tensor) -> Tensor:
        """[d] in float64: the clipped gradients of this round's records, summed, over the batch's divisor."""
        return self.hooks.mean_gradient(
            round, self._chosen(round), lambda chosen: self._mean_of(round, chosen, estimate)
        )

    def _mean_of(self, round: int, chosen: Tensor | None, estimate: Tensor) -> Tensor:
        inputs, targets, weights = self.inputs, self.targets, self._weights
        if chosen is not None:
            inputs, targets = inputs[chosen], targets[chosen]
            weights = None if weights is None else weights[chosen]
        if not len(inputs):
            return torch.zeros_like(estimate, dtype=torch.float64)  # a Poisson sample may be empty
        total, ignored = self.exact.sum(estimate, inputs, targets, weights)
        self._log_ignored(round, ignored)
        return total.div_(self.batches[self.agent].divisor)

    def _set_aside(self) -> None:
        """Give weight 0 to records on which the model or the loss raises, and put another record in the place
        of each.

        So how the others are computed and rounded does not depend on whether there are such records.
        """
        failing = self.exact.failing(self.inputs, self.targets)
        if not failing.any() or failing.all():
            return
        stand_in = int((~failing).nonzero()[0])
        where = failing.reshape(-1, *(1 for _ in self.inputs.shape[1:]))
        self.inputs = torch.where(where, self.inputs[stand_in], self.inputs)
        where = failing.reshape(-1, *(1 for _ in self.targets.shape[1:]))
        self.targets = torch.where(where, self.targets[stand_in], self.targets)
        self._weights = (~failing).double()
        words = "%d records count as zero: the model or the loss fails on them."
        logger.warning(words, int(failing.sum()), extra={"agent": self.agent, "event": "ignored"})

    def order(self, key: bytes) -> str | None:
        """A digest of the records in the order of cyclic batches, to compare after a restart; None for other
        batches.

        Keyed by `key`, because a plain digest would tell anyone who knows all records but one what that one
        is.
        """
        mine = self.batches[self.agent]
        if not isinstance(mine, Cycle):
            return None
        digest = hmac.new(key, digestmod="sha256")
        for round in range(mine.period):
            chosen = self._chosen(round)
            for values in (self.inputs[chosen], self.targets[chosen]):
                digest.update(f"{round} {values.dtype} {tuple(values.shape)}".encode())
                digest.update(values.numpy().tobytes())
        return digest.hexdigest()

    def _chosen(self, round: int) -> Tensor | None:
        """The records that `round` uses; None stands for all of them."""
        mine = self.batches[self.agent]
        if mine.sampled:
            return self.draws.sample(self.batches, self.agent, round)
        if not isinstance(mine, Cycle):
            return None
        from topdp.data.batch_selection import select  # cyclic batches only

        turn = select(self.batches, self.seed, round)
        assert turn.indices is not None and turn.weights is not None
        return turn.indices[self.agent][turn.weights[self.agent] > 0]

    def _log_ignored(self, round: int, ignored: int) -> None:
        """Report ignored records in the agent's own log, which stays where the data are; nothing sent depends
        on it.
        """
        if ignored:
            words = "%d records counted as zero in round %d: the model gives no finite gradient for them."
            facts = {"agent": self.agent, "event": "ignored", "round": round}
            logger.warning(words, ignored, round, extra=facts)


def terms(flat: FlatModel, record: Tensor) -> int:
    """The largest number of products that are added up for one number of one record's gradient: 1 for an MLP.

    >>> terms(FlatModel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))), torch.zeros(1, 3))
    1
    >>> terms(FlatModel(nn.Conv1d(1, 1, 2)), torch.zeros(1, 1, 5))
    4
    """
    counts: dict[nn.Parameter, int] = {}  # modules may share parameters

    def count(module: nn.Module, inputs: tuple[object, ...], result: object) -> None:
        sizes = [part.numel() for part in (*inputs, result) if isinstance(part, Tensor)]
        if isinstance(module, nn.Linear) and isinstance(inputs[0], Tensor):
            uses = inputs[0].numel() // module.in_features
        elif isinstance(module, _ConvNd) and isinstance(result, Tensor):
            uses = result.numel() // module.out_channels
        else:
            uses = max(sizes, default=UNKNOWN_TERMS)
        for own in set(module._parameters.values()):
            if own is not None and own.requires_grad:
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
    except Exception:  # the model does not accept zeros
        return UNKNOWN_TERMS
    finally:
        for hook in hooks:
            hook.remove()
    return max(counts.values(), default=UNKNOWN_TERMS)


def _doubled(flat: FlatModel, record: Tensor) -> FlatModel:
    double = FlatModel(flat.load(flat.flatten().double()))
    try:
        _try(double, record)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the model may raise anything
        try:
            _try(flat, record)
        except Exception:  # it does not accept zeros in its own type either: the first gradient reports it
            return double
        raise InputError(
            "Expected a model that also runs in float64, in which agents sum gradients (rounding a sum in "
            f"float32 can show a record), got one that does not: {first_line(error):.200} "
            "Let it use the type of its parameters: no .float(), no fixed dtype."
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

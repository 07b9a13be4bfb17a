"""An agent's clipped gradients on its own records, summed in float64 whatever the type of its model.

A sum of N clipped gradients is rounded N times, each time by a share of itself. One record changes all later
partial sums, and so how they are rounded. In float32 that effect can exceed the record itself. `agent_rows`
adds the gradient to rows.

**Guarantees.** `rounding_bound` bounds how far rounding moves a mean gradient, in both neighbouring data sets
together, beyond what the clip allows. A missing record counts as a record whose gradient is zero: the
manifest states the number of records, and an agent with another number does not start. So the shapes of all
products, and with them the order of every sum, are the same in both data sets, and the numbers of one record
depend on no other record. If the person is the unit, this holds for the records of different persons: a first
sum has the first record of each person, and further records are summed at the same positions, with weight 0
for persons that have fewer. A record on which the model raises an error would change the computation of the
others, so it is replaced before (`failing_records`).
"""

from __future__ import annotations

import hmac
import logging
import math
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from topdp.agents.runtime.agent_draws import AgentDraws
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.base.array_types import Ints
from topdp.data.person_records import PersonRecords
from topdp.errors import InputError
from topdp.learning.gradients import clipped_gradients
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.gradients.path_check import expect_no_dropout_in_samples
from topdp.learning.gradients.per_example_path import first_line
from topdp.learning.gradients.record_streams import seeded_streams
from topdp.learning.gradients.safe_norms import minimum_rounding_unit
from topdp.learning.losses import Loss
from topdp.learning.models import FlatModel
from topdp.plan.batches import Batches, Cycle
from topdp.plan.random_streams import stream

logger = logging.getLogger("topdp.agents")

ROUNDING_UNIT = 2.0**-53  # largest relative error of one operation in float64
FINEST_NORM = 2.0**-23
"""Norms of terms that cancel are enlarged as in float32, to at most `MAX_ENLARGEMENT` times the clip."""

MAX_ENLARGEMENT = 1 / (2 * math.sqrt(FINEST_NORM))
WIDE_BLOCK_RECORDS = 1024  # records of a block if each number of a gradient is one product
NARROW_BLOCK_RECORDS = 64  # records of a block if each record has many products
UNKNOWN_TERMS = 10_000  # assumed products of a record if they cannot be counted
MAX_RECORDS_PER_PERSON = 10_000  # of one agent; more would round sums more than `rounding_bound` states


@final
class ExactGradients:
    """The sum of an agent's clipped gradients, in float64."""

    def __init__(
        self, flat: FlatModel, clip: float, *, loss: str | Loss, clipping: str, record: Tensor
    ) -> None:
        """`record` [1, ...]: a record of the right shape and type; its values do not matter."""
        self.dtype = flat.dtype
        self.flat = flat if flat.dtype == torch.float64 else _in_float64(flat, record)
        self.terms = count_terms(self.flat, record)
        self._block = WIDE_BLOCK_RECORDS if self.terms == 1 else NARROW_BLOCK_RECORDS
        self._clipped = clipped_gradients.ClippedGradients(self.flat, clip, loss, clipping)

    def sum(
        self, estimate: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """Return the sum [d] over the records [b, ...] at `estimate`, and how many records counted as zero.

        Only the owner of the records may know that number. `weights` [b]: 0 for records that replace others
        and add exactly nothing, 1 for all others, or what a record of a person counts.
        """
        row, ignored = estimate.double()[None].contiguous(), 0
        out = torch.zeros_like(row)
        # Blocks are converted to float64 one by one, so that they stay in the processor's cache.
        for first in range(0, len(inputs), self._block):
            block = slice(first, first + self._block)
            with minimum_rounding_unit(FINEST_NORM):
                _, statistics = self._clipped.clipped_sum_and_statistics(
                    row,
                    _to_float64(inputs[block])[None],
                    _to_float64(targets[block])[None],
                    None if weights is None else weights[None, block],
                    out=out,
                    microbatch=self._block,
                )
            ignored += int(statistics.ignored[0])
        return out[0], ignored

    def failing_records(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return [records]: whether the model or the loss raises an error on the record at the public start.

        An example is an invalid class.
        """
        module = _loaded(self.flat)

        def raises(block: slice) -> bool:
            try:
                with torch.no_grad():
                    self._clipped.loss(module(_to_float64(inputs[block])), _to_float64(targets[block]))
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception:  # the model or the loss may raise anything
                return True
            return False

        failing = torch.zeros(len(inputs), dtype=torch.bool)
        for first in range(0, len(inputs), WIDE_BLOCK_RECORDS):
            block = range(first, min(first + WIDE_BLOCK_RECORDS, len(inputs)))
            if raises(slice(block.start, block.stop)):
                failing[block.start : block.stop] = torch.tensor([raises(slice(k, k + 1)) for k in block])
        return failing

    def rounding_bound(self, records: int, clip: float, divisor: float, of_persons: bool = False) -> float:
        """Bound how far rounding moves the mean of `records` clipped gradients, in two data sets together.

        The error of a sum of k terms is k units of the sum of their norms, which is `records` clips. If a
        record has many terms that may cancel, the norms of the terms of a block are up to `MAX_ENLARGEMENT`
        times the norm of the record.

        `of_persons`: `records` are persons, whose norms are at most the clip each. Of a block of persons, the
        first records are summed as above, and up to `MAX_RECORDS_PER_PERSON` times their further records.
        """
        longest: float = records
        if of_persons:
            longest = 2 * records + NARROW_BLOCK_RECORDS + MAX_RECORDS_PER_PERSON + 8
        if self.terms > 1:
            longest += NARROW_BLOCK_RECORDS * MAX_ENLARGEMENT
        units = self.terms * (longest + 8) * records
        # Norms have a relative error below 2⁻⁴⁰, by which a record may exceed the clip.
        return clip / divisor * (2 * ROUNDING_UNIT * units + 2.0**-40)


@final
@dataclass(eq=False, repr=False)
class AgentGradients:
    """The agent's mean clipped gradient, on its own records.

    **Guarantees.** The manifest's seed determines the order of cyclic batches. The order need not be secret,
    because it counts as known. It is fixed before round 0, and the same after every restart. Accounts hold
    only under this condition: a record that moved within the cycle would be used more often than they assume.
    """

    exact: ExactGradients
    records: InitVar[tuple[Tensor, Tensor]]
    _: KW_ONLY
    batches: tuple[Batches, ...]  # of all agents, from the manifest
    agent: int
    seed: int  # of the manifest
    draws: AgentDraws
    hooks: AgentHooks = field(default_factory=AgentHooks)
    persons: PersonRecords | None = None  # of this agent alone; None: the unit is the record

    def __post_init__(self, records: tuple[Tensor, Tensor]) -> None:
        self.inputs, self.targets = records
        expect_no_dropout_in_samples(self.exact.flat.module, self.batches)
        if self.inputs.is_floating_point():
            self.inputs = self.inputs.to(self.exact.dtype)
        self._weights: Tensor | None = None
        self._replace_failing_records()

    def mean(self, round: int, estimate: Tensor) -> Tensor:
        """Return [d] in float64: the sum of clipped gradients of this round's records over the divisor."""
        return self.hooks.mean_gradient(
            round, self._records_of(round), lambda chosen: self._mean_over(round, chosen, estimate)
        )

    def _mean_over(self, round: int, chosen: Tensor | None, estimate: Tensor) -> Tensor:
        if chosen is not None and not len(chosen):
            return torch.zeros_like(estimate, dtype=torch.float64)  # a Poisson sample may be empty
        if self.persons is None:
            total, ignored = self._sum(estimate, chosen, None, round)
        else:
            total, ignored = self._sum_of_persons(self.persons, round, chosen, estimate)
        if ignored:  # the log stays on the machine of the data; nothing sent depends on it
            words = "%d records counted as zero in round %d: the model gives no finite gradient for them."
            facts = {"agent": self.agent, "event": "ignored", "round": round}
            logger.warning(words, ignored, round, extra=facts)
        return total.div_(self.batches[self.agent].divisor)

    def _sum(
        self, estimate: Tensor, chosen: Tensor | None, weights: Tensor | None, *position: int
    ) -> tuple[Tensor, int]:
        """Return the sum [d] over the `chosen` records with `weights`, and how many counted as zero.

        `position`: the round, and the part of the sum.
        """
        inputs, targets, own = self.inputs, self.targets, self._weights
        if chosen is not None:
            inputs, targets = inputs[chosen], targets[chosen]
            own = None if own is None else own[chosen]
        if weights is not None:
            own = weights if own is None else own * weights
        # Random layers draw from streams of the round, the agent and the record's position. They need not be
        # secret, but must not follow from the content of records (`record_streams`).
        round, *part = position
        with seeded_streams(int(stream(self.seed, "layers", round, self.agent, *part).integers(2**62))):
            return self.exact.sum(estimate, inputs, targets, own)

    def _sum_of_persons(
        self, persons: PersonRecords, round: int, chosen: Tensor | None, estimate: Tensor
    ) -> tuple[Tensor, int]:
        """Return the sum [d] over the records of the `chosen` persons, and how many counted as zero.

        What is computed for one person does not depend on the number of records of another.
        """
        units = np.arange(persons.counts[0]) if chosen is None else chosen.numpy()

        def add(layer: int, block: Ints, *part: int) -> tuple[Tensor, int]:
            records, weights = map(torch.from_numpy, persons.nth_record(0, block, layer))
            return self._sum(estimate, records, weights.double(), round, *part)

        total, ignored = add(0, units)
        # Blocks are narrow, because all of a block is computed again for each further record of one person.
        for first in range(0, len(units), NARROW_BLOCK_RECORDS):
            block = units[first : first + NARROW_BLOCK_RECORDS]
            layers = range(1, int(persons.sizes(0)[block].max()))
            further = torch.zeros_like(total)
            for layer in layers:
                part, count = add(layer, block, layer, first)
                further += part
                ignored += count
            if layers:
                total += further
        return total, ignored

    def _replace_failing_records(self) -> None:
        """Replace records on which the model or the loss raises an error by another record, with weight 0.

        So the computation and rounding of the others do not depend on whether there are such records.
        """
        failing = self.exact.failing_records(self.inputs, self.targets)
        if not failing.any() or failing.all():
            return
        substitute = int((~failing).nonzero()[0])
        self.inputs, self.targets = self.inputs.clone(), self.targets.clone()
        for values in (self.inputs, self.targets):
            values[failing] = values[substitute].clone()
        self._weights = (~failing).double()
        words = "%d records count as zero: the model or the loss fails on them."
        logger.warning(words, int(failing.sum()), extra={"agent": self.agent, "event": "ignored"})

    def order_digest(self, key: bytes) -> str | None:
        """Return a digest of the records in the order of cyclic batches, or None for other batches.

        A restarted agent compares it. It is keyed by `key`, because a plain digest would reveal one record to
        anyone who knows all others.
        """
        own = self.batches[self.agent]
        if not isinstance(own, Cycle):
            return None
        digest = hmac.new(key, digestmod="sha256")
        for round in range(own.period):
            chosen = self._records_of(round)
            if self.persons is not None and chosen is not None:
                digest.update(self.persons.sizes(0)[chosen.numpy()].astype("<i8").tobytes())
                chosen = torch.from_numpy(self.persons.records_of(0, chosen.numpy()))
            for values in (self.inputs[chosen], self.targets[chosen]):
                digest.update(f"{round} {values.dtype} {tuple(values.shape)}".encode())
                digest.update(values.numpy().tobytes())
        return digest.hexdigest()

    def _records_of(self, round: int) -> Tensor | None:
        """Return the indices of the records (or persons) that `round` uses; None stands for all."""
        own = self.batches[self.agent]
        if own.sampled:
            return self.draws.sample(self.batches, self.agent, round)
        if not isinstance(own, Cycle):
            return None
        from topdp.data.batch_selection import select  # cyclic batches only

        batch = select(self.batches, self.seed, round)
        assert batch.indices is not None and batch.weights is not None
        return batch.indices[self.agent][batch.weights[self.agent] > 0]


def count_terms(flat: FlatModel, record: Tensor) -> int:
    """Return the largest number of products that are summed for one number of one record's gradient.

    >>> count_terms(FlatModel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))), torch.zeros(1, 3))
    1
    >>> count_terms(FlatModel(nn.Conv1d(1, 1, 2)), torch.zeros(1, 1, 5))
    4
    """
    counts: dict[nn.Parameter, int] = {}  # modules may share parameters

    def trained_parameters(module: nn.Module) -> set[nn.Parameter]:
        return {own for own in module._parameters.values() if own is not None and own.requires_grad}

    def count(module: nn.Module, inputs: tuple[object, ...], result: object) -> None:
        sizes = [part.numel() for part in (*inputs, result) if isinstance(part, Tensor)]
        if isinstance(module, nn.Linear) and isinstance(inputs[0], Tensor):
            uses = inputs[0].numel() // module.in_features
        elif isinstance(module, _ConvNd) and isinstance(result, Tensor):
            uses = result.numel() // module.out_channels
        else:
            uses = max(sizes, default=UNKNOWN_TERMS)
        for parameter in trained_parameters(module):
            counts[parameter] = counts.get(parameter, 0) + uses

    module = _loaded(flat)
    hooks = [part.register_forward_hook(count) for part in module.modules() if trained_parameters(part)]
    try:
        with torch.no_grad():
            module(_zeros(record, flat.dtype))
    except Exception:  # the model does not accept zeros
        return UNKNOWN_TERMS
    finally:
        for hook in hooks:
            hook.remove()
    return max(counts.values(), default=UNKNOWN_TERMS)


def _in_float64(flat: FlatModel, record: Tensor) -> FlatModel:
    double = FlatModel(flat.load(flat.flatten().double()))
    try:
        _run_on_zeros(double, record)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the model may raise anything
        try:
            _run_on_zeros(flat, record)
        except Exception:  # the model rejects zeros in its own type too: the first gradient reports the error
            return double
        raise InputError(
            "Expected a model that also runs in float64, in which agents sum gradients (rounding a sum in "
            f"float32 can show a record), got one that does not: {first_line(error):.200} "
            "Let it use the type of its parameters: no .float(), no fixed dtype."
        ) from error
    return double


def _run_on_zeros(flat: FlatModel, record: Tensor) -> None:
    with torch.no_grad():
        call_model(_loaded(flat), {}, _zeros(record, flat.dtype))


def _loaded(flat: FlatModel) -> nn.Module:
    return disable_inference_kernels(flat.load(flat.flatten()).eval())


def _zeros(record: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(record, dtype=dtype if record.is_floating_point() else None)


def _to_float64(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values

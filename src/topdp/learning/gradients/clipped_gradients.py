"""Clipped gradient sums and outputs of all agents at once.

This module chooses between the fast path (`folded_path`) and the slow path (`per_example_path`), cuts the
work into blocks that fit into memory, clips, and leaves out gradients that are not finite. The engine handles
noise, mixing and rounds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from topdp.errors import InputError
from topdp.learning.gradients import path_check
from topdp.learning.gradients.clipping_rules import CLIPPING_KINDS, clip_factors, layer_of
from topdp.learning.gradients.folded_path import FoldedPath
from topdp.learning.gradients.ghost_norms import LossesAndContributions, SlotContributions, example_blocks
from topdp.learning.gradients.gradient_checks import FailureFlags, expect_finite, expect_inputs, expect_rows
from topdp.learning.gradients.layer_rules import has_no_global_hooks
from topdp.learning.gradients.linear_layers import by_copy
from topdp.learning.gradients.per_example_path import PerExamplePath, first_line
from topdp.learning.gradients.record_streams import RecordStreams, record_streams
from topdp.learning.gradients.tape import NotFoldedError
from topdp.learning.losses import Loss, named_loss
from topdp.learning.models import FlatModel

EVALUATION_RECORDS = 64  # records that the models of several agents evaluate at once on a CPU

ExampleKey = tuple[torch.Size, torch.dtype, torch.dtype, torch.device]


@final
@dataclass(frozen=True)
class Statistics:
    """Statistics [n] of the agents: means and counts over the examples of each agent.

    They are not differentially private and must not leave the agent.
    """

    loss: Tensor  # weighted mean over the examples
    clipped: Tensor  # weighted share of the examples whose gradient was longer than the clip
    ignored: Tensor  # number of examples counted as zero because the model failed on them or overflowed


@final
class ClippedGradients:
    """Clipped per-example gradients of one model, for many agents with their own parameters.

    `loss` is a name in `LOSSES` or a function (outputs [b, ...], targets [b, ...]) -> losses [b], one per
    example. `clipping` is one of `CLIPPING_KINDS`: by one factor, layer by layer, or to one norm. Under each
    rule, the norm of a clipped gradient is at most `clip`. Parameters with `requires_grad=False` get a zero
    gradient and do not count in norms. Layers run in the mode (training or evaluation) of the given module.
    Dropout in training mode draws one mask per example, from a stream of the example's position
    (`record_streams`) whose base is a number of torch's global generator; clipping works with it. The object
    holds buffers of the current pass, so only one thread may use it at a time.

    The fast path covers Linear, Conv1d to Conv3d, Embedding, MultiheadAttention and torch's transformer
    layers, RNN, GRU, LSTM and their cells, LayerNorm, RMSNorm, GroupNorm, InstanceNorm, and BatchNorm in
    evaluation mode, together with any functions that `vmap` can map over examples. It also covers parameters
    that a module reads itself, unless they are most of the model. Other models take the slow path, and one
    warning says so. On one core the slow path took 2 times as long for the paper's cnn and 10 to 49 times as
    long for its mlp; if vmap refuses the model, 8 to 107 times. `benchmarks/layers.py` measures other layers.

    **Guarantees.** Each example changes only its own agent's sum, by a vector of l2 norm at most clip·weight.
    This holds for all data, losses and rows, and for either adjacency. An example is a batch of one in all
    code that neither belongs to topdp nor is known to treat examples one by one (`layer_rules`, `isolation`).
    A model or a loss in which something changes from call to call is refused (`kept_state`), and so is one
    that seeds generators. It may draw numbers of torch, also a number of them that depends on the example:
    this changes the numbers of no other example. An example adds exactly nothing, and does not disturb any
    other example, if its gradient is not finite, if the gradient is so long that its norm is not finite, or
    if the model fails on the example. Norms and sums are rounded like the rest of the model. Nothing is
    subtracted for the relative error, which is about 1e-6 in float32 and 1e-15 in float64. If sums cancel or
    underflow, the computed norms are too long rather than too short. Assumption: user code is not written to
    circumvent this, because Python code can reach everything in its process.

    >>> import torch
    >>> gradients = ClippedGradients(nn.Linear(3, 2), clip=1.0)
    >>> rows = gradients.flat.flatten().repeat(5, 1)
    >>> gradients.clipped_sum(rows, torch.rand(5, 4, 3), torch.zeros(5, 4, dtype=torch.long)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        model: nn.Module | FlatModel,
        clip: float,
        loss: str | Loss = "cross-entropy",
        clipping: str = "flat",
    ) -> None:
        if not (math.isfinite(clip) and clip > 0):
            raise InputError(f"Expected a finite clip > 0, got {clip}.")
        if clipping not in CLIPPING_KINDS:
            raise InputError(f"Expected clipping to be one of {', '.join(CLIPPING_KINDS)}, got {clipping!r}.")
        self.clipping = clipping
        self.flat = model if isinstance(model, FlatModel) else FlatModel(model)
        self.clip = float(clip)
        self._layers = len({layer_of(slot) for slot in self.flat.slots})
        self.loss = named_loss(loss)
        self._plain = PerExamplePath(self.flat, self.loss)
        self._folded: FoldedPath | None = None
        self._reason = ""  # why this model takes the slow path
        self._elements: dict[ExampleKey, int] = {}  # by shape: the numbers that one example needs in memory
        self._agrees: dict[ExampleKey, bool] = {}  # whether folded outputs agree with those of the slow path
        self._announced = False
        self._remarks_given: set[str] = set()  # remarks of which the user was already warned
        self._failure_flags: FailureFlags | None = None
        try:
            self._folded = FoldedPath(self.flat, self.loss)
        except NotFoldedError as error:
            self._reason = str(error)

    @property
    def fast(self) -> bool:
        """Whether the model takes the fast path; only the first call finally decides this."""
        return self._folded is not None

    @property
    def repeatable(self) -> bool:
        """Whether every pass is known to run the same operations, because it contains no user code."""
        return self._folded is not None and self._folded.known and has_no_global_hooks()

    @contextmanager
    def noting_failures(self, flags: FailureFlags) -> Iterator[None]:
        """Let `clipped_sum` run without waiting for the device, inside the `with` block.

        `flags` records the failures for which `clipped_sum` would otherwise raise an error.
        """
        before, self._failure_flags = self._failure_flags, flags
        try:
            yield
        finally:
            self._failure_flags = before

    @property
    def may_draw(self) -> bool:
        """Whether the model may draw random numbers: it has dropout, or contains user code."""
        return not self.repeatable or any(map(path_check.draws_dropout, self.flat.module.modules()))

    def clipped_sum(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        out: Tensor | None = None,
        microbatch: int | None = None,
        copies: int = 1,
        fresh: bool = False,
        totals: Tensor | None = None,
    ) -> Tensor:
        """Return Σ_examples weight · clipped gradient for each agent [n, d]; if `out` is given, add it there.

        rows [n, d], inputs and targets [n, b, ...], weights [n, b] (default 1). Examples of weight 0 are
        padding and add exactly nothing, even if their activations overflow. `microbatch` bounds the number of
        examples of all agents together that are in memory at once. By default, activations take about 64 MB
        on a CPU, or a thirty-second of a GPU's memory. With `copies`, inputs and targets are those of
        n/copies agents, and rows i, i + n/copies, ... all use those of agent i. They are read only once if
        the model allows it (`linear_layers`). With `fresh`, `out` is overwritten and its content is not read.
        If `totals` [4, n] is given, add to it the sums from which `clipped_sum_and_statistics` computes
        statistics; this is supported only without `copies`. Raise DivergedError, with the numbers of the
        agents, if norms of `rows` are not finite.

        **Guarantees.** One example moves its agent's row of the result by at most clip·weight in l2 norm, and
        moves no other row. No record decides whether this function raises an error.
        """
        n, b = expect_inputs(self.flat, rows, inputs, targets, weights, out, microbatch, copies)
        rows = rows.detach()
        if out is None:
            out, fresh = rows.new_empty(n, self.flat.dimension), True
        if n == 0 or b == 0:
            return out.zero_() if fresh else out
        if self._failure_flags is None:
            expect_finite(rows, weights)
        else:
            self._failure_flags.note_rows(rows)
        key = (inputs.shape[2:], inputs.dtype, rows.dtype, rows.device)
        if key not in self._elements:
            self._elements[key] = self._check(rows, inputs, targets)
        with record_streams(self.may_draw, rows.device) as streams:
            return self._sum(
                rows, inputs, targets, weights, out, microbatch, copies, fresh, totals, key, streams
            )

    def _sum(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        out: Tensor,
        microbatch: int | None,
        copies: int,
        fresh: bool,
        totals: Tensor | None,
        key: ExampleKey,
        streams: RecordStreams,
    ) -> Tensor:
        """Return the result of `clipped_sum` for checked arguments."""
        n, b = rows.shape[0], inputs.shape[1]
        if copies > 1 and self._folded is not None and self._folded.shares:
            once = math.prod(inputs.shape[2:])
            elements = once + copies * max(1, self._elements[key] - once)
            capacity = microbatch // copies if microbatch else _activation_budget(rows.device) // elements
            out = out.zero_() if fresh else out
            for i, j in example_blocks(n // copies, b, capacity):
                own = by_copy(rows, copies)[:, i].flatten(0, 1)
                weight = None if weights is None else by_copy(weights, copies)[:, i, j].flatten(0, 1)
                losses, contributions = self._contributions(
                    own, inputs[i, j], targets[i, j], streams, (i.start, j.start), copies
                )
                sums = torch.zeros_like(own)
                self._add(sums, losses, contributions, weight, None)
                by_copy(out, copies)[:, i] += by_copy(sums, copies)
            return out
        if copies > 1:
            inputs, targets = (torch.cat([part] * copies) for part in (inputs, targets))
        capacity = microbatch or _activation_budget(rows.device) // self._elements[key]
        for i, j in example_blocks(n, b, capacity):
            weight = None if weights is None else weights[i, j]
            losses, contributions = self._contributions(
                rows[i], inputs[i, j], targets[i, j], streams, (i.start, j.start)
            )
            block_totals = None if totals is None else totals[:, i]
            self._add(out[i], losses, contributions, weight, block_totals, fresh and j.start == 0)
        return out

    def clipped_sum_and_statistics(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        out: Tensor | None = None,
        microbatch: int | None = None,
    ) -> tuple[Tensor, Statistics]:
        """Return the result of `clipped_sum`, and statistics that only the agent itself may see."""
        totals = rows.new_zeros(4, rows.shape[0])
        result = self.clipped_sum(
            rows, inputs, targets, weights, out=out, microbatch=microbatch, totals=totals
        )
        loss, clipped, weight, ignored = totals
        return result, Statistics(loss / weight, clipped / weight, ignored.long())

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs [n, b, ...] of all agents' models in evaluation mode for one batch [b, ...]."""
        expect_rows(self.flat, rows)
        key = (inputs.shape[1:], inputs.dtype, rows.dtype, rows.device)
        with torch.no_grad():
            if key not in self._agrees:
                self._agrees[key] = self._outputs_agree(rows, inputs)
            path = self._folded if self._folded is not None and self._agrees[key] else self._plain
            elements = self._elements.get(key, 8 * math.prod(inputs.shape[1:]))
            height, size = _evaluation_blocks(rows, elements)
            parts, outputs = torch.split(inputs, size), []
            for group in _agent_groups(rows, height):
                each = [_restore_record_axis(path.outputs(group, part), len(part)) for part in parts]
                outputs.append(torch.cat(each, 1))
            return torch.cat(outputs)

    def _outputs_agree(self, rows: Tensor, inputs: Tensor) -> bool:
        if self._folded is None:
            return False
        probes, sample = path_check.probe_rows(self.flat, rows), inputs[:3]
        with path_check.full_precision_products():
            try:
                fast = self._folded.outputs(probes, sample)
            except Exception:  # a model that cannot run folded may raise anything
                return False
            slow = self._plain.outputs(probes, sample)
        return fast.shape == slow.shape and torch.allclose(fast, slow, 1e-3, 1e-3 * float(slow.abs().max()))

    def _contributions(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        streams: RecordStreams,
        first: tuple[int, int],
        copies: int = 1,
    ) -> LossesAndContributions:
        """Return losses and contributions of a block. `first`: positions of its first agent and example."""
        if copies > 1 and self._folded is None:
            inputs, targets, copies = torch.cat([inputs] * copies), torch.cat([targets] * copies), 1
        try:
            return self._batched(rows, inputs, targets, streams, first, copies)
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if rows.is_cuda:  # the device cannot be used after a failed kernel
                raise
            if copies == 1:
                made_up = path_check.probe_batch(self.flat, rows, inputs, targets, *inputs.shape[:2])
                try:
                    self._batched(*made_up, streams, first)
                except Exception:  # the model fails on made-up records too, so the model is the cause
                    self._folded = None
                    self._announce(first_line(error))
                    return self._plain.one_by_one(rows, inputs, targets, streams, first)
                # Otherwise a record is the cause, such as an invalid token id. It counts as zero, and no
                # warning is given.
                return self._without_failing(rows, inputs, targets, made_up, streams, first)
        return self._contributions(
            rows, torch.cat([inputs] * copies), torch.cat([targets] * copies), streams, first
        )

    def _batched(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        streams: RecordStreams,
        first: tuple[int, int],
        copies: int = 1,
    ) -> LossesAndContributions:
        streams.begin(*first)
        if self._folded is None:
            return self._plain.contributions(rows, inputs, targets, streams, first)
        result = self._folded.contributions(rows, inputs, targets, copies)
        streams.expect_unseeded()
        return result

    def _without_failing(
        self,
        rows: Tensor,
        inputs: Tensor,
        targets: Tensor,
        made_up: path_check.ProbeBatch,
        streams: RecordStreams,
        first: tuple[int, int],
    ) -> LossesAndContributions:
        """Return losses and contributions of a block in which the model fails on some examples.

        Made-up examples take their places, and their losses are NaN. So the other examples are computed as if
        none had failed: with the same random numbers and the same rounding.
        """
        alone = self._plain.one_by_one(rows, inputs, targets, streams, first)
        failing = alone[0].isnan()
        safe_inputs, safe_targets = (
            torch.where(failing.view(*failing.shape, *[1] * (part.dim() - 2)), other, part)
            for part, other in ((inputs, made_up[1]), (targets, made_up[2]))
        )
        try:
            losses, contributions = self._batched(rows, safe_inputs, safe_targets, streams, first)
        except Exception:  # the model fails on the batch, but on no single example
            return alone
        return losses.masked_fill(failing, math.nan), contributions

    def _add(
        self,
        out: Tensor,
        losses: Tensor,
        contributions: SlotContributions,
        weights: Tensor | None,
        totals: Tensor | None,
        fresh: bool = False,
    ) -> None:
        factors, shortened, bad = clip_factors(self.clipping, contributions, self.clip, self._layers)
        bad = bad | losses.isnan()
        if bool(bad.any()) if self._failure_flags is None else self._failure_flags.note_examples(bad):
            for _, contribution in contributions:
                contribution.blank(bad)
            losses = losses.masked_fill(bad, 0)
        weighted = {id(factor): factor for factor in factors}  # most contributions share one factor
        if weights is not None:
            weighted = {key: factor * weights for key, factor in weighted.items()}
        if fresh and sum(slot.stop - slot.start for slot, _ in contributions) < out.shape[1]:
            out.zero_()  # not every parameter was used
        for (slot, contribution), factor in zip(contributions, factors, strict=True):
            contribution.add_to(out[:, slot.start : slot.stop], weighted[id(factor)], fresh)
        if totals is not None:
            weights = torch.ones_like(losses) if weights is None else weights
            clipped = shortened * weights
            totals += torch.stack([losses * weights, clipped, weights, bad & (weights != 0)]).sum(2)

    def _check(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> int:
        """Choose the path for examples of this shape.

        Return how many numbers the computation keeps in memory for one example.
        """
        with warnings.catch_warnings():
            for message in path_check.HARMLESS_WARNINGS:
                warnings.filterwarnings("ignore", message)
            probes = path_check.probe_batch(self.flat, rows, inputs, targets)
            path_check.check_model_call(self.flat, self.loss, probes, inputs, targets)
            self._warn(path_check.model_remarks(self.flat, self.loss, probes))
            if self._folded is not None:
                comparison = path_check.compare_paths(self.flat, self.loss, probes)
                if comparison.reason is None:
                    self._warn(comparison.remarks)
                    return comparison.elements
                self._folded, self._reason = None, comparison.reason
            with path_check.forked_generators(rows.device):
                refusal = self._plain.try_isolated(*probes)
        self._announce(
            f"vmap refuses this model ({refusal}); examples run one by one" if refusal else self._reason
        )
        return 3 * self.flat.dimension

    def _warn(self, remarks: Iterable[str]) -> None:
        for remark in remarks:
            if remark not in self._remarks_given:
                self._remarks_given.add(remark)
                warnings.warn(remark, stacklevel=4)

    def _announce(self, reason: str) -> None:
        if not self._announced:
            self._announced = True
            warnings.warn(
                f"Per-example gradients of this model take the slow path: {reason}. Results are correct; "
                "for speed, use layers of torch.nn (docs/sharp-edges.md, Models).",
                stacklevel=4,
            )


def _evaluation_blocks(rows: Tensor, elements: int) -> tuple[int, int]:
    """Return (agents, records): how many agents, on how many records, are evaluated at once.

    `elements`: how many numbers one agent and one record need in memory. On a CPU, several agents are always
    evaluated on the same number of records at once. The last digits of products depend on this number, and an
    agent's results must not depend on how many other agents there are.
    """
    n, budget = max(1, rows.shape[0]), _activation_budget(rows.device)
    if n == 1 or rows.is_cuda:
        return n, max(1, min(1024, budget // (elements * n)))
    return max(2, budget // (elements * EVALUATION_RECORDS)), EVALUATION_RECORDS


def _agent_groups(rows: Tensor, height: int) -> list[Tensor]:
    """Return the rows in groups of `height`.

    No group has a single row unless there is only one row, because products of a single row are rounded
    differently.
    """
    starts = list(range(0, max(1, len(rows)), height))
    if len(starts) > 1 and len(rows) - starts[-1] == 1:
        starts.pop()
    return [rows[i:j] for i, j in zip(starts, [*starts[1:], len(rows)], strict=True)]


def _restore_record_axis(outputs: Tensor, records: int) -> Tensor:
    """Return `outputs` as [n, records, ...], also if the model removed the axis of a single record."""
    lost = records == 1 and (outputs.dim() < 2 or outputs.shape[1] != 1)
    return outputs.unsqueeze(1) if lost else outputs


def _activation_budget(device: torch.device) -> int:
    """Return how many activations may be in memory at once; on a GPU, they take 1/32 of its memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory // 128)
    return 1 << 24

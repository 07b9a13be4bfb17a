"""Checks before a path is used: the model runs, keeps no state, and the fast path agrees with the slow path.

The isolation of examples does not depend on this module: `layer_rules`, `isolation` and `kept_state` ensure
it. This module is a second line of defence, which runs on made-up examples for every new shape of examples.
It finds functions that read a layer's weights, outputs that are changed in place, and errors of the model
itself. No decision depends on a private record.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from topdp.errors import InputError
from topdp.learning.gradients.folded_path import FoldedPath
from topdp.learning.gradients.ghost_norms import Dense, LossesAndContributions, total_norms
from topdp.learning.gradients.isolation import operator_without_batch_rule
from topdp.learning.gradients.kept_state import StateSnapshot, expect_no_leaked_tensors, leaked_tensors
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.gradients.per_example_path import PerExamplePath, first_line
from topdp.learning.gradients.record_streams import RecordStreams
from topdp.learning.losses import Loss, is_cross_entropy
from topdp.learning.models import FlatModel
from topdp.plan.batches import Batches

PROBE_AGENTS, PROBE_EXAMPLES = 2, 3
# Scales of made-up records. A model that keeps state only for unusual values must show it here.
MODEL_PROBE_SCALES = (1.0, 1e-3, -1.0, 1e3, -1e3, 1e10, 1e30)


ZERO_GRADIENTS_REASON = (
    "its gradients are zero for all examples made up to compare the two paths (a model with one output under "
    "cross-entropy, which has a single class, cannot learn)"
)
# Warnings of torch about how it runs a model. They are harmless, and users can do nothing about them.
HARMLESS_WARNINGS = (
    "LSTM with projections is not supported with oneDNN",
    "The PyTorch API of nested tensors is in prototype stage",
    "RNN module weights are not part of single contiguous chunk of memory",
)


ProbeBatch = tuple[Tensor, Tensor, Tensor]
"""(rows near the model's own row, made-up records, targets of these records)"""


@final
@dataclass(frozen=True)
class PathComparison:
    """The result of a comparison of the fast path with the slow path.

    `reason`: why the fast path must not be used; None if it may be used. `elements`: how many numbers the
    fast path keeps in memory for one example. `remarks`: what makes the fast path slow.
    """

    reason: str | None
    elements: int = 0
    remarks: tuple[str, ...] = ()


def compare_paths(flat: FlatModel, loss: Loss, probes: ProbeBatch) -> PathComparison:
    """Compare the gradients of made-up examples on the fast path with those on the slow path.

    **Guarantees.** The comparison covers the norms of single gradients and one clipped, weighted sum, with
    different parameters for each agent. It uses float64 with tolerance 1e-8 if the model allows this, and
    otherwise the type of the rows with tolerance 1e-3. On a GPU it uses both, because other code runs there
    for other types. Layers are in the mode in which they will run, except that dropout is off. A model that
    draws random numbers itself can be compared only in evaluation mode.
    """
    rows = probes[0]
    with forked_generators(rows.device), full_precision_products():
        module = _without_dropout(flat.module)
        reason = "the fast path failed"
        for dtype, tolerance in ((torch.float64, 1e-8), (rows.dtype, 1e-3)):
            x, y = (part.to(dtype) if part.is_floating_point() else part for part in probes[1:])
            records = rows.to(dtype), x, y
            before = leaked_tensors()
            try:
                folded = FoldedPath(FlatModel(module), loss)
                losses, contributions = folded.contributions(*records)
                if not torch.equal(losses, folded.contributions(*records)[0]):
                    module.eval()
                    folded = FoldedPath(FlatModel(module), loss)
                    losses, contributions = folded.contributions(*records)
            except Exception as error:  # a model that cannot run folded may raise any error
                reason = first_line(error)
                continue
            if not folded.known:
                expect_no_leaked_tensors(before)
            # torch computes one example after the other, so no batching rule is involved that could be wrong.
            plain = PerExamplePath(FlatModel(module), loss).one_by_one(*records)
            if not any(isinstance(c, Dense) and bool(c.gradients.any()) for _, c in plain[1]):
                return PathComparison(ZERO_GRADIENTS_REASON)
            if _paths_differ((losses, contributions), plain, flat.dimension, tolerance):
                return PathComparison("a layer is used in a way that the fast path misses")
            if dtype != rows.dtype and rows.is_cuda:
                continue
            elements = folded.elements // (PROBE_AGENTS * PROBE_EXAMPLES)
            operator = None if folded.known else operator_without_batch_rule(folded.contributions, *records)
            remark = (
                f"torch has no batching rule for the operator {operator}, so it processes one example after "
                "the other. Results are correct. For speed, use another function in its place."
            )
            return PathComparison(None, elements, () if operator is None else (remark,))
    return PathComparison(reason)


def model_remarks(flat: FlatModel, loss: Loss, probes: ProbeBatch) -> Iterator[str]:
    """Yield texts of warnings for the user about a model that runs."""
    if _mixes_examples(flat, loss, probes):
        yield (
            "Examples of a batch influence each other in this model. topdp runs each example as a batch of "
            "one, because clipping an example's gradient would otherwise not bound the example's influence."
        )
    if is_cross_entropy(loss) and _returns_probabilities(flat, probes):
        yield (
            "The outputs of this model are probabilities, but cross-entropy applies softmax to its inputs. A "
            "model with two softmax functions learns slowly and remains uncertain. Remove the softmax at "
            "the end of the model."
        )


def _returns_probabilities(flat: FlatModel, probes: ProbeBatch) -> bool:
    outputs = _try_model(flat, probes[0][0], probes[1][0])
    if outputs is None or outputs.dim() < 2 or outputs.shape[1] < 2 or bool((outputs < 0).any()):
        return False
    return bool(((outputs.sum(1) - 1).abs() < 1e-4).all())


def _try_model(flat: FlatModel, row: Tensor, x: Tensor) -> Tensor | None:
    """Return the model's output for the made-up records `x`; None if the model does not run on them."""
    module = copy.deepcopy(flat.module).to(device=row.device, dtype=row.dtype)
    with torch.no_grad(), forked_generators(row.device), suppress(Exception):
        outputs = functional_call(module, flat.named(row), (x.clone(),))
        return outputs if isinstance(outputs, Tensor) else None
    return None


def _mixes_examples(flat: FlatModel, loss: Loss, probes: ProbeBatch) -> bool:
    """Return whether a batch gives other losses than its examples one by one."""
    rows, x, y = probes[0], probes[1][0], probes[2][0]
    module = _without_dropout(flat.module).to(device=rows.device, dtype=rows.dtype)
    parameters = flat.named(rows[0])

    def losses(*which: slice) -> Tensor:
        return torch.cat([loss(functional_call(module, parameters, (x[i],)), y[i]) for i in which])

    with torch.no_grad(), forked_generators(rows.device), full_precision_products():
        try:
            if not torch.equal(losses(slice(None)), losses(slice(None))):
                module.eval()  # the model draws random numbers itself
            batch_losses = losses(slice(None))
            single_losses = losses(*(slice(i, i + 1) for i in range(PROBE_EXAMPLES)))
        except Exception:  # other checks find and report errors
            return False
    # Losses that are not finite in both cases count as equal.
    scale = float(batch_losses.nan_to_num(0, 0, 0).abs().max())
    return not torch.allclose(batch_losses, single_losses, 1e-3, 1e-3 * scale, equal_nan=True)


def _without_dropout(module: nn.Module) -> nn.Module:
    """Return a copy of `module` whose layers draw no dropout masks."""
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, _DropoutNd):
            layer.eval()
        elif draws_dropout(layer):
            vars(layer)["dropout"] = 0.0
    return module


def draws_dropout(layer: nn.Module) -> bool:
    """Return whether `layer` is a layer of torch that draws random numbers in training mode."""
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return float(layer.dropout) > 0
    return isinstance(layer, _DropoutNd)


def expect_no_dropout_in_samples(module: nn.Module, batches: Sequence[Batches]) -> None:
    """Raise InputError for a model with dropout if batches are Poisson samples.

    Masks follow from places in a batch. So whether a sample contains one record would change the masks of
    others, and the account of samples assumes that it adds one gradient.
    """
    if any(own.sampled for own in batches) and any(map(draws_dropout, module.modules())):
        raise InputError(
            'data.batch: expected "full" or a cycle for a model with dropout, got Poisson samples, in which '
            "one record would change the masks of others. Remove the dropout, or change data.batch."
        )


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that restores torch's global generators at its end."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def full_precision_products() -> Iterator[None]:
    """Compute products in full float32 inside the `with` block, whatever precision the user has allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def probe_rows(
    flat: FlatModel, like: Tensor, generator: torch.Generator | None = None, agents: int = PROBE_AGENTS
) -> Tensor:
    """Return rows [agents, d] near the model's own row, with different parameters for all agents.

    `like` gives the type and device of the rows. Its values are not used, because the rows of a run may be
    far from the model's own row.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    row = flat.flatten().to(like)
    noise = torch.randn(agents, flat.dimension, generator=generator).to(like)
    return row + noise * (0.05 + 0.1 * row.abs())


def probe_batch(
    flat: FlatModel,
    rows: Tensor,
    inputs: Tensor,
    targets: Tensor,
    agents: int = PROBE_AGENTS,
    examples: int = PROBE_EXAMPLES,
) -> ProbeBatch:
    """Return rows near the model's own row, and made-up records and targets for them.

    Their types, and the shapes of single examples, are those of `rows`, `inputs` and `targets`.
    """
    generator = torch.Generator().manual_seed(0)
    row_probes = probe_rows(flat, rows, generator, agents)
    # An integer below all of these sizes is a valid index for every embedding.
    tables = [layer.num_embeddings for layer in flat.module.modules() if isinstance(layer, nn.Embedding)]
    x = random_like(inputs[0, 0], (agents, examples), min(tables, default=2), generator)
    # Class 1 is valid only if the model has at least two outputs.
    outputs = None if targets.is_floating_point() else _try_model(flat, row_probes[0], x[0, :1])
    below = 1 if outputs is not None and outputs.dim() > 1 and outputs.shape[1] <= 1 else 2
    return row_probes, x, random_like(targets[0, 0], (agents, examples), below, generator)


def random_like(example: Tensor, lead: tuple[int, ...], below: int, generator: torch.Generator) -> Tensor:
    """Return made-up examples [*lead, ...] with the shape and type of `example`; integers are less than
    `below`.
    """
    shape = (*lead, *example.shape)
    if example.is_floating_point():
        return torch.rand(shape, generator=generator).to(example)
    return torch.randint(below, shape, generator=generator).to(example)


def check_model_call(
    flat: FlatModel, loss: Loss, probes: ProbeBatch, inputs: Tensor, targets: Tensor
) -> None:
    """Run model and loss as torch would, so that their own errors occur here.

    Raise these errors unchanged, except if a layer gets an input that it cannot take or if the output is not
    a tensor (`model_calls`). Raise InputError if the model does not run on a single example. The model runs
    on made-up records; if it fails on these, it must run on the first real records instead.

    **Guarantees.** A model or a loss that keeps state between two calls, or seeds generators, is refused.
    """
    rows, x, y = probes
    probe = disable_inference_kernels(copy.deepcopy(flat.module).to(device=rows.device, dtype=rows.dtype))
    memory = StateSnapshot({"model": probe, "loss": loss}, x, y, contents=True)

    def call(x: Tensor, y: Tensor) -> None:
        loss(call_model(probe, flat.named(rows[0]), x), y)

    with torch.no_grad(), forked_generators(rows.device):
        streams = RecordStreams(0, rows.device)
        streams.begin(0)
        try:
            call(x[0], y[0])
        except Exception:
            call(inputs[0, :PROBE_EXAMPLES].clone(), targets[0, :PROBE_EXAMPLES].clone())
        else:
            try:
                call(x[0, :1], y[0, :1])
            except Exception as error:
                raise InputError(
                    "Expected a model that runs on a batch of one example, because topdp runs every example "
                    f"so, got a model that runs on {PROBE_EXAMPLES} examples, but raises on one: "
                    f"{first_line(error)}. If the model calls squeeze(), name the axis: squeeze(-1)."
                ) from error
        for size in MODEL_PROBE_SCALES:
            with suppress(Exception):  # the model may fail on such records, which then count as zero
                call(x[0] * size if x.is_floating_point() else x[0], y[0])
        streams.expect_unseeded()
    memory.expect_unchanged()


def _paths_differ(
    fast: LossesAndContributions, plain: LossesAndContributions, dimension: int, tolerance: float
) -> bool:
    """Return whether norms of gradients, or a clipped sum, differ by more than the relative `tolerance`."""
    expected = total_norms([c for _, c in plain[1]])
    scale = float(expected.max())
    if not (
        scale > 0
        and torch.allclose(total_norms([c for _, c in fast[1]]), expected, tolerance, tolerance * scale)
    ):
        return True
    # The coefficients clip some examples and not others, and give all examples different weights.
    coefficients = expected.mean() / expected.clamp_min(expected.mean())
    coefficients = coefficients * torch.linspace(0.5, 1, coefficients.numel()).view_as(coefficients).to(
        expected
    )
    sums = []
    for losses, contributions in (fast, plain):
        out = losses.new_zeros(losses.shape[0], dimension)
        for slot, contribution in contributions:
            contribution.add_to(out[:, slot.start : slot.stop], coefficients)
        sums.append(out)
    return not torch.allclose(sums[0], sums[1], tolerance, tolerance * float(sums[1].abs().max()))
